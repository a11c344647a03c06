"""Tests attached processes in the master: which changes their workers may request, and when the
object that they wait under is deleted.
"""

from __future__ import annotations

from typing import Any

import pytest

from ciel.core.errors import CielError
from ciel.core.events import (
    AssignTask,
    CancelTask,
    DropObjects,
    Message,
    SpawnTask,
    TaskFault,
    TaskReported,
)
from ciel.core.graph.invariants import validate
from ciel.core.ids import ObjectId, attached_process_id, root_task_id
from ciel.core.jobs import Job, JobState
from ciel.core.refs import Fixed
from ciel.core.tasks import Mentions, Needs, TaskSpec, TaskState
from ciel.master.attaching import change
from ciel.master.state.machine import MasterMachine
from ciel.testing.builders import JOB, a_task, a_worker, inline, place_of

PROCESS = attached_process_id(JOB)
ROOT = root_task_id(JOB)


class Attached:
    """A machine with two workers; a process is attached to the first."""

    def __init__(self) -> None:
        self.machine = MasterMachine(delegates=False)
        for worker in ("w1", "w2"):
            self.machine.worker_joined(a_worker(worker), 1.0)
        self.change("attach", {"job": JOB, "name": "process 7 (sh)"})

    def change(self, topic: str, argument: Any, worker: str = "w1") -> None:
        change(self.machine, worker, topic, argument, now_s=1.0)
        self.end_turn()

    def end_turn(self) -> None:
        self.machine.end_tick(2.0)
        validate(self.machine.graph)

    @property
    def job(self) -> Job:
        return self.machine.jobs[JOB]

    def says(self, *messages: Message, worker: str = "w1") -> None:
        for message in messages:
            self.machine.worker_sent(worker, message, 2.0)
        self.end_turn()

    def sent_to(self, worker: str, kind: type) -> list[Any]:
        """Return the messages of one kind that were sent to a worker, and empty the outbox."""
        found = [m for name, m in self.machine.outbox if name == worker and type(m) is kind]
        self.machine.outbox.clear()
        return found

    def waits(self) -> TaskSpec:
        """Make the process wait for a child; return its continuation."""
        known = self.machine.graph.tasks[ROOT].spec
        child = a_task("made", parent=known)
        rest = a_task(
            *known.outputs, inputs=[PROCESS, "made"], parent=known, ordinal=1,
            mentions=Mentions.ANYTHING,
        )  # fmt: skip
        fixed = (Fixed(PROCESS, place_of("w1")),)
        self.says(
            SpawnTask(child, (), 1), SpawnTask(rest, fixed, 1), TaskReported(ROOT, 1, (), None, 0.1)
        )
        return rest


def test_an_attached_process_is_a_job_whose_root_task_runs_on_its_worker() -> None:
    scene = Attached()
    (assigned,) = scene.sent_to("w1", AssignTask)
    assert (assigned.spec.id, assigned.spec.executor, assigned.spec.name) == (
        ROOT, "proc", "process 7 (sh)",
    )  # fmt: skip
    assert assigned.inputs == (Fixed(PROCESS, place_of("w1")),)
    assert (scene.job.spec.detached, scene.job.open) == (True, False)
    scene.says(TaskReported(ROOT, 1, (inline(assigned.spec.outputs[0]),), None, 0.1))
    assert scene.job.state is JobState.COMPLETED
    assert scene.sent_to("w1", DropObjects) == [DropObjects((PROCESS,))]


def test_a_waiting_process_is_kept_until_its_continuation_ends() -> None:
    scene = Attached()
    rest = scene.waits()
    assert scene.sent_to("w1", DropObjects) == []
    child = next(iter(scene.machine.graph.tasks[ROOT].children.values()))  # type: ignore[union-attr]  # not None here
    worker = scene.machine.graph.tasks[child].worker
    assert worker is not None
    scene.says(TaskReported(child, 1, (inline("made"),), None, 0.1), worker=worker)
    assert rest in [assigned.spec for assigned in scene.sent_to("w1", AssignTask)]
    scene.says(TaskReported(rest.id, 1, (inline(rest.outputs[0]),), None, 0.1))
    assert scene.job.state is JobState.COMPLETED
    assert scene.sent_to("w1", DropObjects) == [DropObjects((PROCESS,))]
    scene.machine.remove_job(scene.job)
    assert scene.machine.graph.fixed.attached == {}
    assert len(scene.machine.graph.objects) == 0


@pytest.mark.parametrize("when", ["in line", "running", "waiting"])
@pytest.mark.parametrize("how", ["cancelled", "lost", "gone"])
def test_a_process_is_released_however_its_job_ends(when: str, how: str) -> None:
    scene = Attached()
    if when == "in line":
        scene.says(TaskReported(ROOT, 1, (), TaskFault("RECALLED", ""), 0.0))
        scene.machine.workers["w1"].slots_used += 10
        scene.end_turn()
    elif when == "waiting":
        scene.waits()
    scene.machine.outbox.clear()
    if how == "cancelled":
        scene.machine.cancel_job(scene.job, "the user said so", 2.0)
        scene.end_turn()
        assert DropObjects((PROCESS,)) in scene.sent_to("w1", DropObjects)
        assert scene.job.reason == "the user said so"
        return
    if how == "lost":
        scene.machine.worker_lost("w1", "its connection ended", 2.0)
        scene.end_turn()
        assert (
            "LOST_FIXED_OBJECT: the attached process in which the task continues is lost; it was at"
            in scene.job.reason
        )
    else:
        scene.change("fail", {"job": JOB, "reason": "process 7 (sh): it ended"})
        assert scene.job.reason == "process 7 (sh): it ended"
    assert scene.job.state is JobState.FAILED
    scene.change("fail", {"job": JOB, "reason": "again"}, worker="w2")
    assert scene.job.reason != "again"


def test_a_worker_can_request_no_other_changes() -> None:
    scene = Attached()
    with pytest.raises(CielError, match="exists already"):
        scene.change("attach", {"job": JOB, "name": ""})
    with pytest.raises(CielError, match="has to join again"):
        scene.change("attach", {"job": "j2", "name": ""}, worker="w3")
    for topic, argument in (("remove", {"job": JOB}), ("attach", None), ("fail", {"job": 1})):
        with pytest.raises(CielError, match="a worker cannot request"):
            scene.change(topic, argument)
    for job in ("no id!", None, 3):
        with pytest.raises(CielError):
            scene.change("attach", {"job": job, "name": ""})
    task = a_task("a", job="other")
    scene.machine.submit_job(scene.job.spec._replace(id=task.job), [(task, ())], (), 2.0)  # type: ignore[list-item]  # like an AddTask
    with pytest.raises(CielError, match="does not belong to an attached process"):
        scene.change("fail", {"job": "other", "reason": "why not"})


def test_an_aborted_task_stops_on_its_worker_and_uses_its_retries() -> None:
    scene = Attached()
    task = a_task("a", job="other")._replace(needs=Needs(retries=1))
    spec = scene.job.spec._replace(id=task.job)
    scene.machine.submit_job(spec, [(task, ())], (ObjectId("a"),), 2.0)  # type: ignore[list-item]  # like an AddTask
    scene.end_turn()
    node = scene.machine.graph.tasks[task.id]
    for attempt in (1, 2):
        worker = node.worker
        assert worker is not None
        scene.machine.outbox.clear()
        assert scene.machine.abort(node)
        assert scene.sent_to(worker, CancelTask) == [CancelTask(task.id, attempt, aborts=True)]
        fault = TaskFault("ABORTED", "a user aborted the task")
        scene.says(TaskReported(task.id, attempt, (), fault, 0.1), worker=worker)
        scene.machine.end_tick(100.0)
    assert node.state is TaskState.FAILED
    assert "ABORTED" in scene.machine.jobs["other"].reason
    assert not scene.machine.abort(node)
