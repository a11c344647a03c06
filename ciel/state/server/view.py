"""The rows as a command sees them, with its writes so far."""

from __future__ import annotations

from collections.abc import Iterator

from ciel.state.bases.rows import (
    GARBAGE,
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
from ciel.state.errors import KindError
from ciel.state.server.buffered import Layer, Layers


class RowsView:
    """Reads rows, and collects writes. It is also a `batches.View`.

    `writes`: of the current command; `done`: of earlier commands of the same transaction. `now_us`:
    the time of the command.
    """

    def __init__(self, layers: Layers, now_us: int = 0) -> None:
        self.layers = layers
        self.now_us = now_us
        self.writes: dict[bytes, bytes | None] = {}
        self.done: dict[bytes, bytes | None] = {}

    def accept(self) -> None:
        """Keep what the current command has written."""
        self.done.update(self.writes)
        self.writes = {}

    def take(self) -> dict[bytes, bytes | None]:
        """Return all that was written, and forget it."""
        writes = self.done | self.writes if self.done else self.writes
        self.writes, self.done = {}, {}
        return writes

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
        garbage = garbage_of(self._stored(key), row)
        if garbage is not None:
            self.writes[garbage] = b"\0"
        self.writes[key] = row

    def range(self, first: bytes, last: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """Yield the rows of a range that have not ended. Nothing may be written meanwhile."""
        layers = self.layers
        if self.writes or self.done:
            own = Layer()
            own.update(self.done | self.writes)
            layers = Layers([own, *layers.layers], layers.txn)
        for key, row in layers.range(first, last):
            if is_there(row, self.now_us):
                yield key, row

    def user_rows(self, first: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Yield the keys for users from one on, with their rows."""
        return self.range(first, RESERVED)

    def _stored(self, key: bytes) -> bytes | None:
        if key in self.writes:
            return self.writes[key]
        if key in self.done:
            return self.done[key]
        return self.layers.row(key)

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
        for mark, _ in list(self.range(GARBAGE, RESERVED + b"h")):
            number = mark[len(GARBAGE) :]
            elements = RESERVED + b"e" + number
            for key, _ in self.range(elements, elements + b"\xff"):
                if not left:
                    return
                self.writes[key] = None
                left -= 1
            self.writes[mark] = None
