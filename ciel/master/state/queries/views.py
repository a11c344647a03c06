"""JSON views of jobs, tasks and workers for HTTP, in the forms of ciel and of the original CIEL.

The states are mapped to those of the original, which had fewer: a job that is being cancelled is
still ACTIVE. `epoch_s` plus a time of the master's clock is the time since the epoch.
"""

from __future__ import annotations

from itertools import islice
from typing import Any, Final

from ciel.core.graph.nodes import TaskNode
from ciel.core.ids import ObjectId, root_task_id
from ciel.core.jobs import Job, JobState, JobSummary, summarise, summarise_briefly
from ciel.core.refs import Reference
from ciel.core.tasks import TaskState
from ciel.master.state.machine import MasterMachine
from ciel.master.state.workers import WorkerNode

LISTED_MAX: Final = 1000
"""The maximum length of a list in a description; pages contain the rest."""

ORIGINAL_JOB_STATES: Final = {
    JobState.ACTIVE: "ACTIVE",
    JobState.COMPLETED: "COMPLETED",
    JobState.FAILED: "FAILED",
    JobState.CANCELLING: "ACTIVE",
    JobState.CANCELLED: "CANCELLED",
}
ORIGINAL_TASK_STATES: Final = {
    TaskState.DORMANT: "CREATED",
    TaskState.WAITING: "BLOCKING",
    TaskState.RUNNABLE: "RUNNABLE",
    TaskState.ASSIGNED: "ASSIGNED",
    TaskState.DONE: "COMMITTED",
    TaskState.FAILED: "FAILED",
    TaskState.CANCELLED: "ABORTED",
}


# --- the form of ciel -----------------------------------------------------------------------------


def job(found: Job, epoch_s: float) -> dict[str, Any]:
    """Describe a job."""
    return _row(found, summarise(found), epoch_s)


def _row(found: Job, summary: JobSummary, epoch_s: float) -> dict[str, Any]:
    ended_at_s = None if summary.ended_at_s is None else round(summary.ended_at_s + epoch_s, 3)
    return {
        "id": summary.id,
        "number": summary.number,
        "name": summary.name,
        "state": summary.state,
        "reason": summary.reason,
        "counts": summary.counts,
        "created_at_s": round(summary.created_at_s + epoch_s, 3),
        "ended_at_s": ended_at_s,
        "wanted": summary.wanted,
        "unsettled": summary.unsettled,
        "handed_over": summary.handed_over,
        "open": found.open,
        "detached": found.spec.detached,
        "keep": found.spec.keep,
    }


def jobs(
    machine: MasterMachine, epoch_s: float, *, before: int | None, limit: int, state: str | None
) -> dict[str, Any]:
    """Return a page of jobs with numbers below `before`, the newest first.

    `next` is the `before` of the next page, None at the end.
    """
    rows: list[dict[str, Any]] = []
    last = None
    for found in machine.job_table.newest_first():
        if before is not None and found.number >= before:
            continue
        if len(rows) == limit:
            return {"jobs": rows, "next": last, "total": len(machine.jobs)}
        if state is None or found.state.value == state:
            rows.append(_row(found, summarise_briefly(found), epoch_s))
            last = found.number
    return {"jobs": rows, "next": None, "total": len(machine.jobs)}


# --- the form of the original ---------------------------------------------------------------------


def original_job(machine: MasterMachine, found: Job) -> dict[str, Any]:
    """Describe a job as the original did; references are not encoded."""
    root = root_task_id(found.spec.id)
    first = root if root in machine.graph.tasks else next(iter(found.tasks), None)
    outputs = list(islice(found.wanted, LISTED_MAX))
    policy, options = found.spec.scheduling
    return {
        "job_id": found.spec.id,
        "task_counts": {name: found.counts[state] for state, name in ORIGINAL_TASK_STATES.items()},
        "state": ORIGINAL_JOB_STATES[found.state],
        "root_task": first,
        "expected_outputs": outputs,
        "result_ref": _settled(machine, outputs[0]) if outputs else None,
        "job_options": {"scheduler": policy, "sched_opts": dict(options)},
    }


def _settled(machine: MasterMachine, object_id: ObjectId) -> Reference | None:
    node = machine.graph.objects.get(object_id)
    return node.ref if node is not None and node.is_settled else None


def original_task(machine: MasterMachine, task: TaskNode, epoch_s: float) -> dict[str, Any]:
    """Describe a task as the original's long form did.

    `task_private` is None, since only the executor can decode the arguments.
    """
    spec = task.spec
    reference = machine.graph.objects.reference
    task_history = machine.histories.get(spec.id)
    return {
        "task_id": spec.id,
        "job": spec.job,
        "handler": spec.executor,
        "dependencies": [reference(object_id) for object_id in spec.inputs[:LISTED_MAX]],
        "expected_outputs": list(spec.outputs[:LISTED_MAX]),
        "task_private": None,
        "inputs": [],
        "parent": None if spec.parent == spec.job else spec.parent,
        "event_index": 0,
        "state": ORIGINAL_TASK_STATES[task.state],
        "children": list(islice((task.children or {}).values(), LISTED_MAX)),
        "worker": task.worker,
        "history": [[at_s + epoch_s, text] for at_s, text in task_history.events]
        if task_history
        else [],
        "profiling": {},
    }


def original_worker(node: WorkerNode, epoch_s: float) -> dict[str, Any]:
    """Describe a worker as the original did. A failed worker is not listed."""
    facts = node.facts
    return {
        "worker_id": facts.id,
        "netloc": facts.netloc,
        "features": sorted(facts.executors),
        "last_ping": round(node.heard_at_s + epoch_s, 3),
        "failed": False,
    }
