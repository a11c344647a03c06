"""Scenes with the master's machine: jobs that start after other jobs have ended, and
jobs that end when too many of their tasks have failed.
"""

from __future__ import annotations

import pytest

from ciel.core.errors import CannotRetryError
from ciel.core.events import AddTask, CancelJob, Change, CloseJob, SubmitJob, WantObjects
from ciel.core.ids import JobId, ObjectId
from ciel.core.jobs import JobState, Predecessor
from ciel.core.tasks import TaskState
from ciel.master.state.compaction import compact
from ciel.master.state.queries.explain import why
from ciel.master.state.restoring import Restoration
from ciel.testing.builders import JOB, a_job_spec, a_task, a_worker, inline
from ciel_tests.scenes.master import Cluster, one

FIRST, SECOND, THIRD = JobId("first"), JobId("second"), JobId("third")
A, B, C = (a_task(name, job=job) for name, job in (("a", FIRST), ("b", SECOND), ("c", THIRD)))


def submits(cluster: Cluster, job: JobId, name: str, *after: JobId, however: bool = False) -> None:
    """A client submits a detached job of one task."""
    spec = a_job_spec(
        job, detached=True, after=[Predecessor(earlier, however) for earlier in after]
    )
    task = a_task(name, job=job)
    want = WantObjects(job, (ObjectId(name),))
    cluster.says(SubmitJob(spec), AddTask(task, ()), want, CloseJob(job))


def restarted(before: Cluster, *, compacts: bool = False) -> Cluster:
    """Return a cluster whose master has read the journal of another one; a worker joins it."""
    after = Cluster()
    after.now_s = before.now_s
    restoration = Restoration(after.machine)
    batches = [(before.now_s, list(before.machine.journal))]
    for _, records in compact(lambda: batches) if compacts else batches:
        for record in records:
            restoration.apply(record, before.now_s)
    assert restoration.skipped == []
    restoration.finish(after.now_s)
    after.joins(a_worker("w1"))
    after.machine.outbox.clear()
    return after


def test_a_job_starts_when_its_predecessor_has_completed() -> None:
    cluster = one(slots=2)
    submits(cluster, FIRST, "a")
    submits(cluster, SECOND, "b", FIRST)
    assert cluster.lines() == ["w1: run a", "client: active: waits for the end of job 1"]
    assert cluster.job_of(SECOND).reason == "waits for the end of job 1"
    task = cluster.machine.graph.tasks[B.id]
    assert why(cluster.machine, task, cluster.now_s) == ["its job waits for the end of job 1"]
    cluster.done("w1", A)
    assert "w1: run b" in cluster.lines()
    assert cluster.job_of(SECOND).reason == ""
    cluster.done("w1", B)
    assert cluster.job_of(SECOND).state is JobState.COMPLETED


def test_a_job_waits_for_all_its_predecessors_also_for_ended_ones() -> None:
    cluster = one(slots=3)
    submits(cluster, FIRST, "a")
    submits(cluster, SECOND, "b")
    cluster.done("w1", A)
    submits(cluster, THIRD, "c", FIRST, SECOND)
    assert "w1: run c" not in cluster.lines()
    cluster.done("w1", B)
    assert "w1: run c" in cluster.lines()


@pytest.mark.parametrize("end", ["failed", "cancelled"])
def test_a_job_is_cancelled_with_the_reason_if_its_predecessor_does_not_complete(end: str) -> None:
    cluster = one()
    submits(cluster, FIRST, "a")
    submits(cluster, SECOND, "b", FIRST)
    submits(cluster, THIRD, "c", SECOND)
    if end == "cancelled":
        cluster.says(CancelJob(FIRST, "why not"))
        cluster.failed("w1", A, "CANCELLED")
    else:
        cluster.failed("w1", A)
    assert cluster.job_of(SECOND).state is JobState.CANCELLED
    assert cluster.job_of(SECOND).reason == f"job 1, which has to complete first, is {end}"
    assert cluster.job_of(THIRD).reason == "job 2, which has to complete first, is cancelled"
    assert cluster.state(B) is TaskState.CANCELLED


def test_a_job_can_follow_one_that_ends_in_any_way() -> None:
    cluster = one()
    submits(cluster, FIRST, "a")
    submits(cluster, SECOND, "b", FIRST, however=True)
    cluster.failed("w1", A)
    assert "w1: run b" in cluster.lines()


def test_a_job_that_failed_already_lets_nothing_start() -> None:
    cluster = one()
    submits(cluster, FIRST, "a")
    cluster.failed("w1", A)
    submits(cluster, SECOND, "b", FIRST)
    assert cluster.job_of(SECOND).state is JobState.CANCELLED


def test_a_job_without_tasks_ends_after_its_predecessor() -> None:
    cluster = one()
    submits(cluster, FIRST, "a")
    after = a_job_spec(SECOND, detached=True, after=[Predecessor(FIRST)])
    cluster.says(SubmitJob(after), CloseJob(SECOND))
    assert cluster.job_of(SECOND).state is JobState.ACTIVE
    cluster.done("w1", A)
    cluster.end_turn()
    assert cluster.job_of(SECOND).state is JobState.COMPLETED


def test_a_job_that_reads_results_of_a_waiting_job_waits_with_it() -> None:
    cluster = one(slots=2)
    submits(cluster, FIRST, "a")
    submits(cluster, SECOND, "b", FIRST)
    reader = a_task("r", inputs=["b"], job=THIRD)
    cluster.job(reader, want=["r"], job=THIRD)
    assert cluster.job_of(THIRD).state is JobState.ACTIVE
    cluster.done("w1", A)
    cluster.done("w1", B)
    assert "w1: run r" in cluster.lines()


def test_a_job_that_nobody_knows_cannot_be_followed() -> None:
    cluster = one()
    cluster.says(SubmitJob(a_job_spec(SECOND, after=[Predecessor(FIRST)])))
    assert cluster.lines() == ["client: refused: there is no job first; it may have been removed"]
    cluster.says(SubmitJob(a_job_spec(SECOND, after=[Predecessor(SECOND)])))
    assert SECOND not in cluster.machine.jobs


def test_a_cancelled_follower_runs_again_after_its_predecessor_did() -> None:
    cluster = one()
    submits(cluster, FIRST, "a")
    submits(cluster, SECOND, "b", FIRST)
    cluster.failed("w1", A)
    with pytest.raises(CannotRetryError, match="is failed: retry that job first"):
        cluster.machine.retry_job(cluster.job_of(SECOND), cluster.now_s)
    cluster.machine.retry_job(cluster.job_of(FIRST), cluster.now_s)
    with pytest.raises(CannotRetryError, match="job 1 has to end first"):
        cluster.machine.retry_job(cluster.job_of(SECOND), cluster.now_s)
    cluster.end_turn()
    cluster.done("w1", A, attempt=2)
    cluster.machine.retry_job(cluster.job_of(SECOND), cluster.now_s)
    cluster.end_turn()
    assert "w1: run b" in cluster.lines()


def test_a_job_is_cancelled_when_more_of_its_tasks_failed_than_may() -> None:
    cluster = one(slots=2)
    tasks = [a_task(name, ordinal=ordinal) for ordinal, name in enumerate("abcd")]
    spec = a_job_spec(detached=True, max_fails=1)
    cluster.says(SubmitJob(spec), *(AddTask(task, ()) for task in tasks))
    cluster.says(WantObjects(JOB, tuple(map(ObjectId, "abcd"))), CloseJob(JOB))
    cluster.failed("w1", tasks[0])
    assert cluster.job_of().state is JobState.ACTIVE
    cluster.failed("w1", tasks[1])
    assert "w1: stop c (1)" in cluster.lines()
    for task in tasks[2:]:
        cluster.failed("w1", task, "CANCELLED")
    assert cluster.job_of().state is JobState.CANCELLED
    assert cluster.job_of().reason == "2 tasks failed, and 1 may (max-fails)"
    cluster.machine.retry_job(cluster.job_of(), cluster.now_s)
    cluster.end_turn()
    assert cluster.job_of().state is JobState.ACTIVE


def test_a_waiting_job_can_be_cancelled() -> None:
    cluster = one()
    submits(cluster, FIRST, "a")
    submits(cluster, SECOND, "b", FIRST)
    cluster.says(CancelJob(SECOND, "why not"))
    assert cluster.job_of(SECOND).reason == "why not"
    cluster.done("w1", A)
    assert cluster.job_of(SECOND).state is JobState.CANCELLED


@pytest.mark.parametrize("compacts", [False, True])
def test_a_master_that_restarts_keeps_the_order(compacts: bool) -> None:
    before = one()
    submits(before, FIRST, "a")
    submits(before, SECOND, "b", FIRST)
    cluster = restarted(before, compacts=compacts)
    cluster.passes(60, "w1")
    assert cluster.lines() == ["w1: run a"]
    cluster.done("w1", A)
    assert "w1: run b" in cluster.lines()


@pytest.mark.parametrize("compacts", [False, True])
def test_a_master_that_restarts_runs_what_may_run(compacts: bool) -> None:
    before = one()
    submits(before, FIRST, "a")
    submits(before, SECOND, "b", FIRST)
    before.done("w1", A)
    before.machine.remove_job(before.job_of(FIRST))
    before.machine.journal.append(Change(0, "remove", {"job": FIRST}))
    before.end_turn()
    cluster = restarted(before, compacts=compacts)
    cluster.passes(60, "w1")
    assert cluster.lines() == ["w1: run b"]
    cluster.done("w1", B, inline("b"))
    assert cluster.job_of(SECOND).state is JobState.COMPLETED


@pytest.mark.parametrize("compacts", [False, True])
def test_a_cancelled_follower_stays_cancelled_after_a_restart(compacts: bool) -> None:
    before = one()
    submits(before, FIRST, "a")
    submits(before, SECOND, "b", FIRST)
    before.failed("w1", A)
    before.machine.remove_job(before.job_of(FIRST))
    before.machine.journal.append(Change(0, "remove", {"job": FIRST}))
    before.end_turn()
    cluster = restarted(before, compacts=compacts)
    cluster.passes(60, "w1")
    assert cluster.lines() == []
    assert cluster.job_of(SECOND).state is JobState.CANCELLED
