"""A job that another client began, for those who want its results, too.

    job = client.attach(7)                # its number, its id, or "last"
    for name, ref in job.wanted():
        print(name, job.read(ref))

Nothing of it is lost while its own client is away for less than its grace period, or while anybody
is attached.
"""

from __future__ import annotations

import itertools
import secrets
from collections import deque
from types import TracebackType
from typing import TYPE_CHECKING, Final

from ciel.client.jobs.job import Job
from ciel.core.jobs import JobSpec, JobSummary
from ciel.core.refs import Reference
from ciel.wire.references import from_json

if TYPE_CHECKING:
    from ciel.client.jobs.client import JobClient
    from ciel.client.locks import Changes

_ORDINALS: Final = 1 << 48  # so many numbers there are to begin with, for the tasks of who joins


class AttachedJob(Job):
    """A job of somebody else's; made by `Client.attach`. While it is attached it is not cancelled
    for want of its client. As a context, it is left as it is.
    """

    def __init__(
        self,
        client: JobClient,
        summary: JobSummary,
        changed: Changes,
        tell: deque[Reference] | None = None,
    ) -> None:
        spec = JobSpec(summary.id, summary.name, open=True, detached=False, keep=False)
        super().__init__(client, spec, changed)
        # Tasks are named by their numbers, and those of others count from 0.
        self._ordinals = itertools.count(secrets.randbelow(_ORDINALS))
        self._tell = tell

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Leave it to others."""

    def take_settled(self, ref: Reference) -> None:
        """Take in what the job wanted before we came, too."""
        self._wanted.setdefault(ref.id, self._tell)
        super().take_settled(ref)

    def wanted(self) -> list[tuple[str, Reference]]:
        """Return what the job wants as it is now, in the order in which it was wanted: names of
        tasks, and references to be given to `result`, `read` and the like. Raises QueryError.
        """
        rows: list[tuple[str, Reference]] = []
        first: int | None = 0
        while first is not None:
            page = self._client.ask("results", {"job": self.id, "first": first})
            rows += [(name, from_json(ref)) for name, ref in page["results"]]
            first = page["next"]
        return rows
