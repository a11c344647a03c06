"""Tests operations on many tasks: they run in slices, and the master serves other requests in
between.
"""

from __future__ import annotations

from ciel.core.events import (
    CancelJob,
    JobChanged,
    ObjectSettled,
    SubmitJob,
    TaskFault,
    TaskReported,
    WatchJob,
)
from ciel.core.graph.invariants import validate
from ciel.core.ids import JobId
from ciel.core.jobs import JobState
from ciel.core.refs import Concrete
from ciel.core.tasks import TaskSpec, TaskState
from ciel.master.state.queries import topics
from ciel.testing.builders import JOB, a_job_spec, a_task, a_worker, place_of
from ciel_tests.scenes.master import Cluster

STEPS = 10


def many(count: int, *, inputs: tuple[str, ...] = (), sees_errors: bool = False) -> list[TaskSpec]:
    return [a_task(f"t{number}", inputs=inputs, sees_errors=sees_errors) for number in range(count)]


def in_small_steps(cluster: Cluster) -> Cluster:
    cluster.machine.bulk.steps_per_tick = STEPS
    cluster.machine.bulk.end_tick()
    return cluster


def turns(cluster: Cluster) -> int:
    """End event-loop iterations until no work is left, and check the graph after each; return their
    number.
    """
    count = 0
    while cluster.machine.has_more:
        assert cluster.machine.due_s() is not None
        cluster.end_turn()
        validate(cluster.machine.graph)
        count += 1
        assert count < 1000
    return count


def state_of(cluster: Cluster, job: str = JOB) -> JobState:
    return cluster.machine.jobs[job].state


def a_cluster(count: int) -> Cluster:
    cluster = Cluster()
    tasks = many(count)
    cluster.job(*tasks, want=[task.outputs[0] for task in tasks])
    return in_small_steps(cluster)


def test_cancelling_runs_in_slices_and_other_jobs_are_served_between_them() -> None:
    cluster = a_cluster(200)
    cluster.says(CancelJob(JobId(JOB), "enough"))
    assert state_of(cluster) is JobState.CANCELLING
    assert 0 < cluster.machine.jobs[JOB].counts[TaskState.CANCELLED] < 4 * STEPS
    other = a_task("other", job="urgent")
    cluster.job(other, want=["other"], job="urgent")
    cluster.joins(a_worker("w1"))
    cluster.done("w1", other)
    assert state_of(cluster, "urgent") is JobState.COMPLETED
    assert state_of(cluster) is JobState.CANCELLING
    assert turns(cluster) > 10
    assert state_of(cluster) is JobState.CANCELLED
    assert cluster.machine.jobs[JOB].counts[TaskState.CANCELLED] == 200


def test_no_task_of_a_job_that_is_being_cancelled_starts() -> None:
    cluster = a_cluster(200)
    cluster.says(CancelJob(JobId(JOB), "enough"))
    cluster.joins(a_worker("w1", slots=50))
    turns(cluster)
    assert not cluster.machine.workers["w1"].assigned


def test_readers_of_a_failed_input_fail_in_slices() -> None:
    cluster = Cluster(a_worker("w1"))
    root, readers = a_task("root"), many(300, inputs=("root",))
    cluster.job(root, *readers, want=[task.outputs[0] for task in readers])
    in_small_steps(cluster)
    cluster.machine.worker_sent(
        "w1", TaskReported(root.id, 1, (), TaskFault("RUNTIME_ERROR", "no"), 0.1), cluster.now_s
    )
    cluster.end_turn()
    assert state_of(cluster) is JobState.ACTIVE
    assert turns(cluster) > 1
    assert state_of(cluster) is JobState.FAILED
    assert cluster.machine.jobs[JOB].counts[TaskState.FAILED] == 301


def test_a_reader_may_fail_while_another_reader_of_the_object_is_processed() -> None:
    cluster = Cluster(a_worker("w1"))
    root = a_task("root")
    makers = [a_task(f"m{n}", inputs=["root"], sees_errors=True) for n in range(150)]
    readers = [a_task(f"t{number}", inputs=[f"m{number}", "root"]) for number in range(150)]
    cluster.job(root, *makers, *readers, want=[task.outputs[0] for task in readers])
    in_small_steps(cluster)
    cluster.machine.worker_sent(
        "w1", TaskReported(root.id, 1, (), TaskFault("RUNTIME_ERROR", "no"), 0.1), cluster.now_s
    )
    turns(cluster)
    assert state_of(cluster) is JobState.FAILED


def test_readers_of_one_object_become_runnable_in_slices() -> None:
    cluster = Cluster(a_worker("w1"))
    root, readers = a_task("root"), many(300, inputs=("root",))
    cluster.job(root, *readers, want=[task.outputs[0] for task in readers])
    in_small_steps(cluster)
    cluster.done("w1", root)
    assert cluster.machine.jobs[JOB].counts[TaskState.WAITING]
    assert turns(cluster) > 1
    assert not cluster.machine.jobs[JOB].counts[TaskState.WAITING]


def test_removing_a_job_runs_in_slices_and_leaves_nothing() -> None:
    cluster = a_cluster(200)
    cluster.says(CancelJob(JobId(JOB), "enough"))
    turns(cluster)
    topics.change(cluster.machine, "remove", {"job": JOB}, cluster.now_s)
    assert JOB not in cluster.machine.jobs
    assert cluster.machine.graph.tasks
    cluster.lines()
    cluster.says(SubmitJob(a_job_spec(JOB)))
    assert "still being removed" in " ".join(cluster.lines())
    assert JOB not in cluster.machine.jobs  # its id is free only when the former job is gone
    assert turns(cluster) > 10
    assert not cluster.machine.graph.tasks
    assert not cluster.machine.graph.objects.nodes
    assert not any(cluster.machine.job_table.task_totals.values())
    cluster.says(SubmitJob(a_job_spec(JOB)))
    assert JOB in cluster.machine.jobs


def test_retrying_a_job_runs_in_slices() -> None:
    cluster = Cluster(a_worker("w1"))
    root, readers = a_task("root"), many(200, inputs=("root",))
    cluster.job(root, *readers, want=[task.outputs[0] for task in readers])
    cluster.failed("w1", root)
    in_small_steps(cluster)
    topics.change(cluster.machine, "retry", {"job": JOB}, cluster.now_s)
    cluster.end_turn()
    assert state_of(cluster) is JobState.ACTIVE
    assert turns(cluster) > 10
    counts = cluster.machine.jobs[JOB].counts
    assert (counts[TaskState.WAITING], counts[TaskState.FAILED]) == (200, 0)


def test_a_large_job_that_cannot_be_retried_fails_again_with_the_reason() -> None:
    cluster = Cluster(a_worker("w1"))
    root = a_task("root")
    seer = a_task("seer", inputs=["root"], sees_errors=True)
    quiet = many(300, inputs=("root",))
    cluster.job(root, *quiet, seer, want=["seer", *[task.outputs[0] for task in quiet]])
    cluster.failed("w1", root)
    cluster.done("w1", seer)
    assert state_of(cluster) is JobState.FAILED
    in_small_steps(cluster)
    topics.change(cluster.machine, "retry", {"job": JOB}, cluster.now_s)
    turns(cluster)
    assert state_of(cluster) is JobState.FAILED
    assert "computed its result from an error" in cluster.machine.jobs[JOB].reason


def test_a_watching_client_receives_results_in_slices_and_the_end_last() -> None:
    cluster = a_cluster(200)
    cluster.says(CancelJob(JobId(JOB), "enough"))
    turns(cluster)
    cluster.machine.outbox.clear()
    cluster.says(WatchJob(JobId(JOB), False), client="late")
    assert len(cluster.machine.outbox) < 100
    turns(cluster)
    told = [message for client, message in cluster.machine.outbox if client == "late"]
    assert sum(isinstance(message, ObjectSettled) for message in told) == 200
    assert [type(message) for message in told].count(JobChanged) == 1
    assert isinstance(told[-1], JobChanged)


def that_holds(count: int) -> Cluster:
    """Return a cluster whose first worker holds all results of an open job."""
    cluster = Cluster(a_worker("w1", slots=count))
    tasks = many(count)
    cluster.job(*tasks, want=[task.outputs[0] for task in tasks], open=True)
    place = frozenset((place_of("w1"),))
    for task in tasks:
        cluster.done("w1", task, *[Concrete(o, 5000, place) for o in task.outputs])
    assert len(cluster.machine.graph.objects.held_at(place_of("w1"))) == count
    return in_small_steps(cluster)


def test_objects_of_a_lost_worker_are_removed_in_slices_and_other_jobs_are_served() -> None:
    cluster = that_holds(200)
    cluster.joins(a_worker("w2", slots=1))
    cluster.loses("w1")
    assert cluster.machine.has_more
    other = a_task("other", job="urgent")
    cluster.job(other, want=["other"], job="urgent")
    assert turns(cluster) > 10
    assert not cluster.machine.graph.objects.held_at(place_of("w1"))
    assert not cluster.machine.context.table.suspects
    assert cluster.machine.jobs[JOB].unsettled == 200


def test_a_worker_that_joins_at_a_lost_workers_address_keeps_its_new_objects() -> None:
    cluster = that_holds(200)
    cluster.loses("w1")
    assert cluster.machine.graph.objects.held_at(place_of("w1"))
    cluster.joins(a_worker("w1", slots=1))
    assert not cluster.machine.graph.objects.held_at(place_of("w1"))
    place = frozenset((place_of("w1"),))
    ((_, _), again), *_ = cluster.machine.workers["w1"].assigned.items()
    made = Concrete(again.outputs[0], 5000, place)
    cluster.done("w1", again.spec, made, attempt=again.attempt)
    turns(cluster)
    assert cluster.machine.graph.objects.held_at(place_of("w1")) == [again.outputs[0]]
    assert not cluster.machine.context.table.suspects
