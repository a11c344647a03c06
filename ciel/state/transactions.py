"""Transactions on a key-value base: several keys, all or nothing, isolated (KVB-2).

A transaction reads, and collects its writes. At its end one batch checks that the rows are as they
were read, and writes. If a row has changed, the batch writes nothing.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from ciel.state.batches import (
    Delete,
    Insert,
    Overlay,
    Put,
    Request,
    Row,
    Same,
    SameRange,
    Step,
    Update,
    digest,
)
from ciel.state.errors import ChangedError, KeyMissingError, KvError
from ciel.state.interface import Base
from ciel.state.names import Names, Where
from ciel.state.queues import Queue
from ciel.state.values import Values

T = TypeVar("T")
TRIES_MAX: Final = 100
PAUSE_MAX_S: Final = 0.1
"""The longest pause between two tries; the pauses are random, so that clients do not meet again."""
_NOTHING: Final = object()


class Transaction:
    """Reads and writes of several keys, in a `with`; the end of the block carries them out.

    The end raises ChangedError, and writes nothing, if another client has changed a row that the
    block has read; `KeyValues.transact` tries again. If the block raises, the end writes nothing.
    The block may have read values of different moments. Then the end raises ChangedError, also in
    place of an error of the block.

    `was_done`: a transaction with the same `once` was carried out before, perhaps by an earlier
    attempt of this task. Then this one writes nothing.
    """

    def __init__(
        self, base: Base, names: Names, values: Values, request: Request | None = None
    ) -> None:
        self._base = base
        self._names = names
        self._values = values
        self._request = request
        self._read: dict[bytes, bytes | None] = {}
        self._ranges: list[SameRange] = []
        self._steps: list[Step] = []
        self._view = Overlay(self._value, self._rows)
        self.was_done = False

    def get(self, key: str | bytes, default: Any = None) -> Any:
        """Return a value, `default` if the key is missing."""
        content = self._view.get(self._names.key(key))
        return default if content is None else self._values.decode(content)

    def __getitem__(self, key: str | bytes) -> Any:
        value = self.get(key, _NOTHING)
        if value is _NOTHING:
            raise KeyMissingError(self._names.key(key))
        return value

    def __contains__(self, key: str | bytes) -> bool:
        return self._view.get(self._names.key(key)) is not None

    def scan(
        self, first: str | None = None, last: str | None = None, *, prefix: str = "",
        where: Where | None = None,
    ) -> list[tuple[str, Any]]:  # fmt: skip
        """Return rows, ordered by key; see `KeyValues.scan`. The end of the transaction checks that
        the range has the same rows. Raises LackingError.
        """
        start, end = self._names.range(first, last, prefix)
        rows = self._view.rows(start, end)
        return list(self._names.decoded(rows, self._values.decode, where))

    def put(self, key: str | bytes, value: Any, ttl_s: float | None = None) -> None:
        self._write(Put(self._names.key(key), self._values.encode(value), ttl_s))

    __setitem__ = put

    def insert(self, key: str | bytes, value: Any, ttl_s: float | None = None) -> None:
        """Set the value of a key; at the end, refuse the transaction if the key is there."""
        self._write(Insert(self._names.key(key), self._values.encode(value), ttl_s))

    def update(self, key: str | bytes, value: Any) -> None:
        """Set the value of a key; at the end, refuse the transaction if the key is missing."""
        self._write(Update(self._names.key(key), self._values.encode(value)))

    def delete(self, key: str | bytes) -> None:
        """Remove a key; at the end, refuse the transaction if the key is missing."""
        self._write(Delete(self._names.key(key)))

    __delitem__ = delete

    def put_many(self, queue: Queue, values: Iterable[Any]) -> None:
        """Append values to a queue of the same base; they become visible with the transaction."""
        for step in queue.steps_to_put(self._view.get, values):
            self._write(step)

    def __enter__(self) -> Self:
        if self._request is not None:
            self.was_done = bool(self._base.is_done(self._request))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        reads: list[Step] = [Same(*row) for row in self._read.items()]
        if error is None and not self.was_done:
            self._base.apply([*reads, *self._ranges, *self._steps], self._request)
        elif isinstance(error, Exception) and not isinstance(error, KvError):
            self._base.apply([*reads, *self._ranges])  # it may have seen two moments

    def _write(self, step: Put | Insert | Update | Delete) -> None:
        self._steps.append(step)
        if isinstance(step, Delete):
            self._view.delete(step.key)
        else:
            self._view.put(step.key, step.value, None)

    def _value(self, key: bytes) -> bytes | None:
        if key not in self._read:
            self._read[key] = self._base.get(key)
        return self._read[key]

    def _rows(self, first: bytes, last: bytes | None) -> list[Row]:
        with self._base.snapshot() as moment:
            rows = list(moment.rows(first, last))
        self._ranges.append(SameRange(first, last, digest(rows)))
        return rows


def transact(begin: Callable[[], Transaction], function: Callable[[Transaction], T]) -> T:
    """Call a function with new transactions until one of them is carried out; return what the
    function has returned. Raises ChangedError after `TRIES_MAX`.
    """
    for tries in range(TRIES_MAX):
        try:
            with begin() as transaction:
                return function(transaction)
        except ChangedError:
            if tries == TRIES_MAX - 1:
                raise
            threading.Event().wait(random.random() * min(0.001 * 2**tries, PAUSE_MAX_S))
    raise AssertionError
