"""Tests a master whose machine raises an exception: it goes on if its tables agree, and ends with a
reason if not.
"""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.task import Clock

from ciel.access.keys import Role
from ciel.core.errors import CielError
from ciel.core.events import (
    AddTask,
    AssignTask,
    Message,
    ObjectsStored,
    ReleaseObjects,
    RequestRefused,
    SubmitJob,
    WantObjects,
)
from ciel.core.ids import JobId, ObjectId
from ciel.master.journal import NullJournal
from ciel.master.service import MasterService
from ciel.master.state.machine import MasterMachine
from ciel.net.ticks import Ticks
from ciel.testing.builders import JOB, a_job_spec, a_task, place_of, stored
from ciel.wire.session import Hello

TASK = a_task("a")


class Peer:
    """An open connection without a network: `sent` collects the messages sent to it."""

    silent_s = 0.0
    is_congested = False
    queued_bytes = 0

    def __init__(self, role: Role, about: dict[str, Any]) -> None:
        self.hello = Hello(1, "", role, "", b"", about)
        self.sent: list[Message] = []
        self.refused = ""

    def send(self, message: Message) -> None:
        self.sent.append(message)

    def refuse(self, reason: str) -> None:
        self.refused = reason

    def close(self) -> None: ...

    def flush(self) -> None: ...


class Scene:
    """A master with a client and a worker; `ended` has the reason why the master ended."""

    def __init__(self) -> None:
        self.clock, self.machine = Clock(), MasterMachine()
        service: Any = MasterService
        self.service = service(
            self.clock, Ticks(self.clock), NullJournal(), {}, self.machine,
            probe_address=lambda *_: None,
        )  # fmt: skip
        self.ended: list[str] = []
        self.service.on_inconsistent = self.ended.append
        self.client, self.worker = Peer(Role.SUBMIT, {}), Peer(Role.WORKER, WORKER)
        for peer in (self.client, self.worker):
            self.service.peer_opened(peer)
        self.says(self.client, SubmitJob(a_job_spec(JOB)), AddTask(TASK, ()), WANT)

    def says(self, peer: Peer, *messages: Message) -> None:
        self.service.peer_said(peer, list(messages))
        self.clock.advance(0)


WORKER = {
    "worker": "w1", "netloc": place_of("w1"), "host": "h", "slots": 2, "executors": ["stdinout"],
}  # fmt: skip
WANT = WantObjects(JobId(JOB), (ObjectId("a"),))


@pytest.fixture
def scene() -> Scene:
    return Scene()


def fail(machine: MasterMachine, now_s: float) -> None:
    raise ZeroDivisionError("by a bug")


def test_a_master_goes_on_after_an_exception_if_its_tables_agree(scene: Scene) -> None:
    with pytest.raises(ZeroDivisionError):
        scene.service.act(fail)
    scene.clock.advance(0)
    assert scene.ended == []
    scene.says(scene.client, AddTask(a_task("b"), ()), WantObjects(JobId(JOB), (ObjectId("b"),)))
    assert [type(message) for message in scene.worker.sent].count(AssignTask) == 2


def test_a_master_whose_tables_disagree_ends_with_the_reason(scene: Scene) -> None:
    del scene.machine.graph.objects.nodes[ObjectId("a")]
    nothing: Any = None  # no frame can contain that
    scene.says(scene.client, ReleaseObjects(JobId(JOB), nothing, for_good=False))
    (reason,) = scene.ended
    assert "a message ReleaseObjects of client-1: TypeError" in reason
    assert "contradict each other (" in reason
    assert "names a, which was forgotten" in reason
    refusals = [message for message in scene.client.sent if isinstance(message, RequestRefused)]
    assert [refusal.reason for refusal in refusals] == [
        "the master failed to process a message because of a bug in ciel; see the master's log"
    ]


def test_a_master_ends_even_if_it_cannot_reject_the_message(scene: Scene) -> None:
    del scene.machine.graph.objects.nodes[ObjectId("a")]
    nothing: Any = None  # no frame can contain that
    scene.says(scene.client, AddTask(a_task("b"), (nothing,)))  # its job is to end, which fails
    (reason,) = scene.ended
    assert "a message AddTask of client-1: AttributeError" in reason


def test_a_worker_whose_report_raises_is_declared_dead_and_its_tasks_run_again(
    scene: Scene,
) -> None:
    nothing: Any = None  # no frame can contain that
    scene.says(scene.worker, ObjectsStored((stored("x", place_of("w1")), nothing)))
    scene.clock.advance(0)
    assert scene.ended == []
    assert "a bug in ciel" in scene.worker.refused
    other = Peer(Role.WORKER, {**WORKER, "worker": "w2", "netloc": place_of("w2")})
    scene.service.peer_opened(other)
    scene.clock.advance(0)
    assert [type(message) for message in other.sent].count(AssignTask) == 1


def test_ticks_go_on_after_one_that_raised(scene: Scene) -> None:
    scene.service.peer_closed(scene.client, "it is gone")
    del scene.machine.job_table.by_id[JOB]  # the master is to cancel it because its client is gone
    for _ in range(200):
        scene.clock.advance(0.5)
    assert scene.service._checked_at_s == scene.clock.seconds()
    assert scene.ended == []


def test_a_request_refused_before_any_change_is_only_answered(scene: Scene) -> None:
    def refuse(machine: MasterMachine, now_s: float) -> None:
        raise CielError("there is no such job")

    del scene.machine.graph.objects.nodes[ObjectId("a")]
    with pytest.raises(CielError, match="no such job"):
        scene.service.act(refuse)
    scene.clock.advance(0)
    assert scene.ended == []
