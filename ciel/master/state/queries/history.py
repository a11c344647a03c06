"""Reports where and when tasks ran, how their programs ended, and their commands.

Payloads are passed on undecoded; the reader decodes them (see `execution.commands`).
"""

from __future__ import annotations

from typing import Any, Final

from ciel.core.graph.nodes import TaskNode
from ciel.core.jobs import Job
from ciel.core.tasks import TaskSpec
from ciel.master.state.machine import MasterMachine

PAYLOAD_MAX_BYTES: Final = 16 << 10
"""Longer payloads are left out: few command lines are longer, and a listing has 1,000 tasks."""
WORKERS_LISTED_MAX: Final = 1000


def ran(machine: MasterMachine, task: TaskNode) -> dict[str, Any]:
    """Describe where and when the latest attempt at a task ran, and how its program ended.

    Times are seconds since the epoch; unknown values are None.
    """
    ending = task.ending
    if task.worker is not None or ending is None:
        node = machine.workers.get(task.worker or "")
        hostname = None if node is None else node.facts.hostname
        return _row(task.worker, hostname, None, None, None)
    ended_at_s = ending.ended_at_s + machine.epoch_s
    return _row(ending.worker, ending.hostname, ended_at_s, ending.run_s, ending.exit_status)


def _row(
    worker: str | None, hostname: str | None, ended_at_s: float | None, run_s: float | None,
    exit_status: int | None,
) -> dict[str, Any]:  # fmt: skip
    started_at_s = None
    if ended_at_s is not None and run_s is not None:
        started_at_s, ended_at_s = round(ended_at_s - run_s, 3), round(ended_at_s, 3)
    return {
        "worker": worker,
        "hostname": hostname or None,
        "started_at_s": started_at_s,
        "ended_at_s": ended_at_s,
        "run_s": None if run_s is None else round(run_s, 6),
        "exit_status": exit_status,
    }


def payload_text(spec: TaskSpec) -> str | None:
    """Return a task's payload as text; None if it is too long or not UTF-8."""
    if len(spec.payload) > PAYLOAD_MAX_BYTES:
        return None
    try:
        return spec.payload.decode()
    except UnicodeDecodeError:
        return None


def first_task(job: Job) -> dict[str, Any] | None:
    """Describe the first task of a job, even if it is forgotten."""
    spec = job.first
    if spec is None:
        return None
    return {"executor": spec.executor, "name": spec.name, "payload": payload_text(spec)}


def ran_on(job: Job) -> dict[str, int]:
    """Count the attempts of a job that ended on each worker.

    At most `WORKERS_LISTED_MAX` workers are listed.
    """
    return dict(list(job.ran_on.items())[:WORKERS_LISTED_MAX])


def of_job(machine: MasterMachine, job: Job) -> dict[str, Any]:
    """Return the history of a job: its events, with seconds since the epoch.

    `omitted` events are missing before the latest half.
    """
    events = [[round(at_s + machine.epoch_s, 3), text] for at_s, text in job.history.events]
    return {"events": events, "omitted": job.history.omitted}
