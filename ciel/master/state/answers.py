"""What the master tells those who ask: status, workers, jobs. It changes nothing."""

from __future__ import annotations

from collections import Counter
from typing import Any

from ciel.core.errors import CielError
from ciel.core.jobs import Job, summarise
from ciel.core.refs import Failure, Reference
from ciel.master.state.machine import MasterMachine

RESULTS_MAX = 1000
FAILURES_MAX = 100
JOBS_LISTED_MAX = 10_000


class UnknownQuestionError(CielError):
    """A question that cannot be answered; the text says why."""


def workers(machine: MasterMachine, now_s: float) -> list[dict[str, Any]]:
    """Describe every worker that is there."""
    return [
        {
            "worker": worker.facts.id,
            "netloc": worker.facts.netloc,
            "host": worker.facts.host,
            "slots": worker.facts.slots,
            "running": min(worker.slots_used, worker.facts.slots),
            "queued": max(worker.slots_used - worker.facts.slots, 0) + len(worker.parked),
            "silent_s": round(now_s - worker.heard_at_s, 3),
            "executors": sorted(worker.facts.executors),
        }
        for worker in machine.workers.values()
    ]


def status(machine: MasterMachine, now_s: float) -> dict[str, Any]:
    """Describe the cluster as a whole."""
    tasks: Counter[str] = Counter()
    for job in machine.jobs.values():
        for state, count in job.counts.items():
            if count:
                tasks[str(state)] += count
    return {
        "workers": workers(machine, now_s),
        "jobs": dict(Counter(str(job.state) for job in machine.jobs.values())),
        "tasks": dict(tasks),
        "objects": len(machine.graph.objects),
    }


def jobs(machine: MasterMachine, limit: Any) -> list[list[Any]]:
    """List jobs, the newest last."""
    count = limit if isinstance(limit, int) and 0 < limit < JOBS_LISTED_MAX else JOBS_LISTED_MAX
    return [list(summarise(job)) for job in list(machine.jobs.values())[-count:]]


def find(machine: MasterMachine, selector: Any) -> Job:
    """Find a job by number, id, or `last`."""
    everyone = machine.jobs
    if selector == "last" and everyone:
        return next(reversed(everyone.values()))
    if isinstance(selector, str) and selector in everyone:
        return everyone[selector]
    if isinstance(selector, str) and selector.isdecimal():
        selector = int(selector)
    for job in everyone.values():
        if job.number == selector:
            return job
    raise UnknownQuestionError(f"no job {selector}; there are {len(everyone)}")


def job(machine: MasterMachine, selector: Any) -> dict[str, Any]:
    """Describe one job: its summary, its results, and what failed with its story."""
    found = find(machine, selector)
    reference = machine.graph.objects.reference
    results: list[Reference] = [reference(object_id) for object_id in found.wanted]
    failures = [list(ref) for ref in results if isinstance(ref, Failure)]
    return {
        "summary": list(summarise(found)),
        "results": results[:RESULTS_MAX],
        "failures": failures[:FAILURES_MAX],
        "open": found.open,
    }


def answer(machine: MasterMachine, topic: str, argument: Any, now_s: float) -> Any:
    """Answer a question, references not encoded yet; raises UnknownQuestionError."""
    arguments = argument if isinstance(argument, dict) else {}
    match topic:
        case "status":
            return status(machine, now_s)
        case "workers":
            return workers(machine, now_s)
        case "jobs":
            return jobs(machine, arguments.get("limit"))
        case "job":
            return job(machine, arguments.get("job"))
    raise UnknownQuestionError(f"this master knows nothing about {topic!r}")
