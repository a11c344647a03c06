"""Tracks cancelled attempts whose end the workers have not reported yet.

A cancelled job ends when none of its attempts runs.
"""

from __future__ import annotations

from ciel.core.jobs import Job
from ciel.master.state.context import Context
from ciel.master.state.workers import AttemptKey


class Cancellations:
    """The attempts of each job that is being cancelled or removed."""

    __slots__ = ("_attempts", "_context")

    def __init__(self, context: Context) -> None:
        self._context = context
        self._attempts: dict[str, tuple[Job, set[AttemptKey]]] = {}  # by job id

    def __len__(self) -> int:
        return len(self._attempts)

    def add(self, job: Job, attempt: AttemptKey) -> None:
        self._attempts.setdefault(job.spec.id, (job, set()))[1].add(attempt)

    def is_pending(self, job: Job) -> bool:
        """Return whether cancelled attempts of a job still run."""
        return job.spec.id in self._attempts

    def ended(self, job_id: str, attempt: AttemptKey) -> None:
        """Note that a worker reported the end of an attempt."""
        if job_id in self._attempts:
            self._remove(job_id, {attempt})

    def worker_lost(self, worker_id: str) -> None:
        """Note that a worker was lost with all its attempts."""
        for job_id, (_, attempts) in list(self._attempts.items()):
            self._remove(job_id, {attempt for attempt in attempts if attempt[0] == worker_id})

    def _remove(self, job_id: str, ended: set[AttemptKey]) -> None:
        job, attempts = self._attempts[job_id]
        attempts -= ended
        if not attempts:
            del self._attempts[job_id]
            self._context.touch(job)
