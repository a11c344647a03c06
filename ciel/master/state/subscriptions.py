"""Tracks which clients watch a job, and which client a job belongs to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ciel.core.events import CLIENT_GRACE_S as CLIENT_GRACE_S
from ciel.core.jobs import ENDED, Job, JobState


class Subscriptions:
    """The clients that watch each job, and the client that owns it.

    Any number of clients may watch a job. A job that is detached and closed has no owner.
    """

    def __init__(self) -> None:
        self._owners: dict[str, str] = {}  # by job
        self._watchers: dict[str, dict[str, bool]] = {}  # job: client: whether it gets task output
        self._orphans: dict[str, float] = {}  # job: when it is cancelled if no client takes it
        self._catching_up: set[tuple[str, str]] = set()  # (client, job) pairs

    def of(self, job_id: str) -> Iterable[str]:
        """Return the clients that watch a job."""
        return self._watchers.get(job_id, ())

    def state_watchers(self, job_id: str) -> list[str]:
        """Return the watchers that get the state of the job now.

        A client that is still being sent earlier results gets the state after them.
        """
        late = self._catching_up
        watchers = self._watchers.get(job_id, ())
        return [client for client in watchers if not late or (client, job_id) not in late]

    def catch_up(self, client: str, job_id: str) -> None:
        """Note that a client is being sent the existing results of a job."""
        self._catching_up.add((client, job_id))

    def caught_up(self, client: str, job_id: str) -> None:
        self._catching_up.discard((client, job_id))

    def output_watchers(self, job_id: str) -> list[str]:
        """Return the watchers that get the output of tasks."""
        return [client for client, listens in self._watchers.get(job_id, {}).items() if listens]

    def watch(self, client: str, job: Job, *, prints: bool = False) -> None:
        """Subscribe a client to a job until no more changes can follow.

        A recomputed result is such a change. If the job has lost its owner, the client becomes its
        owner.
        """
        job_id = job.spec.id
        if job.state not in ENDED or job.unsettled:
            watchers = self._watchers.setdefault(job_id, {})
            watchers[client] = prints or watchers.get(client, False)
        if self._orphans.pop(job_id, None) is not None:
            self._owners[job_id] = client

    def own(self, client: str, job: Job) -> None:
        """Make a client the owner of a job that has not ended.

        A detached job has an owner only until it is closed, since no other client can add the
        missing tasks.
        """
        if job.state not in ENDED:
            self._orphans.pop(job.spec.id, None)
            if job.open or not job.spec.detached:
                self._owners[job.spec.id] = client

    def gone(self, client: str, jobs: Mapping[str, Job], due_s: float) -> None:
        """Note that a client has disconnected.

        A job that it owned is cancelled if no client watches the job at `due_s`.
        """
        for watchers in self._watchers.values():
            watchers.pop(client, None)
        for job_id in [job_id for job_id, owner in self._owners.items() if owner == client]:
            del self._owners[job_id]
            if others := self._watchers.get(job_id):
                self._owners[job_id] = next(iter(others))
            elif jobs[job_id].state is JobState.ACTIVE:
                self._orphans[job_id] = due_s

    def expired(self, now_s: float) -> list[str]:
        """Return the jobs whose grace period is over, each once."""
        due = [job_id for job_id, due_s in self._orphans.items() if now_s >= due_s]
        for job_id in due:
            del self._orphans[job_id]
        return due

    def disown(self, job_id: str) -> None:
        """Note that a job needs no owner any more: it has ended, or is detached and closed."""
        self._owners.pop(job_id, None)
        self._orphans.pop(job_id, None)

    def remove_watchers(self, job_id: str) -> None:
        """Note that a job will not change any more."""
        self._watchers.pop(job_id, None)

    def jobs(self) -> set[str]:
        """Return all jobs in these tables, for tests."""
        return {*self._owners, *self._watchers, *self._orphans}
