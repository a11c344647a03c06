"""The interface of key-value bases (KVB-2), and the guarantees that some of them lack.

`ciel.testing.state_suite` tests this contract for each base. Keys and values are bytes; `keyvalues`
adds names and Python values.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import NamedTuple, Self

from ciel.state.batches import (
    BATCH_MAX_BYTES,
    RESERVED,
    Request,
    Result,
    Row,
    Step,
    request_key,
    request_number,
)
from ciel.state.errors import LackingError


class Capabilities(NamedTuple):
    """The guarantees that some bases lack.

    - `is_ordered`: scans return rows ordered by key.
    - `has_atomic_scan`: a scan can show one moment; a batch may have a `SameRange`.
    - `is_durable`: acknowledged batches survive the end of the base's process.
    - `is_shared`: other processes can use the base at the same time.
    - `steps_max`, `batch_max_bytes`: the largest number of steps of a batch, and of bytes.
    """

    is_ordered: bool = True
    has_atomic_scan: bool = True
    is_durable: bool = True
    is_shared: bool = True
    steps_max: int = 1_000_000
    batch_max_bytes: int = BATCH_MAX_BYTES


class Closing:
    """Closes an object at the end of a `with`."""

    def close(self) -> None:
        """Release what the object holds; a second call does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.close()


class Snapshot(Closing, ABC):
    """A base as it was at one moment. Only one thread at a time may use it, until it is closed."""

    @abstractmethod
    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key; None if it is missing."""

    @abstractmethod
    def rows(self, first: bytes = b"", last: bytes | None = None) -> Iterator[Row]:
        """Yield the rows from `first` to before `last`, or to the end, ordered by key."""


class Watch(Closing, ABC):
    """Learns of changes of the keys with one prefix, from its creation on.

    Changes that follow each other closely may be reported once.
    """

    @abstractmethod
    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until something has changed since the last call, and return True; return False
        after the timeout. It may return True although nothing has changed. A key whose lifetime has
        ended may be reported late, or not at all.
        """


class Base(Closing, ABC):
    """A key-value base, which several threads may use at the same time.

    `name`: how messages call it.
    """

    name: str
    capabilities: Capabilities

    @abstractmethod
    def read(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of keys at one moment, None for each that is missing."""

    @abstractmethod
    def apply(self, steps: Sequence[Step], request: Request | None = None) -> list[Result]:
        """Carry out a batch at one moment, or nothing of it; return the result of each step.

        All writes are visible together, also to scans of one moment. The same request again returns
        the same results, and changes nothing. Raises RefusedError, LimitError, StaleRequestError;
        LackingError for a `SameRange` without `has_atomic_scan`; UnreachableError.
        """

    @abstractmethod
    def scan(self, first: bytes = b"", last: bytes | None = None) -> Iterator[Row]:
        """Yield the rows from `first` to before `last`, or to the end; each as it is when it is
        reached. Batches meanwhile may be seen in part.
        """

    def snapshot(self) -> Snapshot:
        """Return the base as it is now; raises LackingError."""
        raise LackingError(self.name, "show its rows as of one moment")

    @abstractmethod
    def watch(self, prefix: bytes) -> Watch:
        """Return a watch of the keys that start with a prefix."""

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key; None if it is missing."""
        return self.read((key,))[0]

    def is_done(self, request: Request) -> bool:
        """Return whether a request, or a later one of its client, was carried out."""
        stored = self.get(request_key(request))
        return stored is not None and request_number(stored) >= request.number


def end_of_scan(last: bytes | None) -> bytes:
    """Return the end of a scan, at the latest before the reserved keys."""
    return RESERVED if last is None else min(last, RESERVED)
