"""Tests jobs that the machine receives whole, from a caller that does not stay connected."""

from __future__ import annotations

import pytest

from ciel.core.errors import CielError
from ciel.core.events import AddTask, AssignTask, MeetWorkers, SubmitJob, TaskFault, TaskReported
from ciel.core.graph.invariants import validate
from ciel.core.ids import JobId, ObjectId
from ciel.core.jobs import JobState
from ciel.core.tasks import TaskSpec, TaskState
from ciel.master.state.machine import MasterMachine
from ciel.testing.builders import JOB, a_job_spec, a_task, a_worker, inline

SPEC = a_job_spec(open=False, detached=True)


@pytest.fixture
def machine() -> MasterMachine:
    machine = MasterMachine()
    machine.worker_joined(a_worker("w1", slots=4), 1.0)
    return machine


def begin(machine: MasterMachine, *tasks: TaskSpec, job: str = JOB) -> None:
    spec = SPEC._replace(id=JobId(job))
    wanted = tuple(ObjectId(task.outputs[0]) for task in tasks)
    machine.submit_job(spec, [AddTask(task, ()) for task in tasks], wanted, 2.0)
    machine.end_tick(2.0)


def report(machine: MasterMachine, task: TaskSpec, fault: TaskFault | None = None) -> None:
    made = () if fault else (inline(task.outputs[0]),)
    machine.worker_sent("w1", TaskReported(task.id, 1, made, fault, 0.5), 3.0)
    machine.end_tick(3.0)


def totals(machine: MasterMachine) -> dict[str, int]:
    kept = {str(state): count for state, count in machine.job_table.task_totals.items() if count}
    states = [task.state for task in machine.graph.tasks.values()]
    assert kept == {str(state): states.count(state) for state in TaskState if state in states}
    jobs = [job.state for job in machine.jobs.values()]
    assert machine.job_table.totals == {state: jobs.count(state) for state in JobState}
    return kept


def test_a_whole_job_runs_to_its_end_and_its_end_is_reported_once(machine: MasterMachine) -> None:
    first, second = a_task("a"), a_task("b", inputs=["a"], ordinal=1)
    begin(machine, first, second)
    assert [type(message) for _, message in machine.outbox] == [MeetWorkers, AssignTask, AssignTask]
    assert machine.job_table.ended == []
    report(machine, first)
    report(machine, second)
    assert machine.job_table.ended == [machine.jobs[JOB]]
    assert machine.jobs[JOB].state is JobState.COMPLETED
    assert totals(machine) == {"done": 2}
    assert machine.timeline.totals == {"done": 2, "failed": 0, "lost": 0}
    assert machine.timeline.run_s == 1.0


def test_a_refused_job_leaves_nothing(machine: MasterMachine) -> None:
    begin(machine, a_task("a"))
    known = inline("there")
    taken = a_task("x", inputs=["there"], job="other")
    machine.submit_job(SPEC._replace(id=JobId("other")), [AddTask(taken, (known,))], (), 2.0)
    before = (totals(machine), len(machine.graph.objects), list(machine.jobs))
    good, bad = a_task("c", job="third"), a_task("there", job="third", ordinal=1)
    with pytest.raises(CielError, match="exists already"):
        begin(machine, good, bad, job="third")
    machine.end_tick(2.0)
    assert (totals(machine), len(machine.graph.objects), list(machine.jobs)) == before
    validate(machine.graph)


def test_a_second_job_with_the_same_id_is_refused(machine: MasterMachine) -> None:
    begin(machine, a_task("a"))
    with pytest.raises(CielError, match="a job job exists already"):
        begin(machine, a_task("b"))
    assert machine.job_table.count == 1


@pytest.mark.parametrize("job", ["last", "all", "1", "0017"])
def test_a_job_id_that_is_also_a_selector_is_refused(machine: MasterMachine, job: str) -> None:
    with pytest.raises(CielError, match=f"cannot have the id {job}"):
        begin(machine, a_task("a", job=job), job=job)
    assert not machine.jobs
    machine.client_sent("c", SubmitJob(SPEC._replace(id=JobId(job))), 2.0)
    assert not machine.jobs


def test_totals_follow_failures_retries_and_removal(machine: MasterMachine) -> None:
    task = a_task("a")
    begin(machine, task)
    report(machine, task, TaskFault("RUNTIME_EXCEPTION", "it broke"))
    assert totals(machine) == {"failed": 1}
    machine.retry_job(machine.jobs[JOB], 4.0)
    machine.end_tick(4.0)
    assert totals(machine) == {"assigned": 1}
    machine.cancel_job(machine.jobs[JOB], "enough", 5.0)
    machine.worker_lost("w1", "gone", 6.0)
    machine.end_tick(6.0)
    assert totals(machine) == {"cancelled": 1}
    assert (
        machine.membership.joined_count,
        machine.membership.lost_count,
        machine.workers_version,
    ) == (1, 1, 2)
    machine.remove_job(machine.jobs[JOB])
    assert totals(machine) == {}
    assert machine.job_table.count == 1
