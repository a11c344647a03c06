"""Tests that a master which is restored from its journal continues the jobs in it."""

from __future__ import annotations

import random

import pytest

from ciel.core.events import (
    CLIENT_GRACE_S,
    AddTask,
    AttemptsKept,
    CancelJob,
    Change,
    CloseJob,
    Message,
    ObjectsStored,
    ReleaseObjects,
    SpawnTask,
    StoreListed,
    SubmitJob,
    SuccessionChanged,
    TaskFault,
    TaskReported,
    WantObjects,
)
from ciel.core.history import EVENTS_MAX
from ciel.core.ids import JobId, ObjectId
from ciel.core.jobs import JobState
from ciel.core.masters import Succession
from ciel.core.refs import Concrete, Fixed, Future
from ciel.core.tasks import Mentions, TaskSpec, TaskState
from ciel.master.state.compaction import compact
from ciel.master.state.invariants import problems
from ciel.master.state.machine import MasterMachine
from ciel.master.state.queries import topics
from ciel.master.state.restoring import RETURN_S, TAKEOVER_GRACE_S, Restoration
from ciel.testing.builders import JOB, a_chain, a_job_spec, a_task, a_worker, place_of, stored
from ciel.testing.simulator.options import options_for
from ciel.testing.simulator.restored import differences
from ciel.testing.simulator.simulation import Simulation
from ciel_tests.scenes.master import Cluster, ask, inputs_lost, opened, two

A, B = a_task("a"), a_task("b")


def restart(before: Cluster, *, finish: bool = True) -> Cluster:
    """Return a cluster whose master has read the journal of another one."""
    after = Cluster()
    after.now_s = before.now_s
    restoration = Restoration(after.machine)
    for record in before.machine.journal:
        restoration.apply(record, before.now_s)
    assert restoration.skipped == []
    restoration.finish(after.now_s)
    after.end_turn()
    after.machine.outbox.clear()
    return after


def returns(
    cluster: Cluster, name: str, *attempts: TaskSpec, then: tuple[Message, ...] = ()
) -> None:
    """A worker comes back, with attempts that run and with other messages."""
    cluster.joins(a_worker(name))
    kept = AttemptsKept(tuple((task.id, 1) for task in attempts), (), ())
    cluster.worker_says(name, kept, *then, StoreListed())


def running(*tasks: TaskSpec) -> Cluster:
    """Return a cluster of two workers that run tasks."""
    cluster = two()
    cluster.job(*tasks, want=[task.outputs[0] for task in tasks], detached=True)
    cluster.lines()
    return cluster


def test_running_attempts_continue_and_their_tasks_do_not_run_again() -> None:
    cluster = restart(running(A, B))
    returns(cluster, "w1", A)
    cluster.said()  # the other worker may still come back
    returns(cluster, "w2", B)
    cluster.said()
    assert {cluster.state(A), cluster.state(B)} == {TaskState.ASSIGNED}
    assert (cluster.slots_used("w1"), cluster.slots_used("w2")) == (1, 1)
    cluster.done("w1", A)
    cluster.done("w2", B)
    assert cluster.job_of().state is JobState.COMPLETED


def test_an_end_that_was_not_confirmed_is_reported_again_and_counts() -> None:
    cluster = restart(running(A, B))
    end = TaskReported(A.id, 1, (stored("a", place_of("w1")),), None, 0.1)
    returns(cluster, "w1", A, then=(end,))
    returns(cluster, "w2", B)
    assert cluster.state(A) is TaskState.DONE
    cluster.done("w2", B)
    assert cluster.job_of().state is JobState.COMPLETED


def test_an_end_that_the_journal_has_is_reported_again_without_effect() -> None:
    before = running(A, B)
    before.done("w1", A)
    cluster = restart(before)
    end = TaskReported(A.id, 1, (), None, 0.1)
    returns(cluster, "w1", A, then=(end,))
    cluster.said("w1: stop a (1)")
    assert cluster.state(A) is TaskState.DONE


def test_a_result_that_was_released_before_it_existed_is_forgotten() -> None:
    before = running(A, B)
    before.says(ReleaseObjects(JOB, A.outputs, for_good=True))
    before.done("w1", A)
    assert A.id not in before.machine.graph.tasks
    cluster = restart(before)
    assert A.id not in cluster.machine.graph.tasks
    assert cluster.job_of().handed_over == 1


def test_tasks_of_workers_that_do_not_return_run_elsewhere() -> None:
    cluster = restart(running(A, B))
    returns(cluster, "w1", A)
    cluster.passes(RETURN_S - 1)
    cluster.said()
    cluster.done("w1", A)
    cluster.passes(1)
    assert "w1: run b" in cluster.lines()


def test_a_worker_that_had_left_is_not_waited_for() -> None:
    before = running(A)
    before.loses("w2")
    before.lines()
    cluster = restart(before)
    cluster.joins(a_worker("w1"))
    cluster.worker_says("w1", StoreListed())
    assert cluster.lines() == ["w1: run a"]


def test_an_attempt_of_a_task_that_is_not_needed_is_stopped() -> None:
    before = running(A, B)
    before.machine.cancel_job(before.job_of(), "no more", before.now_s)
    before.end_turn()
    cluster = restart(before)
    assert cluster.job_of().state is JobState.CANCELLED
    returns(cluster, "w1", A)
    cluster.said("w1: stop a (1)")


def test_objects_that_a_returning_worker_has_lost_are_produced_again() -> None:
    first, second = a_chain(2)
    before = two()
    before.job(first, second, want=["c1"], detached=True)
    before.done("w1", first, stored("c0", place_of("w1")))
    cluster = restart(before)
    assert cluster.state(first) is TaskState.DONE
    cluster.joins(a_worker("w1"))
    cluster.joins(a_worker("w2"))
    cluster.worker_says("w1", StoreListed())
    cluster.worker_says("w2", StoreListed())
    assert [line for line in cluster.lines() if "run" in line] == ["w1: run c0 again (2)"]


def test_objects_that_are_still_there_are_not_produced_again() -> None:
    first, second = a_chain(2)
    before = two()
    before.job(first, second, want=["c1"], detached=True)
    before.done("w1", first, stored("c0", place_of("w1")))
    cluster = restart(before)
    held = stored("c0", place_of("w1"))
    assert isinstance(held, Concrete)
    cluster.joins(a_worker("w1"))
    cluster.worker_says("w1", ObjectsStored((held,), kept=True), StoreListed())
    returns(cluster, "w2")
    assert [line for line in cluster.lines() if "run" in line] == ["w1: run c1"]


@pytest.mark.parametrize(
    "retry",
    [Change(0, "retry", {"job": JOB}), Change(0, "retry_task", {"job": JOB, "task": A.id})],
)
def test_a_job_was_retried_even_if_the_tasks_that_ran_again_are_forgotten(retry: Change) -> None:
    restored = Restoration(MasterMachine())
    for record in (
        SubmitJob(a_job_spec(open=True)), CancelJob(JobId(JOB), "no more"),
        retry, AddTask(B, ()), WantObjects(JobId(JOB), B.outputs),
    ):  # fmt: skip
        restored.apply(record, 0.0)
    job = restored.machine.jobs[JOB]
    assert (job.state, list(job.wanted)) == (JobState.ACTIVE, list(B.outputs))
    assert restored.machine.graph.tasks[B.id].state is TaskState.RUNNABLE


def test_a_retry_that_was_refused_later_is_refused_after_a_restart() -> None:
    before = Cluster(a_worker("w1"))
    tasks = [a_task(f"t{number}") for number in range(100)]
    before.job(*tasks, want=[task.outputs[0] for task in tasks], open=True, detached=True)
    for task in tasks:
        before.done("w1", task)
    before.says(CancelJob(JobId(JOB), "no more"))
    before.machine.bulk.steps_per_tick = 1
    before.machine.bulk.end_tick()
    topics.change(before.machine, "retry", {"job": JOB}, before.now_s)
    while before.machine.has_more:
        before.end_turn()
    assert before.job_of().reason.endswith("none of its tasks failed)")
    after = restart(before).job_of()
    assert (after.state, after.reason) == (JobState.CANCELLED, before.job_of().reason)


def test_an_object_is_not_deleted_while_its_worker_lists_it() -> None:
    """The list may be on its way. If it arrived after the order, it would list a deleted object."""
    before = two()
    before.job(A, want=["a"], open=True, detached=True)
    before.done("w1", A, stored("a", place_of("w1")))
    cluster = restart(before)
    cluster.joins(a_worker("w1"), returns=True)
    cluster.worker_says("w1", AttemptsKept((), (), ()))
    cluster.says(ReleaseObjects(JOB, A.outputs, for_good=False))
    assert [line for line in cluster.lines() if "drop" in line] == []
    listed = ObjectsStored((stored("a", place_of("w1")),), kept=True)
    cluster.worker_says("w1", listed, StoreListed())
    assert [line for line in cluster.lines() if "drop" in line] == ["w1: drop a"]
    assert cluster.machine.graph.objects.reference(A.outputs[0]) == Future(A.outputs[0])


def test_an_upload_is_not_lost_before_its_worker_can_return() -> None:
    upload, reader = stored("upload", place_of("w1")), a_task("a", inputs=["upload"])
    before = two()
    before.says(SubmitJob(a_job_spec(detached=True)), AddTask(reader, (upload,)))
    before.says(WantObjects(JOB, reader.outputs))
    cluster = restart(before)
    returns(cluster, "w2", reader, then=(inputs_lost(reader, place_of("w1")),))
    assert cluster.machine.graph.objects.reference(upload.id) == upload
    cluster.joins(a_worker("w1"), returns=True)
    listed = ObjectsStored((upload,), kept=True)
    cluster.worker_says("w1", AttemptsKept((), (), ()), listed, StoreListed())
    assert [line for line in cluster.lines() if "run" in line] == ["w1: run a again (2)"]


def test_a_job_does_not_end_before_workers_can_say_which_results_are_left() -> None:
    before = two()
    before.job(A, want=["a"], open=True, detached=True)
    before.done("w1", A, stored("a", place_of("w1")))
    before.loses("w1")
    before.says(CloseJob(JOB))
    assert before.state(A) is TaskState.ASSIGNED
    cluster = restart(before)
    assert cluster.job_of().state is JobState.ACTIVE
    cluster.joins(a_worker("w2"), returns=True)
    cluster.worker_says("w2", AttemptsKept((), (), ()), StoreListed())
    assert cluster.state(A) is TaskState.ASSIGNED
    cluster.done("w2", A, attempt=cluster.machine.graph.tasks[A.id].attempt)
    assert cluster.job_of().state is JobState.COMPLETED


def test_a_result_that_only_a_store_had_is_still_a_result_of_a_failed_job() -> None:
    """Its attempt ended with its worker, so no report names it; the next worker has the store."""
    before = two()
    wrong = a_task("wrong")
    before.job(A, wrong, want=["a", "wrong"], detached=True)
    before.loses("w1")
    before.joins(a_worker("w3"))
    before.worker_says("w3", ObjectsStored((stored("a", place_of("w3")),), kept=True))
    before.failed("w2", wrong)
    assert before.job_of().state is JobState.FAILED
    cluster = restart(before)
    assert isinstance(cluster.machine.graph.objects.reference(A.outputs[0]), Concrete)
    assert cluster.state(A) is before.state(A)
    returns(cluster, "w2")
    held = ObjectsStored((stored("a", place_of("w3")),), kept=True)
    returns(cluster, "w3", then=(held,))
    assert not [line for line in cluster.lines() if "drop" in line or "delete" in line]


def test_a_failed_job_that_was_not_cancelled_has_its_lost_results_recomputed() -> None:
    upload, reader = stored("upload", place_of("w2")), a_task("r", inputs=["upload"])
    before = two()
    before.says(SubmitJob(a_job_spec(detached=True)), AddTask(A, ()), AddTask(reader, (upload,)))
    before.says(WantObjects(JOB, (*A.outputs, *reader.outputs)), CloseJob(JOB))
    before.done("w1", A, stored("a", place_of("w1")))
    before.loses("w2")  # no record says that the upload is lost
    assert before.job_of().state is JobState.FAILED
    cluster = restart(before)
    assert (cluster.job_of().state, cluster.job_of().unsettled) == (JobState.FAILED, 0)
    returns(cluster, "w1")  # without the result
    assert (cluster.state(A), cluster.state(reader)) == (TaskState.ASSIGNED, TaskState.CANCELLED)


def test_failures_of_earlier_attempts_still_count() -> None:
    flaky = a_task("flaky", retries=2)
    before = two()
    before.job(flaky, want=["flaky"], detached=True)
    before.lines()
    for attempt in (1, 2):
        worker = before.machine.graph.tasks[flaky.id].worker
        assert worker is not None
        before.failed(worker, flaky, attempt=attempt)
        before.passes(60)
    cluster = restart(before)
    events = [event.text for event in cluster.machine.histories[flaky.id].events]
    assert events == [event.text for event in before.machine.histories[flaky.id].events]
    cluster.passes(RETURN_S)
    cluster.joins(a_worker("w3"))
    cluster.passes(60)
    assert cluster.machine.graph.tasks[flaky.id].attempt == 3
    cluster.failed("w3", flaky, attempt=3)
    reason = cluster.job_of().reason
    assert (cluster.job_of().state, "attempt 3 of 3" in reason) == (JobState.FAILED, True)


def test_deaths_of_workers_still_count_and_a_failure_is_final() -> None:
    before = two()
    before.joins(a_worker("w3"))
    before.job(A, want=["a"], detached=True)
    for _ in range(2):
        worker = before.machine.graph.tasks[A.id].worker
        assert worker is not None
        before.loses(worker)
    cluster = restart(before)
    returns(cluster, "w3")
    assert cluster.lines() == ["w3: run a again (3)"]
    cluster.loses("w3")
    assert cluster.job_of().state is JobState.FAILED
    assert "3 workers died" in cluster.job_of().reason
    cluster.machine.journal[:0] = before.machine.journal
    after = restart(cluster)
    assert after.state(A) is TaskState.FAILED
    assert after.job_of().reason == cluster.job_of().reason


def test_a_job_waits_for_its_client_to_return() -> None:
    before = two()
    before.job(A, want=["a"])
    before.lines()
    kept = restart(before)
    kept.says(SubmitJob(a_job_spec(JOB)), WantObjects(JOB, (A.outputs[0],)))
    returns(kept, "w1", A)
    returns(kept, "w2")
    kept.passes(100)
    kept.lines()
    kept.done("w1", A)
    assert "client: a is there" in kept.lines()
    dropped = restart(before)
    dropped.passes(100)
    assert dropped.job_of().state is JobState.CANCELLED


def test_a_job_waits_longer_if_its_client_may_still_hear_an_earlier_master() -> None:
    before = two()
    before.job(A, want=["a"])
    succession = Succession(1, 0, ("http://m:8001", "http://m:8002"), {})
    before.machine.journal.append(SuccessionChanged(succession, True))
    cluster = restart(before)
    cluster.passes(CLIENT_GRACE_S + 1)
    assert cluster.job_of().state is JobState.ACTIVE
    cluster.passes(TAKEOVER_GRACE_S)
    assert cluster.job_of().state is JobState.CANCELLED


def test_a_job_that_wants_nothing_yet_waits_for_its_client() -> None:
    before = two()
    before.says(SubmitJob(a_job_spec(JOB, open=False)))
    cluster = restart(before)
    assert cluster.job_of().state is JobState.ACTIVE


def test_a_task_whose_outputs_others_produce_is_not_assigned_again() -> None:
    before = two()
    parent, child = a_task("a"), a_task("a", parent=a_task("a"), ordinal=1)
    before.job(parent, want=["a"], detached=True)
    before.worker_says("w1", SpawnTask(child, (), 1))
    cluster = restart(before)
    assert cluster.state(parent) is TaskState.DORMANT
    cluster.passes(RETURN_S)
    cluster.joins(a_worker("w3"))
    assert cluster.state(parent) is TaskState.DORMANT
    assert cluster.state(child) is TaskState.ASSIGNED


def test_an_object_that_a_task_gave_its_child_is_still_an_output_of_the_task() -> None:
    """Otherwise it counts as an upload, and a process that waits is lost for good when it ends."""
    before = two()
    parent = a_task("a")
    waits = Fixed(ObjectId(f"{parent.id}:fixed:0"), place_of("w1"))
    child = a_task("a", inputs=[waits.id], parent=parent, ordinal=1)
    before.job(parent, want=["a"], detached=True)
    before.worker_says("w1", SpawnTask(child, (waits,), 1))
    before.done("w1", parent, waits)
    graphs = [cluster.machine.graph for cluster in (before, restart(before))]
    producers = [graph.objects.nodes[waits.id].producer for graph in graphs]
    assert [str(producer and producer.spec.id) for producer in producers] == [parent.id] * 2


def test_a_task_that_creates_another_child_when_it_runs_again_holds_its_outputs() -> None:
    before = two()
    parent = a_task("a", "b", mentions=Mentions.OWN)
    before.job(parent, want=["a", "b"], detached=True)
    before.done("w1", parent, stored("a", place_of("w1")), stored("b", place_of("w1")))
    before.loses("w1")
    child = a_task("a", parent=parent, mentions=Mentions.OWN)
    before.worker_says("w2", SpawnTask(child, (), 2))
    before.done("w2", parent, stored("b", place_of("w2")), attempt=2)
    after = restart(before)
    for cluster in (before, after):
        assert list(problems(cluster.machine)) == []
    holds = [[c.machine.graph.objects.nodes[o].holds for o in "ab"] for c in (before, after)]
    assert holds[0] == holds[1]


def test_a_task_that_the_master_gave_up_has_failed_after_a_restart() -> None:
    before = Cluster(a_worker("w1"))
    before.job(A, B, want=["a", "b"], detached=True)
    for life in range(2, 5):
        before.loses(f"w{life - 1}")
        before.joins(a_worker(f"w{life}"))
    assert before.state(A) is TaskState.FAILED
    cluster = restart(before)
    assert cluster.state(A) is TaskState.FAILED


# --- workers that start over ----------------------------------------------------------------------


def test_a_worker_that_starts_over_gets_no_task_before_it_has_named_its_attempts() -> None:
    cluster = restart(running(A, B))
    cluster.passes(RETURN_S)
    cluster.joins(a_worker("w1"), returns=True)
    assert cluster.lines() == []
    cluster.passes(2, "w1")
    assert cluster.lines() == []
    cluster.worker_says("w1", AttemptsKept(((A.id, 1),), (), ()))
    assert [line for line in cluster.lines() if "run" in line] == ["w1: run b"]


def test_of_several_attempts_at_a_task_the_latest_is_adopted() -> None:
    cluster = restart(running(A))
    cluster.joins(a_worker("w1"), returns=True)
    cluster.worker_says("w1", AttemptsKept(((A.id, 1), (A.id, 2)), (), ()), StoreListed())
    assert [line for line in cluster.lines() if "stop" in line] == ["w1: stop a (1)"]
    cluster.done("w1", A, attempt=2)
    assert cluster.state(A) is TaskState.DONE


def test_an_attempt_that_is_not_adopted_keeps_its_number() -> None:
    """If a later attempt had the same number, the master could mistake one report for the other."""
    cluster = restart(running(A))
    returns(cluster, "w1", A)
    cluster.joins(a_worker("w2"), returns=True)
    cluster.worker_says("w2", AttemptsKept(((A.id, 2),), (), (A.id,)), StoreListed())
    assert "w2: stop a (2)" in cluster.lines()
    cluster.worker_says("w1", TaskReported(A.id, 1, (), TaskFault("RECALLED", "returned"), 0.0))
    assert cluster.state(A) is TaskState.ASSIGNED
    assert cluster.machine.graph.tasks[A.id].attempt == 3


def test_the_later_of_two_attempts_is_adopted_although_the_earlier_one_is_named_first() -> None:
    """The earlier one had been given up; the later one may have ended."""
    cluster = restart(running(A))
    returns(cluster, "w1", A)
    cluster.joins(a_worker("w2"), returns=True)
    cluster.worker_says("w2", AttemptsKept(((A.id, 2),), (), ()), StoreListed())
    assert "w1: stop a (1)" in cluster.lines()
    cluster.worker_says("w1", TaskReported(A.id, 1, (), TaskFault("RECALLED", "returned"), 0.0))
    assert cluster.machine.graph.tasks[A.id].attempt == 2
    cluster.done("w2", A, attempt=2)
    assert cluster.state(A) is TaskState.DONE
    assert not [line for line in cluster.lines() if "run a" in line]


def test_an_attempt_that_was_lost_with_its_worker_is_adopted_when_it_returns() -> None:
    cluster = Cluster(a_worker("w1"))
    cluster.job(A, want=["a"], detached=True)
    cluster.machine.worker_lost("w1", "it was silent", cluster.now_s)
    cluster.end_turn()
    cluster.lines()
    cluster.joins(a_worker("w1"), returns=True)
    cluster.worker_says("w1", AttemptsKept(((A.id, 1),), (), ()), StoreListed())
    assert cluster.lines() == []
    cluster.done("w1", A)
    assert cluster.state(A) is TaskState.DONE


def test_an_attempt_with_a_lower_number_than_its_task_has_had_is_stopped() -> None:
    cluster = restart(running(A))
    cluster.passes(RETURN_S)
    for _ in range(2):
        cluster.joins(a_worker("w3"))
        cluster.loses("w3")
    cluster.lines()
    cluster.joins(a_worker("w1"), returns=True)
    cluster.worker_says("w1", AttemptsKept(((A.id, 1),), (), ()))
    assert cluster.lines() == ["w1: stop a (1)", "w1: run a again (3)"]


def test_a_child_that_was_started_on_a_worker_is_stopped_if_a_later_attempt_was() -> None:
    """The earlier master had cancelled the start, and assigned the task."""
    cluster = restart(running(A))
    cluster.passes(RETURN_S)
    for _ in range(2):
        cluster.joins(a_worker("w3"))
        cluster.loses("w3")
    cluster.lines()
    cluster.joins(a_worker("w1"), returns=True)
    cluster.worker_says("w1", AttemptsKept(((A.id, 0), (A.id, 1)), (), ()))
    assert cluster.lines() == ["w1: stop a (1)", "w1: stop a (0)", "w1: run a again (3)"]


def test_an_attempt_whose_failure_is_recorded_is_not_adopted_when_its_task_is_retried() -> None:
    before = running(A)
    before.failed("w1", A)
    cluster = restart(before)
    cluster.machine.retry_job(cluster.job_of(), cluster.now_s)
    cluster.joins(a_worker("w1"), returns=True)
    end = TaskReported(A.id, 1, (), TaskFault("RUNTIME_EXCEPTION", "it failed"), 0.1)
    cluster.worker_says("w1", AttemptsKept(((A.id, 1),), (), ()), end)
    assert cluster.state(A) is TaskState.RUNNABLE


def test_an_adopted_task_is_recalled_from_the_worker_that_was_sent_it_eagerly() -> None:
    first, second = a_chain(2)
    cluster = Cluster(a_worker("w1"), a_worker("w2"), delegates=True)
    cluster.job(first, second, want=["c1"], detached=True)
    eager = {worker.facts.id for worker in cluster.machine.workers.values() if worker.eager}
    [other] = {"w1", "w2"} - eager
    cluster.lines()
    cluster.joins(a_worker("w3"), returns=True)
    cluster.worker_says("w3", AttemptsKept(((second.id, 1),), (), ()))
    assert eager
    assert other
    assert any("stop c1 (1)" in line for line in cluster.lines())


def test_an_adopted_attempt_does_not_count_before_its_missing_inputs_are_complete() -> None:
    """It may have read a stream whose worker has not returned yet."""
    first, second = a_chain(2)
    cluster = reader_returns(first, second)
    assert cluster.state(second) is TaskState.ASSIGNED
    returns(cluster, "w1", first)
    cluster.done("w1", first, stored("c0", place_of("w1")))
    assert cluster.state(second) is TaskState.DONE


def test_the_missing_input_of_an_adopted_attempt_is_produced_again() -> None:
    first, second = a_chain(2)
    cluster = reader_returns(first, second)
    cluster.passes(RETURN_S)
    assert cluster.state(first) is TaskState.ASSIGNED
    recalled = TaskFault("RECALLED", "it was returned")
    number = cluster.machine.graph.tasks[first.id].attempt
    cluster.worker_says("w2", TaskReported(first.id, number, (), recalled, 0.0))
    assert cluster.state(first) is TaskState.ASSIGNED


def test_an_adopted_attempt_runs_again_if_its_input_is_written_by_another_attempt() -> None:
    """It has read what the earlier one wrote, which never became an object."""
    first, second = a_chain(2)
    cluster = reader_returns(first, second)
    cluster.passes(RETURN_S)
    number = cluster.machine.graph.tasks[first.id].attempt
    cluster.lines()
    cluster.done("w2", first, stored("c0", place_of("w2")), attempt=number)
    assert "w2: run c1 again (2)" in cluster.lines()
    assert cluster.state(second) is TaskState.ASSIGNED


def reader_returns(first: TaskSpec, second: TaskSpec) -> Cluster:
    """Return a cluster after a restart: the reader of a stream has returned, and not its writer."""
    cluster = restart(two_in_a_stream(first, second))
    cluster.joins(a_worker("w2"), returns=True)
    end = TaskReported(second.id, 1, (stored("c1", place_of("w2")),), None, 0.1)
    cluster.worker_says("w2", AttemptsKept(((second.id, 1),), (), ()), end, StoreListed())
    return cluster


def two_in_a_stream(first: TaskSpec, second: TaskSpec) -> Cluster:
    """Return a cluster in which one task reads what another one is writing."""
    cluster = two()
    cluster.job(first, second, want=["c1"], detached=True)
    cluster.worker_says("w1", opened(first, "w1"))
    cluster.lines()
    return cluster


def test_an_output_in_a_repeated_report_is_not_deleted_before_the_worker_lists_it() -> None:
    before = running(A)
    before.done("w1", A, stored("a", place_of("w1")))
    cluster = restart(before)
    held = stored("a", place_of("w1"))
    cluster.joins(a_worker("w1"), returns=True)
    end = TaskReported(A.id, 1, (held,), None, 0.1)
    cluster.worker_says("w1", AttemptsKept(((A.id, 1),), (), ()), end)
    cluster.worker_says("w1", ObjectsStored((held,), kept=True), StoreListed())
    assert not [line for line in cluster.lines() if "drop" in line or "delete" in line]


def test_a_process_that_a_returning_worker_lists_and_no_task_needs_is_ended() -> None:
    cluster = restart(running(A))
    cluster.joins(a_worker("w1"), returns=True)
    waits = Fixed(ObjectId(f"{A.id}:fixed:0"), place_of("w1"))
    cluster.worker_says("w1", AttemptsKept((), (), ()))
    cluster.worker_says("w1", ObjectsStored((waits,), kept=True), StoreListed())
    assert any("delete" in line or "drop" in line for line in cluster.lines())


def test_a_process_whose_worker_does_not_return_is_started_again() -> None:
    before = two()
    parent = a_task("a")
    waits = Fixed(ObjectId(f"{parent.id}:fixed:0"), place_of("w1"))
    child = a_task("a", inputs=[waits.id], parent=parent, ordinal=1)
    before.job(parent, want=["a"], detached=True)
    before.worker_says("w1", SpawnTask(child, (waits,), 1))
    before.done("w1", parent, waits)
    cluster = restart(before)
    returns(cluster, "w2")
    cluster.passes(RETURN_S)
    assert cluster.state(parent) is TaskState.ASSIGNED
    assert cluster.job_of().state is JobState.ACTIVE


# --- whole simulations ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "scenario, share",
    [
        ("cancels", 0.01), ("bundles", 0.01), ("afterwards", 0.01), ("handed", 0.01),
        ("kills", 0.01), ("copies", 0.01), ("any", 0.1),  # uploads are lost for good
    ],
)  # fmt: skip
def test_a_restored_master_knows_what_the_other_one_knew(scenario: str, share: float) -> None:
    """At random moments of a simulation, as if the master was killed there."""
    simulation = Simulation(1, options_for(scenario, 1))
    master, chance, found = simulation.master, random.Random(1), list[str]()
    end_tick = master._end_tick

    def end_and_compare() -> None:
        end_tick()
        if chance.random() < share:
            machine, now_s = master.machine, master._now_s
            found.extend(differences(machine, master.records, now_s))
            batch = (now_s, list(master.records))
            rest = [record for _, records in compact(lambda: [batch]) for record in records]
            found.extend(f"compacted: {text}" for text in differences(machine, rest, now_s))

    master._end_tick = end_and_compare  # type: ignore[method-assign]  # to compare
    simulation.run()
    assert found == []


# --- the history of a job -------------------------------------------------------------------------


def events(cluster: Cluster) -> list[str]:
    return [text for _, text in ask(cluster, "job", job="last")["history"]["events"]]


def test_a_job_has_the_same_history_after_a_restart() -> None:
    before = running(A, B)
    before.passes(1)
    before.loses("w2")
    history = [
        "created", "its first task was sent to worker w1",
        "worker w2, which ran a task, was lost: its connection ended",
    ]  # fmt: skip
    assert events(before) == history
    after = restart(before)
    assert events(after) == [*history, "the master was restarted"]


def test_the_end_and_a_retry_are_in_the_history() -> None:
    cluster = running(A)
    cluster.failed("w1", A)
    cluster.machine.retry_job(cluster.job_of(), cluster.now_s)
    cluster.end_turn()
    cluster.done("w1", A, attempt=2)
    assert [text.partition(":")[0] for text in events(cluster)[2:]] == [
        "failed", "retried", "completed",
    ]  # fmt: skip


def test_a_cancellation_is_in_the_history() -> None:
    cluster = running(A)
    cluster.machine.cancel_job(cluster.job_of(), "its user did\nnot want it", cluster.now_s)
    assert events(cluster)[2:] == ["being cancelled: its user did"]
    cluster.worker_says("w1", TaskReported(A.id, 1, (), TaskFault("CANCELLED", "so"), 0.1))
    assert events(cluster)[3:] == ["cancelled: its user did"]


def test_the_history_of_a_job_is_bounded() -> None:
    cluster = running(A)
    for _ in range(100):
        cluster.machine.context.note(cluster.job_of(), "again")
    answer = ask(cluster, "job", job="last")["history"]
    assert (len(answer["events"]), answer["omitted"]) == (EVENTS_MAX, 102 - EVENTS_MAX)
    assert answer["events"][0][1] == "created"
