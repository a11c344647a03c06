"""Scenes with the master's machine: growing objects, and suspended processes."""

from __future__ import annotations

from typing import Any

import pytest

from ciel.core.events import (
    RECALLED,
    AddTask,
    AssignTask,
    CancelJob,
    CloseJob,
    ObjectSettled,
    ObjectsStored,
    ReleaseObjects,
    SpawnTask,
    SubmitJob,
    TaskFault,
    TaskReported,
    WantObjects,
    WatchJob,
)
from ciel.core.ids import ObjectId
from ciel.core.refs import Fixed, Reference, Stream
from ciel.core.tasks import Mentions, TaskState
from ciel.testing.builders import (
    JOB,
    a_chain,
    a_job_spec,
    a_task,
    a_worker,
    inline,
    place_of,
    stored,
)
from ciel_tests.scenes.master import Cluster, inputs_lost, opened, why

# --- growing objects ------------------------------------------------------------------------------


class Reading(Cluster):
    """A task writes `c0` on w1; a second one reads it on w2 and writes `c1`; a third one reads `c1`
    on w3. All outputs grow until they are settled.
    """

    def __init__(self, **options: Any) -> None:
        names = ("w1", "w2", "w3")
        super().__init__(*(a_worker(name, executors=[name]) for name in names))
        self.joins(a_worker("busy", executors=names))  # could run all of them, but has no room
        self.machine.workers["busy"].credit.limit = 0
        self.first = a_task("c0", executor="w1")
        self.second = a_task("c1", inputs=["c0"], executor="w2", **options)
        self.third = a_task("c2", inputs=["c1"], executor="w3")
        self.job(self.first, self.second, self.third, want=["c2"])
        self.worker_says("w1", opened(self.first, "w1"))
        self.worker_says("w2", opened(self.second, "w2"))
        self.said("w1: run c0", "w2: run c1", "w3: run c2")

    def reports(self) -> None:
        """Let both readers report that they are done, which does not count yet."""
        self.done("w2", self.second, stored("c1", place_of("w2")))
        self.done("w3", self.third, stored("c2", place_of("w3")))
        self.said()

    def ref(self, name: str) -> Reference:
        return self.machine.graph.objects.reference(ObjectId(name))


def test_a_client_that_watches_late_is_sent_growing_objects() -> None:
    cluster = Cluster(a_worker("w1", slots=2))
    begun, other = a_task("a"), a_task("b")
    cluster.job(begun, other, want=["a", "b"])
    cluster.worker_says("w1", opened(begun, "w1"))
    cluster.machine.outbox.clear()
    cluster.says(WatchJob(JOB), client="late")
    settled, _ = [message for peer, message in cluster.machine.outbox if peer == "late"]
    assert settled == ObjectSettled(JOB, Stream(ObjectId("a"), frozenset((place_of("w1"),))))


def test_a_report_is_held_until_the_input_is_complete_but_frees_its_slot_at_once() -> None:
    cluster = Reading()
    cluster.reports()
    assert cluster.slots_used("w2") == cluster.slots_used("w3") == 0
    assert cluster.state(cluster.second) is cluster.state(cluster.third) is TaskState.ASSIGNED
    assert isinstance(cluster.ref("c1"), Stream)
    assert "is held until c0 is complete" in why(cluster, cluster.second.id)
    cluster.done("w1", cluster.first)
    cluster.said("client: c2 is there", "w2: drop c1", "client: completed")
    assert not cluster.machine.attempts.held_reports


def test_a_reader_is_sent_a_growing_input_as_a_stream() -> None:
    cluster = Cluster(a_worker("w1"), a_worker("w2"))
    first, second = a_chain(2)
    cluster.job(first, second, want=["c1"])
    cluster.machine.outbox.clear()
    cluster.worker_says("w1", opened(first, "w1"))
    sent = [message for _, message in cluster.machine.outbox if isinstance(message, AssignTask)]
    assert [message.inputs for message in sent] == [opened(first, "w1").refs]


@pytest.mark.parametrize("end", ["recalled", "lost", "not to be had"])
def test_readers_are_stopped_before_their_input_is_recomputed(end: str) -> None:
    cluster = Reading()
    stops, drops = ["w2: stop c1 (1)", "w3: stop c2 (1)"], ["w2: drop c0", "w3: drop c1"]
    if end == "lost":
        cluster.loses("w1")
    elif end == "not to be had":
        cluster.worker_says("w2", inputs_lost(cluster.second, place_of("w1")))
        del stops[0]  # it has ended already
    else:
        fault = TaskFault(RECALLED, "")
        cluster.worker_says("w1", TaskReported(cluster.first.id, 1, (), fault, 0.0))
    cluster.said(*stops, *drops, *(["w1: run c0 again (2)"] if end == "recalled" else []))
    assert cluster.state(cluster.second) is cluster.state(cluster.third) is TaskState.WAITING


def test_a_reader_that_has_ended_is_not_stopped_when_its_stream_breaks() -> None:
    cluster = Reading()
    cluster.worker_says("w2", inputs_lost(cluster.second, place_of("w4")))
    cluster.lines()
    cluster.loses("w1")
    assert "w2: drop c0" in cluster.lines()


def test_a_reader_that_reports_a_complete_copy_in_the_same_tick_keeps_it() -> None:
    cluster = Reading()
    cluster.machine.worker_lost("w1", "its connection ended", cluster.now_s)
    whole = ObjectsStored((stored("c0", place_of("w2")),))
    cluster.machine.worker_sent("w2", whole, cluster.now_s)
    cluster.end_turn()
    assert [line for line in cluster.lines() if "drop" in line] == ["w3: drop c1"]


@pytest.mark.parametrize("end", ["recalled", "lost", "failed", "cancelled"])
def test_a_held_report_is_dropped_with_its_outputs(end: str) -> None:
    cluster = Reading()
    cluster.reports()
    if end == "recalled":
        fault = TaskFault(RECALLED, "")
        cluster.worker_says("w1", TaskReported(cluster.first.id, 1, (), fault, 0.0))
    elif end == "lost":
        cluster.loses("w1")
    elif end == "failed":
        cluster.failed("w1", cluster.first)
    else:
        cluster.says(CancelJob(JOB, "the user said so"))
    drops = [line for line in cluster.lines() if "drop" in line]
    assert sorted(drops) == ["w2: drop c0", "w2: drop c1", "w3: drop c1", "w3: drop c2"]
    assert not cluster.machine.attempts.held_reports
    assert cluster.state(cluster.second) is not TaskState.ASSIGNED
    assert cluster.slots_used("w2") == 0


def test_a_stopped_reader_is_not_blamed_and_its_late_report_is_ignored() -> None:
    cluster = Reading()
    cluster.loses("w1")
    cluster.lines()
    cluster.failed("w2", cluster.second)
    cluster.done("w3", cluster.third, stored("c2", place_of("w3")))
    cluster.said("w3: drop c2")
    assert cluster.state(cluster.second) is cluster.state(cluster.third) is TaskState.WAITING
    cluster.joins(a_worker("w4", executors=["w1"]))
    cluster.said("w4: run c0 again (2)")
    cluster.done("w4", cluster.first, attempt=2)
    cluster.done("w2", cluster.second, attempt=2)
    cluster.done("w3", cluster.third, attempt=2)
    cluster.said(
        "w2: run c1 again (2)", "w3: run c2 again (2)", "client: c2 is there", "client: completed"
    )


def test_a_report_in_the_same_tick_as_the_break_is_ignored() -> None:
    cluster = Reading()
    fault = TaskFault(RECALLED, "")
    made = (stored("c1", place_of("w2")),)
    cluster.machine.worker_sent(
        "w1", TaskReported(cluster.first.id, 1, (), fault, 0.0), cluster.now_s
    )
    cluster.worker_says("w2", TaskReported(cluster.second.id, 1, made, None, 0.1))
    assert cluster.state(cluster.second) is TaskState.WAITING
    assert "w2: drop c1" in cluster.lines()


def test_a_reader_whose_worker_is_lost_while_its_report_is_held_runs_again() -> None:
    cluster = Reading()
    cluster.reports()
    cluster.loses("w2")
    cluster.said("w3: drop c2", "w3: drop c1")
    assert cluster.state(cluster.second) is TaskState.RUNNABLE
    assert not cluster.machine.retry_states
    cluster.joins(a_worker("w5", executors=["w2"]))
    cluster.said("w5: run c1 again (2)")


def test_readers_of_a_failed_stream_fail_unless_they_see_errors() -> None:
    cluster = Reading(sees_errors=True)
    cluster.failed("w1", cluster.first)
    cluster.said(
        "w2: stop c1 (1)", "w3: stop c2 (1)", "w2: drop c0", "w3: drop c1", "w2: run c1 again (2)"
    )
    cluster = Reading()
    cluster.failed("w1", cluster.first)
    cluster.said(
        "w2: stop c1 (1)",
        "w3: stop c2 (1)",
        "w2: drop c0",
        "w3: drop c1",
        "client: c2 is DEPENDENCY_FAILED",
        "client: failed: DEPENDENCY_FAILED: input c0 failed (RUNTIME_ERROR): exit status 3",
    )


@pytest.mark.parametrize("end", ["whole", "whole and small", "broken"])
def test_a_complete_copy_of_a_stream_settles_nothing_before_its_producer_ends(end: str) -> None:
    cluster = Reading()
    cluster.worker_says("w2", ObjectsStored((stored("c0", place_of("w2")),)))
    cluster.said()
    assert isinstance(cluster.ref("c0"), Stream)
    if end == "broken":
        cluster.loses("w1")
        assert "w2: drop c0" in cluster.lines()
    elif end == "whole and small":
        cluster.done("w1", cluster.first, inline("c0"))
        cluster.said("w2: drop c0")
    else:
        cluster.done("w1", cluster.first, stored("c0", place_of("w1")))
        cluster.said()
        assert cluster.ref("c0") == stored("c0", place_of("w1"), place_of("w2"))


def test_a_stream_that_becomes_a_value_is_not_blamed_on_its_reader() -> None:
    cluster = Reading()
    cluster.done("w1", cluster.first, inline("c0"))
    cluster.worker_says("w2", inputs_lost(cluster.second, place_of("w1")))
    cluster.said("w3: stop c2 (1)", "w3: drop c1", "w2: run c1 again (2)")
    assert not any(blame.missing_inputs for blame in cluster.machine.retry_states.values())


# --- suspended processes --------------------------------------------------------------------------


class Waiting(Cluster):
    """A task left a suspended process on w1, and a continuation that produces its output."""

    def __init__(self, *, keep: bool = False) -> None:
        super().__init__(a_worker("w1"), a_worker("w2"))
        self.first = a_task("out", mentions=Mentions.ANYTHING)
        self.process = ObjectId(f"{self.first.id}:fixed:0")
        self.rest = a_task(
            "out", inputs=[self.process], parent=self.first, mentions=Mentions.ANYTHING
        )
        keeping = a_job_spec(keep=keep)
        self.says(SubmitJob(keeping), AddTask(self.first, ()), WantObjects(JOB, self.first.outputs))
        self.said("w1: run out")

    def wait(self, worker: str = "w1", attempt: int = 1) -> None:
        fixed = (Fixed(self.process, place_of(worker)),)
        self.worker_says(
            worker,
            SpawnTask(self.rest, fixed, attempt),
            TaskReported(self.first.id, attempt, fixed, None, 0.01),
        )


@pytest.mark.parametrize("keep", [False, True])
def test_a_continuation_runs_at_its_process_which_ends_with_it(keep: bool) -> None:
    cluster = Waiting(keep=keep)
    cluster.wait()
    cluster.said("w1: run out")
    cluster.done("w1", cluster.rest)
    cluster.said("client: out is there", f"w1: drop {cluster.process}")


def test_a_continuation_waits_for_room_on_the_worker_of_its_process() -> None:
    cluster = Waiting()
    worker = cluster.machine.workers["w1"]
    worker.slots_used += 10
    cluster.wait()
    cluster.passes(10)
    cluster.said()
    assert list(worker.bound) == [cluster.machine.graph.tasks[cluster.rest.id]]
    assert "it waits for room on worker w1" in why(cluster, cluster.rest.id)
    worker.slots_used -= 10
    cluster.passes(1)
    cluster.said("w1: run out")
    worker.slots_used += 10  # it is queued there, and is not recalled
    cluster.passes(10)
    cluster.said()


def test_a_process_whose_worker_is_lost_is_created_again_on_another() -> None:
    cluster = Waiting()
    cluster.wait()
    cluster.said("w1: run out")
    cluster.loses("w1")
    cluster.said("w2: run out again (2)")
    cluster.wait("w2", attempt=2)
    cluster.said("w2: run out again (2)")
    cluster.done("w2", cluster.rest, attempt=2)
    cluster.said("client: out is there", f"w2: drop {cluster.process}")


def test_a_continuation_is_not_needed_if_the_rerun_does_not_wait() -> None:
    cluster = Waiting()
    cluster.wait()
    cluster.loses("w1")
    cluster.said("w1: run out", "w2: run out again (2)")
    cluster.done("w2", cluster.first, attempt=2)
    cluster.said("client: out is there")
    assert cluster.state(cluster.rest) is TaskState.DORMANT


def test_a_second_process_with_the_same_name_is_dropped() -> None:
    cluster = Waiting()
    cluster.wait()
    cluster.said("w1: run out")
    graph = cluster.machine.graph
    task = graph.tasks[cluster.first.id]
    graph.reopen(task)
    graph.make_runnable(task)
    cluster.end_turn()
    cluster.said("w2: run out again (2)")
    cluster.wait("w2", attempt=2)
    cluster.said(f"w2: drop {cluster.process}")


@pytest.mark.parametrize("end", ["cancelled", "failed"])
def test_a_process_ends_with_its_job(end: str) -> None:
    cluster = Waiting()
    cluster.machine.workers["w1"].slots_used += 10
    cluster.wait()
    if end == "cancelled":
        cluster.says(CancelJob(JOB, "enough"))
    else:
        cluster.says(ReleaseObjects(JOB, cluster.first.outputs), CloseJob(JOB))
    assert f"w1: drop {cluster.process}" in cluster.lines()
