"""Scenes with the master's machine: clients that connect and disconnect, and their requests."""

from __future__ import annotations

import pytest

from ciel.core.errors import CannotRetryError, JobNotEndedError
from ciel.core.events import (
    AddTask,
    AssignTask,
    CancelJob,
    CloseJob,
    JobChanged,
    JobNoted,
    Message,
    ReleaseObjects,
    SubmitJob,
    TaskReported,
    WantObjects,
    WatchJob,
    WorkerSeen,
)
from ciel.core.ids import JobId, ObjectId
from ciel.core.jobs import JobState
from ciel.core.tasks import Mentions
from ciel.master.state.jobs import PROGRESS_INTERVAL_S
from ciel.master.state.subscriptions import CLIENT_GRACE_S
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
from ciel_tests.scenes.master import Cluster, one

# --- clients that connect and disconnect ----------------------------------------------------------


def test_a_job_is_cancelled_when_its_client_stays_away() -> None:
    cluster = one()
    task = a_task("a")
    cluster.job(task, want=["a"])
    cluster.said("w1: run a")
    cluster.client_goes()
    cluster.passes(CLIENT_GRACE_S - 0.1)
    cluster.said()
    cluster.passes(0.2)
    cluster.said("w1: stop a (1)")
    cluster.failed("w1", task, "CANCELLED")
    cluster.said()
    assert str(cluster.job_of().state) == "cancelled"
    assert cluster.job_of().reason == "its client was disconnected for too long"


@pytest.mark.parametrize("comes_back", [WatchJob(JOB), SubmitJob(a_job_spec())])
def test_a_client_that_reconnects_in_time_keeps_its_job(comes_back: Message) -> None:
    cluster = one()
    cluster.job(a_task("a"), want=["a"])
    cluster.said("w1: run a")
    cluster.client_goes()
    cluster.passes(CLIENT_GRACE_S - 0.1)
    cluster.says(comes_back, client="client again")
    cluster.passes(60)
    cluster.machine.outbox.clear()
    assert str(cluster.job_of().state) == "active"
    cluster.client_goes("client again")
    cluster.passes(CLIENT_GRACE_S + 0.1)
    cluster.said("w1: stop a (1)")


def test_a_client_that_reconnects_before_its_old_connection_ends_keeps_its_job() -> None:
    cluster = one()
    cluster.job(a_task("a"), want=["a"])
    cluster.says(WatchJob(JOB), client="client again")
    cluster.client_goes()
    cluster.passes(60)
    assert str(cluster.job_of().state) == "active"
    cluster.client_goes("client again")
    cluster.passes(CLIENT_GRACE_S + 0.1)
    assert str(cluster.job_of().state) == "cancelling"


def test_a_client_that_reconnects_receives_the_existing_results() -> None:
    cluster = one(slots=2)
    first, second = a_task("a"), a_task("b")
    cluster.job(first, second, want=["a", "b"])
    cluster.client_goes()
    cluster.done("w1", first)
    cluster.said("w1: run a", "w1: run b")
    cluster.says(WatchJob(JOB), client="client again")
    cluster.said("client again: a is there", "client again: active")
    cluster.done("w1", second)
    cluster.said("client again: b is there", "client again: completed")


def test_a_detached_job_goes_on_without_its_client() -> None:
    cluster = one()
    task = a_task("a")
    cluster.job(task, want=["a"], detached=True)
    cluster.client_goes()
    cluster.passes(60)
    cluster.said("w1: run a")
    cluster.done("w1", task)
    cluster.said()
    assert str(cluster.job_of().state) == "completed"


def test_watching_an_ended_job_sends_its_results_and_end() -> None:
    cluster = one()
    task = a_task("a")
    cluster.job(task, want=["a"])
    cluster.done("w1", task)
    cluster.said("w1: run a", "client: a is there", "client: completed")
    cluster.says(WatchJob(JOB), client="late")
    cluster.said("late: a is there", "late: completed")


def test_progress_is_sent_at_intervals() -> None:
    cluster = one(slots=9)
    tasks = [a_task(f"t{number}") for number in range(9)]
    cluster.job(*tasks, want=[task.outputs[0] for task in tasks])
    cluster.said(*[f"w1: run t{number}" for number in range(9)])
    before = cluster.progress
    for number, task in enumerate(tasks[:5]):
        cluster.done("w1", task)
        cluster.said(f"client: t{number} is there")
    assert cluster.progress == before
    assert cluster.machine.due_s() == pytest.approx(cluster.now_s + PROGRESS_INTERVAL_S)
    cluster.passes(PROGRESS_INTERVAL_S)
    cluster.said()
    assert cluster.progress == before + 1
    assert cluster.machine.due_s() is None


# --- placing --------------------------------------------------------------------------------------


def test_a_task_with_higher_priority_is_placed_first() -> None:
    cluster = Cluster()
    cluster.job(a_task("a"), a_task("b", priority=3), want=["a", "b"])
    cluster.said()
    cluster.joins(a_worker("w1"))
    cluster.said("w1: run b", "w1: run a")


def test_a_worker_gets_tasks_for_its_slots_and_a_small_prefetch() -> None:
    cluster = one(slots=2)
    tasks = [a_task(f"t{number}") for number in range(9)]
    cluster.job(*tasks, want=[task.outputs[0] for task in tasks])
    limit = cluster.machine.workers["w1"].credit.limit
    assert 2 < limit < 9
    cluster.said(*[f"w1: run t{number}" for number in range(limit)])


def test_hundreds_of_short_tasks_are_prefetched() -> None:
    cluster = one()
    tasks = [a_task(f"t{number}") for number in range(1000)]
    cluster.job(*tasks, want=[task.outputs[0] for task in tasks])
    for task in tasks[:100]:
        cluster.worker_says("w1", TaskReported(task.id, 1, (inline(task.outputs[0]),), None, 1e-4))
    assert cluster.slots_used("w1") > 100


def test_a_reader_is_sent_to_the_holder_of_its_input_with_the_reference() -> None:
    cluster = Cluster(a_worker("w1"), a_worker("w2"), a_worker("w3"))
    reader = a_task("a", inputs=["big"])
    where = stored("big", place_of("w3"), size_bytes=1 << 30)
    cluster.says(
        SubmitJob(a_job_spec()), AddTask(reader, (where,)), WantObjects(JOB, reader.outputs)
    )
    [assignment] = [m for _, m in cluster.machine.outbox if isinstance(m, AssignTask)]
    assert assignment == AssignTask(reader, 1, (where,))
    cluster.said("w3: run a")


# --- objects that are not needed any longer -------------------------------------------------------


def test_an_attempt_that_is_no_longer_needed_is_cancelled_once() -> None:
    cluster = one()
    task = a_task("a")
    cluster.job(task, want=["a"], open=True)
    cluster.said("w1: run a")
    cluster.says(ReleaseObjects(JOB, task.outputs))
    cluster.said("w1: stop a (1)")
    assert cluster.slots_used("w1") == 1
    cluster.failed("w1", task, "CANCELLED")
    cluster.said()
    assert cluster.slots_used("w1") == 0


def test_a_cancelled_task_may_run_again_at_once() -> None:
    cluster = one()
    task = a_task("a")
    cluster.job(task, want=["a"], open=True)
    cluster.says(ReleaseObjects(JOB, task.outputs))
    cluster.says(WantObjects(JOB, task.outputs))
    cluster.said("w1: run a", "w1: stop a (1)", "w1: run a again (2)")
    cluster.failed("w1", task, "CANCELLED", attempt=1)
    cluster.said()
    cluster.done("w1", task, attempt=2)
    cluster.said("client: a is there")
    assert cluster.slots_used("w1") == 0


# --- the journal ----------------------------------------------------------------------------------


def test_the_journal_records_changes_in_order() -> None:
    cluster = one()
    task = a_task("a")
    cluster.job(task, want=["a"])
    cluster.done("w1", task)
    assert [type(record) for record in cluster.machine.journal] == [
        WorkerSeen, SubmitJob, AddTask, WantObjects, CloseJob, JobNoted, TaskReported, JobChanged,
    ]  # fmt: skip


# --- requests of any client -----------------------------------------------------------------------


def test_retrying_a_failed_job_runs_its_failed_tasks() -> None:
    cluster = one()
    first, second = a_chain(2)
    good = a_task("good")
    cluster.job(first, second, good, want=["c1", "good"])
    cluster.failed("w1", first)
    cluster.done("w1", good)
    assert cluster.job_of().state is JobState.FAILED
    cluster.machine.outbox.clear()
    cluster.machine.retry_job(cluster.job_of(), cluster.now_s)
    cluster.end_turn()
    cluster.said("w1: run c0 again (2)")
    assert cluster.job_of().state is JobState.ACTIVE
    cluster.done("w1", first, attempt=2)
    cluster.done("w1", second)
    assert cluster.job_of().state is JobState.COMPLETED


def test_tasks_added_after_a_cancellation_run_when_the_job_is_retried() -> None:
    cluster = one()
    late = a_task("late")
    cluster.job(a_task("a"), want=["a"], open=True)
    cluster.says(CancelJob(JOB, "no more"))
    cluster.says(AddTask(late, ()))
    cluster.failed("w1", a_task("a"), "CANCELLED", attempt=1)
    assert cluster.job_of().state is JobState.CANCELLED
    cluster.machine.retry_job(cluster.job_of(), cluster.now_s)
    cluster.end_turn()
    cluster.machine.outbox.clear()
    cluster.says(WantObjects(JOB, late.outputs))
    cluster.said("w1: run late")


def test_a_refused_retry_leaves_a_cancelled_job_cancelled() -> None:
    cluster = one()
    task = a_task("a")
    cluster.job(task, want=["a"], open=True)
    cluster.done("w1", task, stored("a", place_of("w1")))
    cluster.says(CancelJob(JOB, "no more"))
    with pytest.raises(CannotRetryError, match="none of its tasks failed"):
        cluster.machine.retry_job(cluster.job_of(), cluster.now_s)
    cluster.machine.outbox.clear()
    cluster.machine.worker_lost("w1", "it is gone", cluster.now_s)
    cluster.joins(a_worker("w2"))
    assert cluster.job_of().state is JobState.CANCELLED
    assert cluster.slots_used("w2") == 0


def test_a_job_that_did_not_fail_cannot_be_retried() -> None:
    cluster = one()
    task = a_task("a")
    cluster.job(task, want=["a"])
    with pytest.raises(CannotRetryError, match="it is active"):
        cluster.machine.retry_job(cluster.job_of(), cluster.now_s)
    cluster.done("w1", task)
    with pytest.raises(CannotRetryError, match="it is completed"):
        cluster.machine.retry_job(cluster.job_of(), cluster.now_s)


def test_removing_an_ended_job_removes_its_objects_and_records() -> None:
    cluster = one()
    good, bad = a_task("good"), a_task("bad")
    cluster.job(good, bad, want=["good", "bad"])
    with pytest.raises(JobNotEndedError, match="job 1 has not ended"):
        cluster.machine.remove_job(cluster.job_of())
    cluster.done("w1", good, stored("good", place_of("w1")))
    cluster.failed("w1", bad)
    cluster.machine.outbox.clear()
    cluster.machine.remove_job(cluster.job_of())
    cluster.end_turn()
    cluster.said("w1: drop good")
    machine = cluster.machine
    assert not machine.jobs
    assert not machine.graph.tasks
    assert not machine.histories
    assert not machine.retry_states
    cluster.job(a_task("later"), want=["later"])
    assert cluster.job_of().number == 2


def test_handed_over_results_are_deleted_from_the_cluster() -> None:
    cluster = one()
    task = a_task("a", mentions=Mentions.NOTHING)
    cluster.job(task, want=["a"], open=True)
    cluster.done("w1", task, stored("a", place_of("w1")))
    cluster.machine.outbox.clear()
    cluster.says(ReleaseObjects(JobId(JOB), (ObjectId("a"),), True))
    cluster.said("w1: drop a")
    assert not cluster.machine.graph.tasks
    cluster.says(CloseJob(JobId(JOB)))
    assert cluster.job_of().state is JobState.COMPLETED


def test_a_new_job_starts_although_many_prefetched_tasks_turn_out_long() -> None:
    cluster = one()
    long = [a_task(f"long{number}", ordinal=number) for number in range(20)]
    cluster.job(*long, want=[spec.outputs[0] for spec in long])
    cluster.machine.workers["w1"].credit.learn_at_least(60.0)
    cluster.lines()
    first, second = (a_task(name, job=digit * 32) for name, digit in (("b", "2"), ("c", "3")))
    cluster.job(first, want=["b"], job="2" * 32)
    assert "w1: run b" in cluster.lines()
    cluster.job(second, want=["c"], job="3" * 32)
    # A worker gets at most as many tasks beyond its credit as it has slots.
    assert "w1: run c" not in cluster.lines()
    cluster.done("w1", first)
    assert "w1: run c" in cluster.lines()
