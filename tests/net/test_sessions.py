"""What the master keeps for a client that may come back."""

from __future__ import annotations

from typing import Any, cast

import pytest

from ciel.core.events import Answer, JobPrinted, Message, Received
from ciel.core.ids import JobId, TaskId
from ciel.net import sessions
from ciel.net.control import ControlPeer
from ciel.net.sessions import CONFIRM_EVERY, PeerSession


class Peer:
    """Notes what it is sent."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.room = 1_000_000
        self.refusals: list[str] = []

    @property
    def is_congested(self) -> bool:
        return len(self.sent) >= self.room

    def send(self, message: Message) -> None:
        self.sent.append(message)

    def flush(self) -> None:
        """Nothing is queued here."""

    def refuse(self, reason: str) -> None:
        self.refusals.append(reason)


def answers(*numbers: int) -> list[Message]:
    return [Answer(number, None, "") for number in numbers]


def opened() -> tuple[PeerSession, Peer]:
    peer = Peer()
    return PeerSession("client-1", cast(ControlPeer, peer)), peer


def back(session: PeerSession, received: int) -> list[Message]:
    """Return what a client is told that comes back with so many messages."""
    peer: Any = Peer()
    assert session.take_confirmation(received)
    session.resume(peer)
    return cast("list[Message]", peer.sent)


def test_what_a_client_lacks_is_said_again_when_it_is_back() -> None:
    session, peer = opened()
    for message in answers(1, 2, 3):
        session.send(message)
    assert peer.sent == answers(1, 2, 3)
    session.count(7)
    session.peer = None
    session.send(answers(4)[0])
    assert back(session, 2) == [Received(7), *answers(3, 4)]
    assert back(session, 4) == [Received(7)]


def test_what_came_is_confirmed_now_and_then_and_when_there_is_time() -> None:
    session, peer = opened()
    session.count(CONFIRM_EVERY - 1)
    assert peer.sent == []
    session.count(1)
    assert peer.sent == [Received(CONFIRM_EVERY)]
    session.confirm()
    session.count(1)
    session.confirm()
    assert peer.sent[1:] == [Received(CONFIRM_EVERY + 1)]


@pytest.mark.parametrize("count", [-1, 1, 4])
def test_a_client_cannot_have_more_or_less_than_it_was_sent_and_confirmed(count: int) -> None:
    session, _ = opened()
    for message in answers(1, 2, 3):
        session.send(message)
    assert session.take_confirmation(2)
    assert not session.take_confirmation(count)
    assert session.take_confirmation(3)


def test_one_that_is_too_far_behind_cannot_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "KEPT_MAX", 2)
    session, peer = opened()
    for message in answers(1, 2):
        session.send(message)
    assert session.can_resume
    for message in answers(3, 4):
        session.send(message)
    assert not session.can_resume
    assert peer.sent == answers(1, 2, 3, 4)  # it goes on as long as the connection holds
    assert session.take_confirmation(2)


def test_g7_a_slow_reader_gets_all_news_later_and_in_order() -> None:
    session, peer = opened()
    peer.room = 3
    for message in answers(*range(1, 2001)):
        session.send(message)
    assert len(peer.sent) < 2000
    while len(peer.sent) < 2000:
        peer.room = len(peer.sent) + 1
        session.hand_on()
    assert peer.sent == answers(*range(1, 2001))
    assert not peer.refusals
    assert back(session, 1500) == [Received(0), *answers(*range(1501, 2001))]


def test_g7_prints_that_nobody_reads_end_the_session_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sessions, "PRINTS_KEPT_MAX_BYTES", 100)
    session, peer = opened()
    peer.room = 0
    for _ in range(11):
        session.send(JobPrinted(JobId("job"), TaskId("task"), "", 1, "w1:1", 0, 10, "x" * 10))
    assert peer.refusals == ["it was too far behind"]
    assert not session.can_resume
