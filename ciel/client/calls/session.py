"""Protocols for the parts of a client and a job that calls use.

`Client` and `Job` satisfy them, and tests replace them by fakes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

from ciel.access.settings import MasterLocation
from ciel.client.errors import ObjectUnreadableError
from ciel.core.jobs import CallerContext, JobSummary
from ciel.core.refs import Future, Reference
from ciel.core.tasks import Mentions, Needs


class CallJob(Protocol):
    """The job whose tasks run the calls."""

    @property
    def id(self) -> str: ...

    @property
    def has_ended(self) -> bool: ...

    @property
    def refusal(self) -> str: ...

    @property
    def summary(self) -> JobSummary | None: ...

    def add(
        self,
        executor: str,
        arguments: dict[str, Any],
        *,
        n_outputs: int,
        needs: Needs,
        mentions: Mentions,
        name: str,
        sees_errors: bool,
        apart: Iterable[Reference],
    ) -> list[Future]: ...

    def want(self, refs: Iterable[Reference], tell: deque[Reference] | None) -> None: ...

    def release(self, refs: Iterable[Reference], *, for_good: bool = False) -> None: ...

    def replicate(self, refs: Iterable[Reference], copies: int) -> None: ...

    def settled(self, ref: Reference) -> Reference | None: ...

    def read(self, ref: Reference) -> bytes: ...

    def await_copy(self, unreadable: ObjectUnreadableError, ref: Reference) -> Reference: ...

    def close(self) -> None: ...


OpenJob = Callable[[CallerContext], CallJob]
"""Opens the job of the calls, whose tasks run in a directory and with an environment."""


class GrowingContent(Protocol):
    """An object that is read while a task writes it."""

    def read(self, size_bytes: int) -> bytes: ...

    def close(self) -> None: ...


class Session(Protocol):
    """The part of a client that calls use."""

    location: MasterLocation

    @property
    def is_delivering(self) -> bool: ...

    def slot_count(self) -> int: ...

    def read(self, ref: Reference) -> bytes: ...

    def read_chunks(
        self, ref: Reference, start: int = 0, end: int | None = None
    ) -> Iterator[bytes]: ...

    def read_growing(self, ref: Reference) -> GrowingContent: ...

    def map_object(self, ref: Reference) -> memoryview | None: ...

    def upload_content(self, content: bytes, name: str) -> Reference: ...

    def upload_pieces(self, pieces: Sequence[Any], name: str, copies: int) -> Reference: ...
