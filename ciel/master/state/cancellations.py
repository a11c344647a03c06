"""Tracks the attempts that workers were told to stop and that have not ended yet: a cancelled job
ends when none of its attempts runs.
"""

from __future__ import annotations

from ciel.core.jobs import Job
from ciel.master.state.context import Context
from ciel.master.state.workers import Call


class Cancellations:
    """The attempts of each job that is being cancelled or removed."""

    __slots__ = ("_calls", "_context")

    def __init__(self, context: Context) -> None:
        self._context = context
        self._calls: dict[str, tuple[Job, set[Call]]] = {}  # by job id

    def __len__(self) -> int:
        return len(self._calls)

    def add(self, job: Job, call: Call) -> None:
        self._calls.setdefault(job.spec.id, (job, set()))[1].add(call)

    def is_pending(self, job: Job) -> bool:
        """Return whether attempts of a job still run."""
        return job.spec.id in self._calls

    def ended(self, job_id: str, call: Call) -> None:
        """Note that a worker reported the end of an attempt."""
        if job_id in self._calls:
            self._remove(job_id, {call})

    def worker_lost(self, worker_id: str) -> None:
        """Note that a worker is gone with all its attempts."""
        for job_id, (_, calls) in list(self._calls.items()):
            self._remove(job_id, {call for call in calls if call[0] == worker_id})

    def _remove(self, job_id: str, ended: set[Call]) -> None:
        job, calls = self._calls[job_id]
        calls -= ended
        if not calls:
            del self._calls[job_id]
            self._context.touch(job)
