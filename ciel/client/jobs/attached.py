"""A job of another client whose results this client reads as well.

    job = client.attach(7)                # its number, its id, or "last"
    for name, ref in job.wanted():
        print(name, job.read(ref))

The job is not cancelled while its own client is away for less than the grace period, or while any
client is attached.
"""

from __future__ import annotations

import itertools
import secrets
from collections import deque
from types import TracebackType
from typing import Final

from ciel.client.jobs.job import Job, Session
from ciel.client.locks import ForkSafeCondition
from ciel.core.events import Message, WatchJob
from ciel.core.jobs import JobSpec, JobSummary
from ciel.core.refs import Reference
from ciel.wire.references import from_json

_ORDINALS: Final = 1 << 48  # the first number of a task is random, below this


class AttachedJob(Job):
    """A job of another client, created by `Client.attach`. As a context manager it does nothing."""

    def __init__(
        self,
        client: Session,
        summary: JobSummary,
        changed: ForkSafeCondition,
        tell: deque[Reference] | None = None,
    ) -> None:
        spec = JobSpec(summary.id, summary.name, open=True, detached=False, keep=False)
        super().__init__(client, spec, changed)
        # The number of a task is part of its name, and the job's own client counts from 0.
        self._ordinals = itertools.count(secrets.randbelow(_ORDINALS))
        self._tell = tell

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Do nothing: the job belongs to another client."""

    def submission(self) -> Message:
        """Return the message that subscribes to the job again."""
        return WatchJob(self.id)

    def take_settled(self, ref: Reference) -> None:
        """Process a message about an object, even if the job wanted it before the attachment."""
        self._wanted.setdefault(ref.id, self._tell)
        super().take_settled(ref)

    def wanted(self) -> list[tuple[str, Reference]]:
        """Return the job's wanted objects in the order of the wants; raises QueryError.

        Each is the name of the object's task, and a reference for `result`, `read` and so on.
        """
        rows: list[tuple[str, Reference]] = []
        first: int | None = 0
        while first is not None:
            page = self._client.ask("results", {"job": self.id, "first": first})
            rows += [(name, from_json(ref)) for name, ref in page["results"]]
            first = page["next"]
        return rows
