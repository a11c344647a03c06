"""Scenes with the master's machine: children that run on the worker of their parent."""

from __future__ import annotations

import pytest

from ciel.core.events import (
    RECALLED,
    AddTask,
    CancelTask,
    InputsLost,
    ReleaseObjects,
    SpawnTask,
    SubmitJob,
    TaskFault,
    TaskReported,
    WantObjects,
)
from ciel.core.ids import JobId, ObjectId
from ciel.core.tasks import Mentions, TaskSpec, TaskState
from ciel.testing.builders import (
    JOB,
    a_job_spec,
    a_task,
    a_worker,
    inline,
    place_of,
    stored,
)
from ciel_tests.scenes.master import Cluster, one, two

# --- children that their parent's worker starts ---------------------------------------------------


def spawning(*, delegates: bool = True) -> tuple[Cluster, TaskSpec, TaskSpec]:
    """Return a cluster where w1 runs a task, the task, and a child that takes over its output."""
    cluster = Cluster(a_worker("w1", slots=3), delegates=delegates)
    parent = a_task("a", mentions=Mentions.ANYTHING)
    child = a_task("a", parent=parent)
    cluster.job(parent, want=["a"])
    cluster.said("w1: run a")
    return cluster, parent, child


def test_a_needed_child_continues_on_the_worker_that_started_it() -> None:
    cluster, parent, child = spawning()
    cluster.worker_says("w1", SpawnTask(child, (), 1, started=True))
    cluster.said()
    assert cluster.state(child) is TaskState.ASSIGNED
    assert cluster.slots_used("w1") == 2
    cluster.done("w1", child, attempt=0)
    cluster.said("client: a is there", "client: completed")
    cluster.worker_says("w1", TaskReported(parent.id, 1, (), None, 0.1))
    assert cluster.slots_used("w1") == 0


def test_whether_a_child_is_needed_is_decided_at_the_end_of_the_tick() -> None:
    cluster, parent, _ = spawning()
    part = a_task("part", parent=parent, ordinal=1)
    whole = a_task("a", inputs=["part"], parent=parent, ordinal=2)
    inner = a_task("inner", parent=part, ordinal=3)
    cluster.worker_says(
        "w1",
        SpawnTask(part, (), 1, started=True),
        SpawnTask(inner, (), 0, started=True),
        TaskReported(inner.id, 0, (inline("inner"),), None, 0.1),
        TaskReported(part.id, 0, (inline("part"),), None, 0.1),
        SpawnTask(whole, (), 1),
        TaskReported(parent.id, 1, (), None, 0.1),
    )
    assert cluster.state(part) is TaskState.DONE
    assert cluster.state(inner) is TaskState.DORMANT
    cluster.said("w1: stop inner (0)", "w1: run a")


@pytest.mark.parametrize("reason", ["not needed", "known", "switched off", "parent superseded"])
def test_a_locally_started_child_that_must_not_run_is_cancelled(reason: str) -> None:
    cluster, parent, child = spawning(delegates=reason != "switched off")
    attempt = 1
    if reason == "not needed":
        child = a_task("aside", parent=parent)
    elif reason == "known":
        cluster.worker_says("w1", SpawnTask(child, (), 1))
        cluster.said("w1: run a")
    elif reason == "parent superseded":
        attempt = 7
    cluster.worker_says("w1", SpawnTask(child, (), attempt, started=True))
    lines = cluster.lines()
    assert CancelTask(child.id, 0) in cluster.sent
    assert lines[1:] == (["w1: run a"] if reason == "switched off" else [])
    cluster.worker_says("w1", TaskReported(child.id, 0, (inline("a"),), None, 0.1))
    assert cluster.job_of().unsettled == 1


def test_a_locally_started_child_of_a_lost_worker_runs_again() -> None:
    cluster, _, child = spawning()
    cluster.worker_says("w1", SpawnTask(child, (), 1, started=True))
    cluster.loses("w1")
    cluster.joins(a_worker("w2"))
    cluster.said("w2: run a")


def test_a_refused_child_is_stopped_and_fails_its_parent() -> None:
    cluster, parent, child = spawning()
    cluster.worker_says("w1", SpawnTask(child._replace(digest="0" * 32), (), 1, started=True))
    assert cluster.state(parent) is TaskState.FAILED
    cluster.lines()
    assert CancelTask(child.id, 0) in cluster.sent


# --- children that run within their parents -------------------------------------------------------


def within(child: TaskSpec, attempt: int = 1) -> SpawnTask:
    return SpawnTask(child, (), attempt, started=True, wanted=True)


def test_a_child_that_runs_within_its_parent_takes_no_slot() -> None:
    cluster, parent, _ = spawning()
    part = a_task("part", parent=parent, ordinal=1)
    inner = a_task("inner", parent=part, ordinal=2)
    cluster.worker_says("w1", within(part), within(inner, 0))
    cluster.said()
    assert cluster.state(part) is cluster.state(inner) is TaskState.ASSIGNED
    assert cluster.slots_used("w1") == 1
    cluster.done("w1", inner, attempt=0)
    cluster.done("w1", part, attempt=0)
    cluster.said()
    assert cluster.state(part) is cluster.state(inner) is TaskState.DONE
    whole = a_task("a", inputs=["part"], parent=parent, ordinal=2)
    cluster.worker_says("w1", SpawnTask(whole, (), 1), TaskReported(parent.id, 1, (), None, 0.1))
    cluster.said("w1: run a")
    assert cluster.slots_used("w1") == 1


def test_a_child_that_a_running_task_needs_runs_on_another_worker() -> None:
    cluster, parent, _ = spawning()
    cluster.joins(a_worker("w2"))
    part = a_task("part", parent=parent, ordinal=1)
    cluster.worker_says("w1", SpawnTask(part, (), 1, wanted=True))
    assert cluster.state(part) is TaskState.ASSIGNED
    cluster.lines()
    cluster.worker_says("w1", TaskReported(parent.id, 1, (inline("a"),), None, 0.1))
    cluster.lines()
    assert cluster.state(part) is TaskState.DORMANT, "nobody needs it any more"
    assert CancelTask(part.id, 1) in cluster.sent


def test_a_parent_runs_again_if_a_child_within_it_is_already_known() -> None:
    """Otherwise the child would run twice, and other effects of it in its parent might be lost."""
    cluster, parent, _ = spawning()
    part = a_task("part", parent=parent, ordinal=1)
    cluster.worker_says("w1", SpawnTask(part, (), 1))
    cluster.worker_says("w1", within(part))
    cluster.lines()
    assert CancelTask(part.id, 0) in cluster.sent
    assert CancelTask(parent.id, 1) in cluster.sent
    assert cluster.state(parent) in (TaskState.RUNNABLE, TaskState.ASSIGNED)
    assert parent.id not in cluster.machine.retry_states
    stopped = TaskFault("CANCELLED", "")
    cluster.worker_says("w1", TaskReported(part.id, 0, (), stopped, 0.1))
    cluster.worker_says("w1", TaskReported(parent.id, 1, (), stopped, 0.1))
    assert cluster.machine.graph.tasks[parent.id].attempt == 2
    assert cluster.slots_used("w1") == 1


def test_a_parent_that_is_given_back_with_its_children_runs_again() -> None:
    cluster, parent, _ = spawning()
    part = a_task("part", parent=parent, ordinal=1)
    cluster.worker_says("w1", within(part))
    cluster.worker_says(
        "w1",
        TaskReported(parent.id, 1, (), TaskFault(RECALLED, ""), 0.1),
        TaskReported(part.id, 0, (), TaskFault("RUNTIME_ERROR", "its own"), 0.1),
    )
    assert cluster.state(part) is TaskState.FAILED
    assert cluster.machine.graph.tasks[parent.id].attempt == 2
    assert cluster.slots_used("w1") == 1


def test_all_nested_tasks_of_a_lost_worker_count_as_lost() -> None:
    cluster, parent, _ = spawning()
    part = a_task("part", parent=parent, ordinal=1)
    inner = a_task("inner", parent=part, ordinal=2)
    cluster.worker_says("w1", within(part), within(inner, 0))
    cluster.loses("w1")
    assert cluster.state(part) is cluster.state(inner) is TaskState.DORMANT
    for task in (parent, part, inner):
        assert cluster.machine.retry_states[task.id].worker_losses == 1
    cluster.joins(a_worker("w2"))
    assert cluster.machine.graph.tasks[parent.id].attempt == 2


# --- undeclared outputs ---------------------------------------------------------------------------


def test_an_undeclared_output_of_a_lost_worker_is_recomputed() -> None:
    cluster = two()
    maker = a_task("a", mentions=Mentions.ANYTHING)
    extra = ObjectId(f"{maker.id}:pub:0")
    reader = a_task("b", inputs=[extra], parent=maker)
    cluster.says(
        SubmitJob(a_job_spec()),
        AddTask(maker, ()),
        WantObjects(JOB, (ObjectId("a"), ObjectId("b"))),
    )
    cluster.said("w1: run a")
    made = stored(extra, place_of("w1"), size_bytes=10**8)
    cluster.worker_says("w1", SpawnTask(reader, (made,), 1))
    cluster.said("w1: run b")
    assert cluster.state(maker) is TaskState.ASSIGNED
    cluster.worker_says("w1", TaskReported(maker.id, 1, (inline("a"), made), None, 0.1))
    cluster.said("client: a is there")
    cluster.loses("w1")
    cluster.said("w2: run a again (2)")
    assert cluster.state(reader) is TaskState.WAITING


def test_an_undeclared_output_of_a_superseded_attempt_is_deleted() -> None:
    cluster = two()
    maker = a_task("a")
    cluster.job(maker, want=["a"], open=True)
    cluster.says(ReleaseObjects(JOB, maker.outputs))
    cluster.said("w1: run a", "w1: stop a (1)")
    extra = ObjectId(f"{maker.id}:pub:0")
    cluster.done("w1", maker, stored("a", place_of("w1")), stored(extra, place_of("w1")))
    cluster.said(f"w1: drop a {extra}")


def test_an_unreadable_copy_is_deleted_if_the_recomputation_is_given_back() -> None:
    cluster = one(slots=3)
    maker = a_task("a", "b")
    readers = [a_task("r1", inputs=["b"]), a_task("r2", inputs=["a"])]
    cluster.job(maker, *readers, want=["r1", "r2"])
    here = place_of("w1")
    cluster.done("w1", maker, stored("a", here), stored("b", here))
    cluster.lines()
    cluster.worker_says("w1", InputsLost(readers[0].id, 1, ((ObjectId("b"), here),), "gone"))
    cluster.said("w1: drop b", "w1: run a again (2)")
    cluster.worker_says("w1", InputsLost(readers[1].id, 1, ((ObjectId("a"), here),), "gone"))
    cluster.said()
    cluster.worker_says("w1", TaskReported(maker.id, 2, (), TaskFault(RECALLED, "no room"), 0.0))
    cluster.said("w1: drop a", "w1: run a again (3)")


def test_a_child_whose_worker_is_lost_before_the_tick_ends_runs_elsewhere() -> None:
    cluster, parent, _ = spawning()
    cluster.machine.worker_joined(a_worker("w2"), cluster.now_s)
    aside = a_task("aside", parent=parent)
    machine, now_s = cluster.machine, cluster.now_s
    machine.worker_sent("w1", SpawnTask(aside, (), 1, started=True), now_s)
    machine.client_sent("client", WantObjects(JobId(JOB), (ObjectId("aside"),)), now_s)
    machine.worker_lost("w1", "it ended", now_s, died=True)
    cluster.end_turn()
    assert machine.graph.tasks[aside.id].worker == "w2"
