"""Handles the changes that workers request for attached processes.

A worker attaches a process on its host as the root task of a new job, and fails the job of an
attached process that has ended.
"""

from __future__ import annotations

from typing import Any

from ciel.core.errors import CielError
from ciel.core.events import AddTask
from ciel.core.ids import JobId, attached_process_id, check_id
from ciel.core.jobs import JOB_NAME_MAX_LENGTH, Job
from ciel.core.refs import Fixed
from ciel.core.scheduling import DEFAULT_SCHEDULING
from ciel.master.resources.submissions import Root, Submission, root_submission
from ciel.master.state.machine import MasterMachine

EXECUTOR = "proc"


def change(
    machine: MasterMachine, worker: str, topic: str, argument: Any, *, now_s: float
) -> dict[str, Any]:
    """Carry out a change that a worker requests. Raises CielError, and then changes nothing."""
    match topic, argument:
        case "attach", {"job": job, "name": str(name)}:
            if worker not in machine.workers:
                raise CielError("this worker was silent for too long, and has to join again")
            submission = _submission(
                JobId(check_id(job)), name, machine.workers[worker].facts.netloc
            )
            found = machine.submit_job(submission.spec, submission.tasks, submission.wanted, now_s)
        case "fail", {"job": str(job), "reason": str(reason)}:
            found = machine.find_job(job)
            _require_attached(found)
            machine.fail_job(found, reason, now_s)
        case _:
            raise CielError(f"a worker cannot request the change {topic!r:.60}")
    return {"job": found.spec.id, "number": found.number}


def _submission(job: JobId, name: str, netloc: str) -> Submission:
    """Create a job whose root task runs in the attached process, on the worker at `netloc`."""
    arguments = {"fixed": Fixed(attached_process_id(job), netloc)}
    root = Root(EXECUTOR, [], (), arguments, DEFAULT_SCHEDULING)
    submission = root_submission(root, job, arguments)
    name = name[:JOB_NAME_MAX_LENGTH]
    task, known = submission.tasks[0]
    tasks = (AddTask(task._replace(name=name), known),)
    return submission._replace(spec=submission.spec._replace(name=name), tasks=tasks)


def _require_attached(job: Job) -> None:
    if attached_process_id(job.spec.id) not in job.uploads:
        raise CielError(f"job {job.spec.id} does not belong to an attached process")
