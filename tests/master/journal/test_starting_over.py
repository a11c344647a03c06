"""A peer that the master does not know starts over, also if its connection ends meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from twisted.internet.task import Clock

from ciel.access.keys import Role
from ciel.core.events import (
    AttemptsKept,
    CloseJob,
    Heartbeat,
    MeetWorkers,
    Message,
    Received,
    StartOver,
    SubmitJob,
)
from ciel.master.journal import Journal, NullJournal
from ciel.master.service import MasterService
from ciel.master.state.machine import MasterMachine
from ciel.net.ticks import Ticks
from ciel.testing.builders import JOB, a_job_spec
from ciel.wire.session import Hello

WORKER = {
    "worker": "w1", "netloc": "host1:9001", "host": "host1", "slots": 1, "executors": [],
}  # fmt: skip


class Peer:
    """An open connection without a network: `sent` collects the messages sent to it."""

    silent_s = 0.0
    is_congested = False
    queued_bytes = 0

    def __init__(self, role: Role, received: int) -> None:
        about = {**(WORKER if role is Role.WORKER else {}), "session": "s", "received": received}
        self.hello = Hello(1, "", role, "", b"", about)
        self.sent: list[Message] = []
        self.refused = ""
        self.is_turned_away = False

    def send(self, message: Message) -> None:
        self.sent.append(message)

    def refuse(self, reason: str) -> None:
        self.refused = reason

    def turn_away(self) -> None:
        self.is_turned_away = True

    def close(self) -> None: ...

    def flush(self) -> None: ...

    @property
    def counted(self) -> list[type]:
        return [type(message) for message in self.sent if not isinstance(message, Heartbeat)]


class Scene:
    """A master that has restarted."""

    def __init__(self, journal: Journal | None = None) -> None:
        self.clock, self.machine = Clock(), MasterMachine()
        service: Any = MasterService
        self.service = service(
            self.clock, Ticks(self.clock), journal or NullJournal(), {}, self.machine,
            probe_address=lambda *_: None, is_restored=True,
        )  # fmt: skip

    def connects(self, role: Role, received: int) -> Peer:
        peer = Peer(role, received)
        self.service.peer_opened(peer)
        self.clock.advance(0)
        return peer

    def says(self, peer: Peer, *messages: Message) -> None:
        self.service.peer_said(peer, list(messages))
        self.clock.advance(0)


@pytest.mark.parametrize("role", [Role.WORKER, Role.SUBMIT])
@pytest.mark.parametrize("is_old_open", [True, False])
def test_a_peer_that_has_not_heard_of_the_new_session_starts_over_again(
    role: Role, *, is_old_open: bool
) -> None:
    """It counts the messages of the earlier session, which the master must not take for its own."""
    scene = Scene()
    first = scene.connects(role, 300)
    assert first.counted[0] is StartOver
    if not is_old_open:
        scene.service.peer_closed(first, "cut")
    second = scene.connects(role, 1)
    assert second.counted == first.counted
    assert not second.refused
    assert first.is_turned_away is is_old_open


def test_a_worker_that_starts_over_again_is_not_lost_meanwhile() -> None:
    scene = Scene()
    scene.service.peer_closed(scene.connects(Role.WORKER, 300), "cut")
    node = scene.machine.workers["w1"]
    scene.connects(Role.WORKER, 300)
    assert scene.machine.workers["w1"] is node
    assert scene.machine.membership.lost_count == 0


def test_a_worker_that_has_answered_resumes_the_new_session() -> None:
    """What it lacks comes first: with the confirmation it forgets its own messages."""
    scene = Scene()
    first = scene.connects(Role.WORKER, 300)
    scene.says(first, AttemptsKept((), (), ()))
    scene.service.peer_closed(first, "cut")
    second = scene.connects(Role.WORKER, 1)
    assert second.counted == [MeetWorkers, Received]


class SlowJournal:
    """A journal on a disk that takes long: its test says what is durable."""

    def __init__(self) -> None:
        self.durable = self.appended = 0

    def append(self, records: Sequence[Message]) -> int:
        self.appended += 1
        return self.appended

    def close(self) -> None: ...


def test_the_session_of_a_client_that_is_back_does_not_end_while_the_disk_is_slow() -> None:
    journal = SlowJournal()
    scene = Scene(journal)
    first = scene.connects(Role.SUBMIT, 0)
    scene.says(first, SubmitJob(a_job_spec(JOB)))
    scene.clock.advance(1)
    scene.service.peer_closed(first, "cut")
    second = scene.connects(Role.SUBMIT, 1)
    scene.clock.pump([1.0] * 10)
    journal.durable = journal.appended
    scene.service.journal_durable()
    assert second.counted[0] is Received
    scene.says(second, CloseJob(JOB))
    assert not scene.machine.jobs[JOB].open
