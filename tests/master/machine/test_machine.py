"""Scenes with the master's machine: jobs, refusals, ends and retries."""

from __future__ import annotations

import pytest

import ciel.master.state.jobs as jobs_module
from ciel.core.events import (
    AddTask,
    CancelJob,
    CloseJob,
    ReleaseObjects,
    RequestRefused,
    SubmitJob,
    WantObjects,
    WatchJob,
)
from ciel.core.ids import JobId, ObjectId
from ciel.core.jobs import JobState
from ciel.core.refs import Value
from ciel.core.tasks import TaskState
from ciel.testing.builders import (
    JOB,
    a_chain,
    a_job_spec,
    a_task,
    a_worker,
    place_of,
    stored,
)
from ciel_tests.scenes.master import CLIENT, Cluster, one, two

# --- life of a job --------------------------------------------------------------------------------


def test_a_job_runs_and_completes() -> None:
    cluster = one()
    first, second = a_chain(2)
    cluster.job(first, second, want=["c1"])
    cluster.said("w1: run c0")
    cluster.done("w1", first)
    cluster.said("w1: run c1")
    cluster.done("w1", second)
    cluster.said("client: c1 is there", "client: completed")
    assert cluster.job_of().ended_at_s == cluster.now_s


def test_only_wanted_tasks_run() -> None:
    cluster = one()
    cluster.job(*a_chain(2), a_task("aside"), want=["c0"])
    cluster.said("w1: run c0")
    cluster.done("w1", a_chain(1)[0])
    cluster.said("client: c0 is there", "client: completed")


def test_a_job_without_wants_completes_when_it_is_closed() -> None:
    cluster = one()
    cluster.job(a_task("a"), open=True)
    cluster.said()
    cluster.says(CloseJob(JOB))
    cluster.said("client: completed")


def test_submitting_a_job_again_changes_nothing() -> None:
    cluster = one()
    task = a_task("a")
    cluster.job(task, want=["a"])
    cluster.said("w1: run a")
    cluster.job(task, want=["a"])
    cluster.said()
    assert len(cluster.machine.jobs) == 1
    cluster.done("w1", task)
    cluster.said("client: a is there", "client: completed")
    cluster.job(task, want=["a"])
    cluster.said("client: completed", "client: a is there")


def test_an_open_job_accepts_late_tasks_and_wants() -> None:
    cluster = one()
    first, second = a_task("a"), a_task("b", inputs=["a"])
    cluster.job(first, want=["a"], open=True)
    cluster.said("w1: run a")
    cluster.done("w1", first)
    cluster.said("client: a is there")
    cluster.says(AddTask(second, ()))
    cluster.said()
    cluster.says(WantObjects(JOB, second.outputs))
    cluster.said("w1: run b")
    cluster.says(CloseJob(JOB))
    cluster.said()
    cluster.done("w1", second)
    cluster.said("client: b is there", "client: completed")


def test_an_open_job_waits_for_an_object_without_a_producer() -> None:
    cluster = one()
    cluster.job(want=["a"], open=True)
    cluster.passes(60)
    cluster.said()
    cluster.says(AddTask(a_task("a"), ()))
    cluster.said("w1: run a")


def test_a_closed_job_that_is_stuck_fails_and_names_the_missing_object() -> None:
    cluster = one()
    cluster.job(a_task("a", inputs=["orphan"]), want=["a"])
    cluster.said(
        "client: a is DEPENDENCY_FAILED",
        "client: failed: DEPENDENCY_FAILED: input orphan failed (NEVER_MADE): "
        "no task of the job produces orphan",
    )


def test_a_task_that_sees_errors_runs_when_its_input_has_no_producer() -> None:
    cluster = one()
    cluster.job(
        a_task("a", inputs=["orphan"]), a_task("b", inputs=["a"], sees_errors=True), want=["b"]
    )
    cluster.said("w1: run b")


@pytest.mark.parametrize("ends", ["made", "failed", "cancelled"])
def test_a_closed_job_waits_for_the_output_of_another_job(ends: str) -> None:
    cluster = one()
    first = a_task("a")
    cluster.job(first, a_task("later", inputs=["a"]), want=["later"])
    read = ["a", "later"]
    cluster.job(a_task("b", inputs=read, job="other"), want=["b"], job="other")
    cluster.said("w1: run a")
    if ends == "made":
        cluster.done("w1", first)
        assert cluster.slots_used("w1") == 1
        assert cluster.job_of("other").state is JobState.ACTIVE
    elif ends == "failed":
        cluster.failed("w1", first)
        assert cluster.job_of("other").state is JobState.FAILED
    else:
        cluster.says(CancelJob(JOB, "no more"))
        cluster.failed("w1", first)
        assert cluster.job_of("other").state is JobState.FAILED


def test_a_wanted_object_without_a_producer_is_named() -> None:
    cluster = one()
    cluster.job(want=["orphan"])
    cluster.said(
        "client: orphan is NEVER_MADE",
        "client: failed: NEVER_MADE: no task of the job produces orphan",
    )


def test_a_circle_of_tasks_is_stuck() -> None:
    cluster = one()
    cluster.job(a_task("a", inputs=["b"]), a_task("b", inputs=["a"]), want=["a"])
    assert cluster.job_of().reason.startswith("NEVER_MADE: no task of the job produces a")


def test_releasing_the_missing_objects_ends_a_closed_job() -> None:
    cluster = one()
    task = a_task("a")
    cluster.job(task, want=["a"])
    cluster.said("w1: run a")
    cluster.says(ReleaseObjects(JOB, task.outputs))
    cluster.said("w1: stop a (1)", "client: completed")


def test_a_released_result_is_dropped_by_its_worker() -> None:
    cluster = one()
    task = a_task("a")
    cluster.job(task, want=["a"], open=True)
    cluster.done("w1", task, stored("a", place_of("w1")))
    cluster.said("w1: run a", "client: a is there")
    cluster.says(ReleaseObjects(JOB, task.outputs))
    cluster.said("w1: drop a")


def test_an_intermediate_object_is_dropped_by_its_worker() -> None:
    cluster = one()
    first, second = a_chain(2)
    cluster.job(first, second, want=["c1"], open=True)
    cluster.done("w1", first, stored("c0", place_of("w1")))
    cluster.said("w1: run c0", "w1: run c1")
    cluster.done("w1", second)
    cluster.said("client: c1 is there", "w1: drop c0")


def test_a_job_with_keep_drops_no_objects() -> None:
    cluster = one()
    first, second = a_chain(2)
    keeping = a_job_spec(keep=True)
    cluster.says(SubmitJob(keeping), AddTask(first, ()), AddTask(second, ()))
    cluster.says(WantObjects(JOB, second.outputs))
    cluster.done("w1", first, stored("c0", place_of("w1")))
    cluster.said("w1: run c0", "w1: run c1")
    cluster.done("w1", second)
    cluster.said("client: c1 is there")


# --- refusals -------------------------------------------------------------------------------------


def test_a_message_about_an_unknown_job_is_refused() -> None:
    cluster = one()
    nowhere = JobId("nowhere")
    for message in (CloseJob(nowhere), WatchJob(nowhere), CancelJob(nowhere, ""),
                    WantObjects(nowhere, ()), AddTask(a_task("a", job="nowhere"), ())):  # fmt: skip
        cluster.says(message)
        cluster.said("client: refused: there is no job nowhere; it may have been removed")


def test_a_refused_task_fails_its_job_with_one_line() -> None:
    cluster = one()
    forged = a_task("b")._replace(ordinal=1)
    cluster.job(a_task("a"), want=["a"], open=True)
    cluster.said("w1: run a")
    cluster.says(AddTask(forged, ()))
    why = f"task {forged.id}: its parent, ordinal and digest require the id "
    told = cluster.job_of().reason
    assert told.startswith(f"a task was rejected: {why}")
    assert "\n" not in told
    refusal = told.removeprefix("a task was rejected: ")
    cluster.said(
        "w1: stop a (1)",
        "client: a is CANCELLED",
        f"client: failed: {told}",
        f"client: refused: {refusal}",
    )


def test_an_input_that_cannot_be_decoded_fails_its_job_and_reaches_no_worker() -> None:
    cluster = one()
    cluster.job(want=["a"], open=True)
    cluster.said()
    cluster.says(AddTask(a_task("a", inputs=["upload"]), (Value(ObjectId("upload"), "!"),)))
    why = "the content in the reference of object upload is not base64"
    cluster.said(
        "client: a is CANCELLED",
        f"client: failed: a task was rejected: {why}",
        f"client: refused: {why}",
    )


def test_tasks_added_after_a_cancellation_do_not_run() -> None:
    cluster = one()
    cluster.job(a_task("a"), want=["a"], open=True)
    cluster.said("w1: run a")
    cluster.says(CancelJob(JOB, "the user said so"))
    cluster.said("w1: stop a (1)", "client: a is CANCELLED")
    cluster.says(AddTask(a_task("b"), ()), WantObjects(JOB, (ObjectId("b"),)))
    cluster.said()
    assert cluster.machine.graph.tasks[a_task("b").id].state is TaskState.DORMANT


def test_a_job_beyond_the_limit_is_refused_by_its_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_module, "JOBS_MAX", 1)
    cluster = one()
    cluster.job(want=["a"], open=True)
    cluster.said()
    cluster.machine.client_sent(CLIENT, SubmitJob(a_job_spec("other")), cluster.now_s)
    assert cluster.machine.outbox == [
        (CLIENT, RequestRefused(JobId("other"), "the cluster has 1 jobs already; remove some"))
    ]


def test_an_unknown_executor_fails_the_job_and_lists_the_offered_ones() -> None:
    cluster = one()
    cluster.job(a_task("a", executor="cobol"), want=["a"])
    cluster.said(
        "client: a is NO_EXECUTOR",
        "client: failed: NO_EXECUTOR: no worker offers the executor 'cobol' (offered: stdinout)",
    )


def test_too_many_slots_fail_the_job_and_name_the_largest_number() -> None:
    cluster = one(slots=2)
    cluster.job(a_task("a", slots=3), want=["a"])
    cluster.said(
        "client: a is NO_WORKER_FITS",
        "client: failed: NO_WORKER_FITS: the task needs 3 slots, and no worker has more than 2: "
        "ask for fewer, or start a worker with more (ciel-worker --slots)",
    )


# --- cancelling -----------------------------------------------------------------------------------


def test_a_cancelled_job_ends_when_its_programs_have_stopped() -> None:
    cluster = one()
    task = a_task("a")
    cluster.job(task, want=["a"])
    cluster.said("w1: run a")
    cluster.says(CancelJob(JOB, "the user said so"))
    cluster.said("w1: stop a (1)", "client: a is CANCELLED")
    cluster.failed("w1", task, "CANCELLED")
    cluster.said("client: cancelled: the user said so")
    assert cluster.slots_used("w1") == 0


def test_a_late_success_of_a_cancelled_attempt_also_ends_the_job() -> None:
    cluster = one()
    task = a_task("a")
    cluster.job(task, want=["a"])
    cluster.says(CancelJob(JOB, "enough"))
    cluster.said("w1: run a", "w1: stop a (1)", "client: a is CANCELLED")
    cluster.done("w1", task)
    cluster.said("client: cancelled: enough")


def test_a_lost_worker_does_not_delay_cancelling() -> None:
    cluster = two()
    first, second = a_task("a"), a_task("b")
    cluster.job(first, second, want=["a", "b"])
    cluster.said("w1: run a", "w2: run b")
    cluster.says(CancelJob(JOB, "enough"))
    cluster.said(
        "w1: stop a (1)", "w2: stop b (1)", "client: a is CANCELLED", "client: b is CANCELLED"
    )
    cluster.loses("w1")
    cluster.said()
    cluster.failed("w2", second, "CANCELLED")
    cluster.said("client: cancelled: enough")


def test_a_job_without_running_tasks_is_cancelled_at_once() -> None:
    cluster = Cluster()
    cluster.job(a_task("a"), want=["a"])
    cluster.says(CancelJob(JOB, "enough"))
    cluster.said("client: a is CANCELLED", "client: cancelled: enough")


def test_an_ended_job_cannot_be_cancelled() -> None:
    cluster = one()
    task = a_task("a")
    cluster.job(task, want=["a"])
    cluster.done("w1", task)
    cluster.said("w1: run a", "client: a is there", "client: completed")
    cluster.says(CancelJob(JOB, "too late"))
    cluster.said()


# --- failures and retries -------------------------------------------------------------------------


def test_a_failed_task_fails_its_job() -> None:
    cluster = one()
    first, second = a_chain(2)
    cluster.job(first, second, want=["c1"])
    cluster.said("w1: run c0")
    cluster.failed("w1", first)
    cluster.said(
        "client: c1 is DEPENDENCY_FAILED",
        "client: failed: DEPENDENCY_FAILED: input c0 failed (RUNTIME_ERROR): exit status 3",
    )


def test_a_failed_task_is_retried_after_a_delay() -> None:
    cluster = one()
    task = a_task("a", retries=2)
    cluster.job(task, want=["a"])
    cluster.said("w1: run a")
    started_s = cluster.now_s
    cluster.failed("w1", task)
    cluster.said()
    assert cluster.machine.due_s() == pytest.approx(started_s + 0.2)
    cluster.passes(0.21)
    cluster.said("w1: run a again (2)")
    cluster.failed("w1", task, attempt=2)
    cluster.passes(0.39)
    cluster.said()
    cluster.passes(0.02)
    cluster.said("w1: run a again (3)")
    cluster.failed("w1", task, attempt=3)
    cluster.said(
        "client: a is RUNTIME_ERROR",
        "client: failed: RUNTIME_ERROR: exit status 3\n(attempt 3 of 3)",
    )
    assert [line.partition(": ")[2] for line in cluster.machine.histories[task.id].lines(0.0)] == [
        f"attempt {number} failed on worker w1: RUNTIME_ERROR: exit status 3"
        for number in (1, 2, 3)
    ]


def test_a_failure_that_would_repeat_is_not_retried() -> None:
    cluster = one()
    task = a_task("a", retries=5)
    cluster.job(task, want=["a"])
    cluster.failed("w1", task, "BAD_ARGUMENTS")
    cluster.said(
        "w1: run a",
        "client: a is BAD_ARGUMENTS",
        "client: failed: BAD_ARGUMENTS: exit status 3",
    )


def test_a_retry_that_succeeds_completes_the_job() -> None:
    cluster = one()
    task = a_task("a", retries=1)
    cluster.job(task, want=["a"])
    cluster.failed("w1", task)
    cluster.passes(1)
    cluster.done("w1", task, attempt=2)
    cluster.said("w1: run a", "w1: run a again (2)", "client: a is there", "client: completed")


def test_a_job_with_many_errors_reports_the_first_and_their_number() -> None:
    cluster = one(slots=3)
    tasks = [a_task(name) for name in ("a", "b", "c")]
    cluster.job(*tasks, want=["a", "b", "c"])
    for task in tasks:
        cluster.failed("w1", task)
    assert cluster.job_of().reason == "RUNTIME_ERROR: exit status 3 (and 2 more)"


def test_a_task_whose_inputs_do_not_fit_into_a_message_is_refused() -> None:
    cluster = Cluster(a_worker("w1"))
    names = [f"small{number}" for number in range(12_000)]
    known = tuple(Value.of(ObjectId(name), b"x" * 1000) for name in names)
    big = a_task("big", inputs=names)
    cluster.says(SubmitJob(a_job_spec(JOB)), AddTask(big, known))
    cluster.says(WantObjects(JobId(JOB), (ObjectId("big"),)), CloseJob(JobId(JOB)))
    job = cluster.machine.jobs[JOB]
    assert job.state is JobState.FAILED
    assert job.reason.startswith(
        "INPUTS_TOO_LARGE: the references of its 12000 inputs, 12000 of which"
    )
    assert not cluster.machine.workers["w1"].assigned
