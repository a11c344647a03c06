"""Tracks which clients watch a job, and which client a job belongs to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ciel.core.events import CLIENT_GRACE_S as CLIENT_GRACE_S
from ciel.core.jobs import ENDED, Job, JobState


class Subscriptions:
    """The clients of every job: any number may watch it; one owns it, unless it is detached and
    closed.
    """

    def __init__(self) -> None:
        self._owners: dict[str, str] = {}  # job: the client that answers for it
        self._watchers: dict[str, dict[str, bool]] = {}  # job: clients; do they want its prints?
        self._orphans: dict[str, float] = {}  # job: when it is cancelled for want of a client

    def of(self, job_id: str) -> Iterable[str]:
        """Name the clients that are told of a job."""
        return self._watchers.get(job_id, ())

    def listeners(self, job_id: str) -> list[str]:
        """Name those of them that are told of what its tasks print."""
        return [client for client, listens in self._watchers.get(job_id, {}).items() if listens]

    def watch(self, client: str, job: Job, *, prints: bool = False) -> None:
        """Have a client told of a job while there is news to come: also of results made again. It
        answers for the job if nobody else does who should.
        """
        job_id = job.spec.id
        if job.state not in ENDED or job.unsettled:
            watchers = self._watchers.setdefault(job_id, {})
            watchers[client] = prints or watchers.get(client, False)
        if self._orphans.pop(job_id, None) is not None:
            self._owners[job_id] = client

    def own(self, client: str, job: Job) -> None:
        """Have a client answer for a job that is not over; for a detached one until it is closed,
        since nobody else can say the rest.
        """
        if job.state not in ENDED:
            self._orphans.pop(job.spec.id, None)
            if job.open or not job.spec.detached:
                self._owners[job.spec.id] = client

    def gone(self, client: str, jobs: Mapping[str, Job], due_s: float) -> None:
        """A client is gone: its jobs are cancelled when nobody has come by `due_s`."""
        for watchers in self._watchers.values():
            watchers.pop(client, None)
        for job_id in [job_id for job_id, owner in self._owners.items() if owner == client]:
            del self._owners[job_id]
            if others := self._watchers.get(job_id):
                self._owners[job_id] = next(iter(others))
            elif jobs[job_id].state is JobState.ACTIVE:
                self._orphans[job_id] = due_s

    def forsaken(self, now_s: float) -> list[str]:
        """Name the jobs whose grace period is over, each once."""
        due = [job_id for job_id, due_s in self._orphans.items() if now_s >= due_s]
        for job_id in due:
            del self._orphans[job_id]
        return due

    def disown(self, job_id: str) -> None:
        """Nobody answers for a job any more: it is over, or detached and closed."""
        self._owners.pop(job_id, None)
        self._orphans.pop(job_id, None)

    def dismiss(self, job_id: str) -> None:
        """There will be no more news of a job."""
        self._watchers.pop(job_id, None)

    def jobs(self) -> set[str]:
        """Name the jobs that it remembers anything of; for tests."""
        return {*self._owners, *self._watchers, *self._orphans}
