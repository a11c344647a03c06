"""The rows as a command sees them, with its writes so far."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import TypeVar

from ciel.state.bases.rows import (
    ELEMENT,
    GARBAGE,
    KEPT,
    Kind,
    content_of,
    end_of,
    garbage_of,
    is_there,
    kind_of,
    pack_row,
    value_of,
)
from ciel.state.batches import RESERVED, Row
from ciel.state.errors import KindError, LimitError
from ciel.state.server.buffered import BufferedRows
from ciel.state.server.layers import Layer, Layers
from ciel.state.server.limits import KvLimits
from ciel.state.server.log import CLEARED

Rows = dict[bytes, bytes | None]
Part = TypeVar("Part", bytes, bytes | None)


class RowsView:
    """Reads rows, and collects writes. It is also a `batches.View`.

    `writes`: of the current command; `done`: of earlier commands of the same transaction; `before`:
    the rows that these replace, as far as they are known. `now_us`: the time of the command.
    `base`: where the rows are, if they may change.
    """

    def __init__(
        self, layers: Layers, limits: KvLimits, now_us: int = 0, base: BufferedRows | None = None
    ) -> None:
        self.layers = layers
        self.limits = limits
        self.now_us = now_us
        self._base = base
        self.writes: Rows = {}
        self.done: Rows = {}
        self.before: Rows = {}
        self._is_cleared = False

    def accept(self) -> None:
        """Keep what the current command has written."""
        self.done.update(self.writes)
        self.writes = {}

    def refuse(self) -> None:
        """Forget what the current command has written."""
        self.writes = {}
        if not self.done:
            self.before = {}

    def take(self) -> tuple[Rows, Rows]:
        """Return all that was written, and the rows before; forget both."""
        writes = self.done | self.writes if self.done else self.writes
        before = self.before
        self.writes, self.done, self.before, self._is_cleared = {}, {}, {}, False
        return writes, before

    def count(self) -> int:
        """Return the number of keys of users, also of those that have ended a moment ago."""
        writes = self.done | self.writes
        return (self.layers.size_with(writes, self.before) if writes else self.layers.size).rows

    # Rows

    def row(self, key: bytes) -> bytes | None:
        """Return a row; None if there is none, or it has ended."""
        row = self._stored(key)
        return row if row is None or is_there(row, self.now_us) else None

    def row_of(self, key: bytes, kind: Kind) -> bytes | None:
        """Return a row of a kind; None if there is none. Raises KindError for another kind."""
        row = self.row(key)
        if row is not None and kind_of(row) != kind:
            raise KindError(Kind(kind_of(row)).name)
        return row

    def write(self, key: bytes, row: bytes | None) -> None:
        """Replace a row, or remove it; raises LimitError."""
        if row is not None and len(row) > self.limits.value_bytes and key < KEPT:
            self._check_size(row)
        if key in self.writes:
            before = self.writes[key]
        elif key in self.done:
            before = self.done[key]
        elif self._is_cleared and key < KEPT:
            before = None
        else:
            before = self.before[key] = self.layers.row(key)
        garbage = garbage_of(before, row)
        if garbage is not None:
            self.writes[garbage] = b"\0"
        self.writes[key] = row

    def clear(self) -> None:
        """Remove all rows but those that are kept (`rows.KEPT`)."""
        for writes in (self.writes, self.done):
            for key in [key for key in writes if key < KEPT]:
                del writes[key]
        self.writes[CLEARED] = None
        self._is_cleared = True

    def range(self, first: bytes, last: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """Yield the rows of a range that have not ended. Nothing may be written meanwhile."""
        for key, row in self._with_writes(self.layers).range(first, last):
            if is_there(row, self.now_us):
                yield key, row

    def few(self, first: bytes, last: bytes) -> list[tuple[bytes, bytes]] | None:
        """Return the rows of a range, which have no end; None if `range` must be used."""
        return None if self.writes or self.done else self.layers.few(first, last)

    def user_rows(self, first: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Yield the keys for users from one on, with their rows."""
        return self.range(first, RESERVED)

    @contextmanager
    def moment(self) -> Iterator[RowsView]:
        """Give a view of now, with what was written so far, while other commands may write."""
        if self._base is None:
            yield self
            return
        snapshot = self._base.snapshot()
        try:
            yield RowsView(self._with_writes(snapshot), self.limits, self.now_us)
        finally:
            self._base.drop(snapshot)

    def collected(self, parts: Iterable[Part]) -> list[Part]:
        """Return the values of a reply; raises LimitError if they are too large together."""
        found: list[Part] = []
        left_bytes = self.limits.reply_bytes
        for part in parts:
            left_bytes -= 0 if part is None else len(part)
            if left_bytes < 0:
                limit = f"{self.limits.reply_bytes:,} bytes"
                raise LimitError(f"a reply has at most {limit}: read fewer values at a time")
            found.append(part)
        return found

    def _with_writes(self, layers: Layers) -> Layers:
        if not (self.writes or self.done):
            return layers
        own = Layer()
        own.update(self.done | self.writes)
        return Layers([own, *layers.layers], layers.txn, layers.size)

    def _stored(self, key: bytes) -> bytes | None:
        if key in self.writes:
            return self.writes[key]
        if key in self.done:
            return self.done[key]
        return None if self._is_cleared and key < KEPT else self.layers.row(key)

    def _check_size(self, row: bytes) -> None:
        if len(row) - (9 if row[0] & 1 else 1) > self.limits.value_bytes:
            limit = f"{self.limits.value_bytes:,} bytes"
            raise LimitError(
                f"a value has at most {limit}: store it as an object, and its reference here"
            )

    # Values, for batches

    def get(self, key: bytes) -> bytes | None:
        return value_of(self._stored(key), self.now_us)

    def put(self, key: bytes, value: bytes, ttl_s: float | None) -> None:
        self.write(key, pack_row(value, self.end_us(ttl_s)))

    def replace(self, key: bytes, value: bytes) -> None:
        self.write(key, pack_row(value, end_of(self.row(key))))

    def delete(self, key: bytes) -> None:
        self.write(key, None)

    def rows(self, first: bytes, last: bytes | None) -> Iterator[Row]:
        for key, row in self.range(first, last):
            if row[0] <= 1:
                yield key, content_of(row)

    def end_us(self, ttl_s: float | None) -> int | None:
        """Return when a row ends that lasts for a time from now on."""
        return None if ttl_s is None else self.now_us + int(ttl_s * 1e6)

    # Garbage

    def remove_garbage(self, rows_max: int) -> None:
        """Remove elements of hashes and sorted sets that are gone."""
        left = rows_max
        for mark, _ in islice(self.layers.range(GARBAGE, RESERVED + b"h"), rows_max):
            elements = ELEMENT + mark[len(GARBAGE) :]
            for key, _ in self.layers.range(elements, elements + b"\xff"):
                if not left:
                    return
                self.writes[key] = None
                left -= 1
            self.writes[mark] = None
