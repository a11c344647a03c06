"""Queues that the clients of a base share.

Each entry is a row, whose key ends with its number. A client that claims an entry holds a lease for
it. If the client dies, the lease ends, and another client can claim the entry.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from ciel.state.batches import (
    Delete,
    Increment,
    Put,
    Row,
    Same,
    Step,
    end_of_prefix,
    number_of,
)
from ciel.state.errors import RefusedError
from ciel.state.interface import Base
from ciel.state.leases import LEASE_S, WAKE_S, Lease
from ciel.state.values import Values

_LOOK_ROWS: Final = 64
"""How many entries a client looks at together, from the first one on."""


class Claim:
    """An entry of a queue that this client works on. Within a `with`, the end of the block confirms
    it, or gives it back if the block raises.
    """

    def __init__(self, value: Any, lease: Lease, entry: bytes) -> None:
        self.value = value
        self._lease = lease
        self._entry = entry

    @property
    def is_held(self) -> bool:
        """Whether no other client can have claimed the entry meanwhile."""
        return self._lease.is_held

    def done(self, further: Sequence[Step] = ()) -> None:
        """Remove the entry, in one batch with further steps. Raises LeaseLostError if it was given
        back meanwhile, and then another client works on it, or has.
        """
        self._lease.end([Delete(self._entry), *further])

    def give_back(self) -> None:
        """Let another client claim the entry. Raises LeaseLostError."""
        self._lease.end([])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if error is None:
            self.done()
        else:
            self.give_back()


class _Found(NamedTuple):
    entry: bytes
    content: bytes
    claim: bytes


class Queue:
    """A queue of values, first in, first out; clients that take entries at the same time may get
    them in another order. Methods have the names of `queue.Queue`.
    """

    def __init__(self, base: Base, key: bytes, values: Values) -> None:
        self._base = base
        self._values = values
        self._all = key + b"/"
        self._tail = key + b"/tail"
        self._entries = key + b"/entry/"
        self._claims = key + b"/claim/"

    def put(self, value: Any) -> None:
        self.put_many((value,))

    def put_many(self, values: Iterable[Any]) -> None:
        """Append values, which become visible together."""
        contents = [self._values.encode(value) for value in values]
        if contents:
            (last,) = self._base.apply([Increment(self._tail, len(contents))])
            first = int(last or 0) - len(contents)
            keys = [self._entries + b"%020d" % (first + place) for place in range(len(contents))]
            self._base.apply([Put(*row) for row in zip(keys, contents, strict=True)])

    def steps_to_put(
        self, read: Callable[[bytes], bytes | None], values: Iterable[Any]
    ) -> list[Put]:
        """Return steps that append values, for a batch that refuses changes of the values read."""
        last = number_of(self._tail, read(self._tail))
        contents = [self._values.encode(value) for value in values]
        steps = [Put(self._entries + b"%020d" % (last + place), content)
                 for place, content in enumerate(contents)]  # fmt: skip
        return [*steps, Put(self._tail, b"%d" % (last + len(contents)))] if steps else []

    def get(self, timeout_s: float | None = None) -> Any:
        """Remove an entry, and return its value. Raises `queue.Empty` after the timeout.

        If this client dies, the value is lost with it; `claim` avoids that.
        """

        def remove(found: _Found) -> Any:
            self._base.apply(
                [Same(found.entry, found.content), Same(found.claim, None), Delete(found.entry)]
            )
            return self._values.decode(found.content)

        return self._first(remove, timeout_s)

    def claim(self, timeout_s: float | None = None, lease_s: float = LEASE_S) -> Claim:
        """Return an entry that no other client gets, until it is given back, or this client has not
        renewed its lease for `lease_s`. Raises `queue.Empty` after the timeout.
        """

        def take(found: _Found) -> Claim:
            lease = Lease(self._base, found.claim, lease_s, "an entry of a queue")
            asked_s = time.monotonic()
            self._base.apply([Same(found.entry, found.content), *lease.steps_to_take])
            lease.begin(asked_s)
            return Claim(self._values.decode(found.content), lease, found.entry)

        claim: Claim = self._first(take, timeout_s)
        return claim

    def __len__(self) -> int:
        """Return the number of entries, claimed ones included."""
        return sum(1 for _ in self._rows())

    def _first(self, take: Any, timeout_s: float | None) -> Any:
        """Return what `take` makes of the first entry that it does not refuse."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        with self._base.watch(self._all) as watch:
            while True:
                for found in self._unclaimed():
                    try:
                        return take(found)
                    except RefusedError:
                        continue  # another client was faster
                left_s = WAKE_S if deadline_s is None else deadline_s - time.monotonic()
                if left_s <= 0:
                    raise queue.Empty
                watch.wait(min(left_s, WAKE_S))

    def _unclaimed(self) -> Iterator[_Found]:
        rows = self._rows()
        while part := list(islice(rows, _LOOK_ROWS)):
            claims = [self._claims + key.removeprefix(self._entries) for key, _ in part]
            for (key, content), claim, holder in zip(
                part, claims, self._base.read(claims), strict=True
            ):
                if holder is None:
                    yield _Found(key, content, claim)

    def _rows(self) -> Iterator[Row]:
        rows = self._base.scan(self._entries, end_of_prefix(self._entries))
        return rows if self._base.capabilities.is_ordered else iter(sorted(rows))
