"""Tests a worker's session with its master, over connections that only collect messages."""

from __future__ import annotations

from typing import Any

from twisted.internet.task import Clock

from ciel.core.events import (
    Answer,
    Change,
    Heartbeat,
    MeetWorkers,
    ObjectsStored,
    Received,
)
from ciel.worker.events import Events
from ciel.worker.master_session import MasterSession, NoMasterError

REPORT = ObjectsStored(())
ORDER = MeetWorkers(())


class Peer:
    address = "a test"
    is_congested = False
    failure: Any = None

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.refused = ""
        self.is_closed = False

    def send(self, message: Any) -> None:
        self.sent.append(message)

    def refuse(self, reason: str) -> None:
        self.refused = reason

    def close(self) -> None:
        self.is_closed = True


class Scene:
    def __init__(self) -> None:
        self.master = MasterSession(Events(Clock()))
        peer: Any = Peer()
        self.peer = peer
        assert self.master.opened(peer)


def test_messages_wait_for_a_lost_master_and_are_sent_again() -> None:
    scene, back = Scene(), Peer()
    other: Any = back
    scene.master.send(REPORT)
    assert not scene.master.closed(scene.peer, "cut")
    scene.master.send(REPORT)
    assert scene.master.is_open
    assert not scene.master.is_connected
    assert not scene.master.opened(other)  # the old session continues
    assert scene.master.received(other, [Received(1), ORDER], 5.0) == [ORDER]
    assert back.sent == [Received(0), REPORT]
    assert scene.master.connected_at_s == 5.0
    assert scene.master.sent_counts() == {"stored": 2}


def test_a_wrong_confirmation_ends_the_connection() -> None:
    scene = Scene()
    assert scene.master.received(scene.peer, [ORDER, Received(3), Heartbeat()], 0.0) == [ORDER]
    assert scene.peer.refused == "it confirms messages that were not sent"


def test_a_connection_that_failed_otherwise_ends_the_session() -> None:
    scene = Scene()
    scene.peer.failure = ValueError("not a frame")
    assert scene.master.closed(scene.peer, "why")


def test_a_connection_of_an_earlier_session_is_ignored() -> None:
    scene, stranger = Scene(), Peer()
    other: Any = stranger
    assert scene.master.received(other, [ORDER], 0.0) == []
    assert not scene.master.closed(other, "why")
    assert scene.master.is_connected


def test_requests_are_answered_by_number() -> None:
    scene = Scene()
    first, second = (scene.master.request("attach", name) for name in "ab")
    assert scene.peer.sent == [Change(1, "attach", "a"), Change(2, "attach", "b")]
    answers = [Answer(2, "done", ""), Answer(1, None, "no"), Answer(9, None, "")]
    assert scene.master.received(scene.peer, list(answers), 0.0) == []
    results: list[Any] = []
    first.addErrback(lambda failure: results.append(failure.getErrorMessage()))
    second.addCallback(results.append)
    assert results == ["no", "done"]


def test_requests_fail_with_the_session() -> None:
    scene = Scene()
    waiting = scene.master.request("attach", "a")
    scene.master.end()
    late = scene.master.request("attach", "b")
    failures: list[Any] = []
    for request in (waiting, late):
        request.addErrback(lambda failure: failures.append(failure.type))
    assert failures == [NoMasterError, NoMasterError]
    scene.master.send(REPORT)  # no master receives it
    assert scene.master.sent_counts() == {"change": 1}


def test_the_next_connection_names_the_session() -> None:
    scene = Scene()
    assert scene.master.greeting()["received"] == 0
    scene.master.end()
    assert set(scene.master.greeting()) == {"session"}


def test_a_farewell_closes_the_connection() -> None:
    scene = Scene()
    scene.master.say_farewell()
    assert scene.peer.is_closed
    assert scene.peer.sent[-1].topic == "leave"
