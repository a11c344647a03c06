"""Scenes with the master's machine: tasks sent before their inputs exist, and any-of inputs."""

from __future__ import annotations

import pytest

from ciel.core.events import (
    RECALLED,
    AddTask,
    AssignTask,
    CancelJob,
    InputsLost,
    ObjectsStored,
    ReleaseObjects,
    SpawnTask,
    SubmitJob,
    TaskFault,
    TaskReported,
    WantObjects,
)
from ciel.core.ids import ObjectId
from ciel.core.jobs import JobState
from ciel.core.refs import Future, Reference
from ciel.core.tasks import TaskSpec, TaskState
from ciel.master.state.placement.eager_dispatch import EAGER_MAX
from ciel.master.state.workers import WorkerFacts
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
from ciel_tests.scenes.master import Cluster, opened, two, why

# --- eager dispatch -------------------------------------------------------------------------------


def delegating(*workers: WorkerFacts) -> Cluster:
    return Cluster(*(workers or (a_worker("w1"), a_worker("w2"))), delegates=True)


def test_successors_are_sent_to_the_producers_worker_and_start_there() -> None:
    cluster = delegating()
    first, second, third = a_chain(3)
    cluster.job(first, second, third, want=["c2"])
    cluster.said("w1: run c0", "w1: run c1", "w1: run c2")
    assert cluster.state(second) is cluster.state(third) is TaskState.WAITING
    assert cluster.slots_used("w1") == 1
    cluster.done("w1", first)
    cluster.said()
    assert cluster.state(second) is TaskState.ASSIGNED
    assert cluster.slots_used("w1") == 1
    cluster.worker_says(
        "w1",
        *(
            TaskReported(task.id, 1, (inline(task.outputs[0]),), None, 0.01)
            for task in (second, third)
        ),
    )
    cluster.said("client: c2 is there", "client: completed")
    assert cluster.slots_used("w1") == 0


def test_an_input_that_does_not_exist_yet_is_sent_as_a_future() -> None:
    cluster = delegating()
    first, second = a_chain(2)
    cluster.job(first, second, want=["c1"])
    sent = [message for _, message in cluster.machine.outbox if isinstance(message, AssignTask)]
    assert [message.inputs for message in sent] == [(), (Future(ObjectId("c0")),)]


def test_eager_dispatch_can_be_switched_off() -> None:
    cluster = two()
    cluster.job(*a_chain(2), want=["c1"])
    cluster.said("w1: run c0")


def test_a_worker_gets_a_bounded_number_of_eager_tasks_at_a_time() -> None:
    cluster = delegating(a_worker("w1"))
    chain = a_chain(200)
    cluster.job(*chain, want=["c199"])
    assert len(cluster.lines()) == 1 + EAGER_MAX
    for task in chain[: EAGER_MAX // 2]:
        cluster.done("w1", task)
    assert len(cluster.lines()) == EAGER_MAX // 2
    for task in chain[EAGER_MAX // 2 :]:
        cluster.done("w1", task)
    assert cluster.job_of().state is JobState.COMPLETED


def test_no_more_successors_are_sent_eagerly_than_could_run_at_once() -> None:
    cluster = delegating(a_worker("w1", slots=2), a_worker("w2", slots=2))
    split = a_task("split")
    parts = [a_task(f"part{n}", inputs=["split"], ordinal=n) for n in range(5)]
    cluster.job(split, *parts, want=[part.outputs[0] for part in parts])
    cluster.said("w1: run split", "w1: run part0", "w1: run part1")


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(a_task("b", inputs=["c0", "elsewhere"]), id="made-elsewhere"),
        pytest.param(a_task("b", inputs=["c0"], executor="rare"), id="no-executor"),
        pytest.param(a_task("b", inputs=["c0"], slots=2), id="no-slots"),
        pytest.param(a_task("b", inputs=["c0", "large"]), id="large-input-elsewhere"),
        pytest.param(a_task("b", inputs=["c0", *map(str, range(20))]), id="many-inputs"),
    ],
)
def test_a_successor_that_the_worker_could_not_start_at_once_is_not_sent_eagerly(
    other: TaskSpec,
) -> None:
    cluster = Cluster(delegates=True)
    cluster.joins(a_worker("w1"))
    first = a_chain(1)[0]
    elsewhere = a_task("elsewhere", executor="rare")
    large = stored("large", place_of("w2"), size_bytes=10**9)
    values = [inline(str(n)) for n in range(20)]
    cluster.says(SubmitJob(a_job_spec()), AddTask(first, ()), AddTask(elsewhere, ()))
    cluster.says(AddTask(other, (large, *values)))
    cluster.joins(a_worker("w2", executors=["rare"], slots=2))
    cluster.says(WantObjects(JOB, (ObjectId("b"),)))
    assert "w1: run c0" in cluster.lines()
    assert cluster.machine.graph.tasks[other.id] not in cluster.machine.eager.tasks


@pytest.mark.parametrize(
    "end", ["failed", "recalled", "lost", "released", "cancelled", "delegated"]
)
def test_eager_tasks_are_cancelled_when_their_input_will_not_come(end: str) -> None:
    cluster = delegating()
    first, second, third = a_chain(3)
    cluster.job(first, second, third, want=["c2"], open=True)
    cluster.said("w1: run c0", "w1: run c1", "w1: run c2")
    stops = ["w1: stop c1 (1)", "w1: stop c2 (1)"]
    if end == "failed":
        cluster.failed("w1", first)
        cluster.said(*stops, "client: c2 is DEPENDENCY_FAILED")
    elif end == "recalled":
        fault = TaskFault(RECALLED, "")
        cluster.worker_says("w1", TaskReported(first.id, 1, (), fault, 0.0))
        assert cluster.lines()[:2] == stops
        return
    elif end == "lost":
        cluster.loses("w1")
        cluster.said("w2: run c0 again (2)", "w2: run c1 again (2)", "w2: run c2 again (2)")
        return
    elif end == "released":
        cluster.says(ReleaseObjects(JOB, third.outputs))
        cluster.said("w1: stop c0 (1)", *stops)
    elif end == "cancelled":
        cluster.says(CancelJob(JOB, "enough"))
        assert cluster.lines() == [*stops, "w1: stop c0 (1)", "client: c2 is CANCELLED"]
        assert cluster.job_of().state is JobState.CANCELLING
        for task in (second, third, first):
            cluster.failed("w1", task, "CANCELLED")
        cluster.said("client: cancelled: enough")
    else:
        child = a_task("c0", inputs=["never"], parent=first)
        cluster.worker_says("w1", SpawnTask(child, (), 1))
        cluster.said(*stops)
    assert not cluster.machine.eager.tasks


def test_the_slot_of_a_cancelled_eager_task_is_free_once_the_worker_reports_it() -> None:
    cluster = delegating(a_worker("w1"))
    first, second = a_chain(2)
    cluster.job(first, second, want=["c1"], open=True)
    cluster.says(ReleaseObjects(JOB, second.outputs))
    cluster.said("w1: run c0", "w1: run c1", "w1: stop c0 (1)", "w1: stop c1 (1)")
    assert cluster.slots_used("w1") == 2
    cluster.done("w1", first)
    cluster.failed("w1", second, "CANCELLED")
    assert cluster.slots_used("w1") == 0
    cluster.says(WantObjects(JOB, second.outputs))
    cluster.said("w1: run c0 again (2)", "w1: run c1 again (2)")


def test_an_eager_task_reads_a_growing_input_and_its_own_successor_waits() -> None:
    cluster = delegating(a_worker("w1", slots=2))
    first, second, third = a_chain(3)
    cluster.job(first, second, third, want=["c2"])
    cluster.said("w1: run c0", "w1: run c1", "w1: run c2")
    cluster.worker_says("w1", opened(first, "w1"))
    cluster.said("w1: stop c2 (1)")
    cluster.done("w1", second)
    cluster.said()
    cluster.done("w1", first)
    cluster.said("w1: run c2 again (2)")


def test_an_eager_task_is_moved_if_its_input_grows_on_another_worker() -> None:
    cluster = delegating()
    first, second = a_chain(2)
    cluster.job(first, second, want=["c1"])
    cluster.said("w1: run c0", "w1: run c1")
    cluster.worker_says("w1", opened(first, "w2"))
    cluster.said("w1: stop c1 (1)", "w2: run c1 again (2)")


def test_a_worker_may_give_back_an_eager_task() -> None:
    cluster = delegating(a_worker("w1"))
    first, second = a_chain(2)
    cluster.job(first, second, want=["c1"])
    cluster.failed("w1", second, RECALLED)
    assert not cluster.machine.eager.tasks
    cluster.said("w1: run c0", "w1: run c1")
    cluster.done("w1", first)
    cluster.said("w1: run c1 again (2)")


def test_an_eager_task_is_cancelled_if_its_input_appears_on_another_worker() -> None:
    cluster = delegating(a_worker("w1"))
    first, second = a_chain(2)
    cluster.job(first, second, want=["c1"])
    cluster.joins(a_worker("w2"))
    cluster.said("w1: run c0", "w1: run c1")
    cluster.worker_says("w2", ObjectsStored((stored("c0", place_of("w2")),)))
    assert cluster.lines()[:1] == ["w1: stop c1 (1)"]


# --- any-of inputs --------------------------------------------------------------------------------

EITHER = a_task("either", any_of=["a", "b"])


def assigned_inputs(cluster: Cluster, spec: TaskSpec) -> tuple[Reference, ...]:
    told = [m for m in cluster.sent if isinstance(m, AssignTask) and m.spec == spec]
    return told[-1].inputs


def test_a_task_runs_with_one_alternative_and_the_other_producers_stop_at_its_end() -> None:
    cluster = two()
    a, b = a_task("a"), a_task("b", ordinal=1)
    cluster.job(a, b, EITHER, want=["either"])
    assert sorted(cluster.lines()) == ["w1: run b", "w2: run a"]
    at_w1 = stored("b", place_of("w1"))
    cluster.done("w1", b, at_w1)
    cluster.said("w1: run either")
    assert assigned_inputs(cluster, EITHER) == (Future(ObjectId("a")), at_w1)
    cluster.done("w1", EITHER)
    assert "w2: stop a (1)" in cluster.lines()


def test_a_task_that_cannot_fetch_its_alternative_waits_for_any_again() -> None:
    cluster = two()
    a, b = a_task("a"), a_task("b", ordinal=1)
    cluster.job(a, b, EITHER, want=["either"])
    cluster.done("w1", b, stored("b", place_of("w1")))
    cluster.lines()
    losses = ((ObjectId("b"), place_of("w1")),)
    cluster.worker_says("w1", InputsLost(EITHER.id, 1, losses, "it is gone"))
    cluster.said("w1: drop b", "w1: run b again (2)")
    cluster.done("w2", a)
    cluster.said("w2: run either again (2)")
    assert assigned_inputs(cluster, EITHER) == (inline("a"), Future(ObjectId("b")))


def test_a_task_with_any_of_inputs_is_not_sent_eagerly_but_its_successor_is() -> None:
    cluster = Cluster(a_worker("w1", slots=2), delegates=True)
    a, last = a_task("a"), a_task("last", inputs=["either"])
    cluster.job(a, a_task("b", ordinal=1), EITHER, last, want=["last"])
    assert sorted(cluster.lines()) == ["w1: run a", "w1: run b"]
    cluster.done("w1", a)
    cluster.said("w1: run either", "w1: run last")


def test_a_task_with_a_delay_is_not_sent_eagerly() -> None:
    cluster = Cluster(a_worker("w1", slots=2), delegates=True)
    first, late = a_task("a"), a_task("late", inputs=["a"], delay_s=1.0)
    cluster.job(first, late, want=["late"])
    assert cluster.lines() == ["w1: run a"]
    cluster.done("w1", first)
    assert cluster.lines() == []
    cluster.passes(1.0)
    cluster.said("w1: run late")


def test_a_task_with_any_of_inputs_explains_what_it_waits_for() -> None:
    cluster = Cluster()
    first = a_task("a", name="first")
    choice = a_task("either", inputs=["n"], any_of=["a", "b"], name="choice")
    bad = a_task("b", slots=9)
    cluster.job(first, a_task("n", name="other"), bad, choice, want=["either"])
    assert why(cluster, "choice") == (
        "it waits for n, produced by task other, which is runnable\n"
        "it waits for any of 2 objects:\n"
        "a, produced by task first, which is runnable\n"
        f"b, produced by task {bad.id}, which is runnable"
    )
    cluster.joins(a_worker("w1"))
    lines = why(cluster, "choice").splitlines()
    assert lines[-1] == "b, which has failed"
