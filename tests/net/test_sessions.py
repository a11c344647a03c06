"""Tests the sessions that the master keeps for clients that may reconnect."""

from __future__ import annotations

from typing import Any, cast

import pytest

from ciel.core.events import Answer, JobPrinted, Message, Received
from ciel.core.ids import JobId, TaskId
from ciel.net import sessions
from ciel.net.control import ControlPeer
from ciel.net.sessions import CONFIRM_EVERY, HANDED_AT_ONCE, PeerSession


class Peer:
    """Records the messages sent to it."""

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
        """Do nothing, since no message is queued here."""

    def refuse(self, reason: str) -> None:
        self.refusals.append(reason)


def answers(*numbers: int) -> list[Message]:
    return [Answer(number, None, "") for number in numbers]


def opened() -> tuple[PeerSession, Peer]:
    peer = Peer()
    return PeerSession("client-1", cast(ControlPeer, peer)), peer


def back(session: PeerSession, received: int) -> list[Message]:
    """Return the messages sent to a client that reconnects after it received so many."""
    peer: Any = Peer()
    assert session.take_confirmation(received)
    session.resume(peer)
    return cast("list[Message]", peer.sent)


def test_messages_that_a_client_lacks_are_sent_again_when_it_reconnects() -> None:
    session, peer = opened()
    for message in answers(1, 2, 3):
        session.send(message)
    assert peer.sent == answers(1, 2, 3)
    session.count(7)
    session.peer = None
    session.send(answers(4)[0])
    assert back(session, 2) == [Received(7), *answers(3, 4)]
    assert back(session, 4) == [Received(7)]


def test_received_messages_are_confirmed_at_intervals_and_on_request() -> None:
    session, peer = opened()
    session.count(CONFIRM_EVERY - 1)
    assert peer.sent == []
    session.count(1)
    assert peer.sent == [Received(CONFIRM_EVERY)]
    session.confirm()
    session.count(1)
    session.confirm()
    assert peer.sent[1:] == [Received(CONFIRM_EVERY + 1)]


def test_a_confirmation_does_not_overtake_what_the_confirmed_messages_caused() -> None:
    session, peer = opened()
    peer.room = 1
    for message in answers(1, 2):
        session.send(message)
    session.count(CONFIRM_EVERY)
    session.confirm()
    assert peer.sent == answers(1)
    peer.room = 3
    session.hand_on()
    session.confirm()
    assert peer.sent == [*answers(1, 2), Received(CONFIRM_EVERY)]


def test_a_session_that_confirms_last_first_sends_all_messages_again() -> None:
    session, _ = opened()
    waiting = answers(*range(HANDED_AT_ONCE + 1))
    for message in waiting:
        session.send(message)
    session.count(7)
    peer = Peer()
    peer.room = 1
    session.resume(cast(ControlPeer, peer), confirms_last=True)
    session.confirm()
    assert peer.sent == waiting[:HANDED_AT_ONCE]
    peer.room = 9999
    session.hand_on()
    assert peer.sent == [*waiting, Received(7)]


@pytest.mark.parametrize("count", [-1, 1, 4])
def test_a_confirmation_out_of_range_is_refused(count: int) -> None:
    session, _ = opened()
    for message in answers(1, 2, 3):
        session.send(message)
    assert session.take_confirmation(2)
    assert not session.take_confirmation(count)
    assert session.take_confirmation(3)


def test_a_client_that_is_too_far_behind_cannot_resume(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "KEPT_MAX", 2)
    session, peer = opened()
    for message in answers(1, 2):
        session.send(message)
    assert session.can_resume
    for message in answers(3, 4):
        session.send(message)
    assert not session.can_resume
    assert peer.sent == answers(1, 2, 3, 4)  # the session goes on as long as the connection holds
    assert session.take_confirmation(2)


def test_a_slow_client_gets_all_messages_later_and_in_order() -> None:
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


def test_task_output_that_a_client_does_not_read_ends_the_session_with_a_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sessions, "PRINTS_KEPT_MAX_BYTES", 100)
    session, peer = opened()
    peer.room = 0
    for _ in range(11):
        session.send(JobPrinted(JobId("job"), TaskId("task"), "", 1, "w1:1", 0, 10, "x" * 10))
    assert peer.refusals == ["it read too slowly: too many messages waited for it"]
    assert not session.can_resume


def test_a_peer_that_has_confirmed_a_message_knows_the_session() -> None:
    """Otherwise the session would begin again with its first message, which is not kept."""
    session, _ = opened()
    session.replaces_earlier = True
    for answer in answers(1, 2):
        session.send(answer)
    assert session.may_be_unknown
    assert session.take_confirmation(1)
    assert not session.may_be_unknown
