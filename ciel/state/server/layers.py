"""The rows of a daemon at one moment: layers of changes above a transaction of LMDB."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from ciel.state.bases.rows import KEPT, end_of
from ciel.state.batches import RESERVED
from ciel.state.server.log import CLEARED, Writes

_MANY_KEYS: Final = 64
"""More new keys are sorted together; fewer are inserted singly."""
_FEW_ROWS: Final = 500
_FEW_BYTES: Final = 1 << 20
"""So many rows, and bytes of these, are read at once, which is several times faster."""
ROW_BYTES: Final = 16
"""What LMDB adds to a key and a row, about."""


class Size(NamedTuple):
    """How many keys users have, and how many of these end; the bytes of these, of the elements of
    hashes and of sorted sets. Rows that have ended count until they are removed.
    """

    rows: int = 0
    ending: int = 0
    bytes: int = 0


def measured(rows: Iterable[tuple[bytes, bytes | None]]) -> Size:
    """Return the size of rows. A lifetime adds nothing, so that a full base accepts one."""
    count = ending = size_bytes = 0
    for key, row in rows:
        if row is not None and key < KEPT:
            has_end = row[0] & 1
            size_bytes += len(key) + len(row) - 8 * has_end + ROW_BYTES
            count += key < RESERVED
            ending += has_end  # no element has one
    return Size(count, ending, size_bytes)


class Layer:
    """Changed rows, ordered by key. None: the row was deleted. `is_cleared`: all rows below it, up
    to `KEPT`, were removed.

    `ends`: a heap of when rows end, with their keys; some entries are outdated.
    """

    def __init__(self) -> None:
        self.rows: dict[bytes, bytes | None] = {}
        self.is_cleared = False
        self.ends: list[tuple[int, bytes]] = []
        self._keys: list[bytes] = []

    def update(self, writes: Writes) -> None:
        if CLEARED in writes:
            self.is_cleared = True
            self._keys = self.keys(KEPT, None)
            self.rows = {key: self.rows[key] for key in self._keys}
        new = [key for key in writes if key not in self.rows]
        self.rows.update(writes)
        if len(new) > _MANY_KEYS:
            self._keys += new
            self._keys.sort()
        else:
            for key in new:
                insort(self._keys, key)
        for key, row in writes.items():
            if (end_us := end_of(row)) is not None:
                heapq.heappush(self.ends, (end_us, key))

    def keys(self, first: bytes, last: bytes | None) -> list[bytes]:
        """Return the keys from `first` to before `last`."""
        keys = self._keys
        return keys[bisect_left(keys, first) : None if last is None else bisect_left(keys, last)]

    def copy(self) -> Layer:
        """Return a copy, without `ends`."""
        copy = Layer()
        copy.is_cleared = self.is_cleared
        copy.rows, copy._keys = self.rows.copy(), self._keys.copy()
        return copy


class Layers:
    """All rows at one moment: layers of changes, the latest first, above a transaction of LMDB."""

    def __init__(self, layers: list[Layer], txn: Any, size: Size) -> None:
        self.layers = layers
        self.txn = txn
        self.size = size

    def row(self, key: bytes) -> bytes | None:
        """Return a row as it is stored, whether or not it has ended."""
        for layer in self.layers:
            if key in layer.rows:
                return layer.rows[key]
            if layer.is_cleared and key < KEPT:
                return None
        row: bytes | None = self.txn.get(key)
        return row

    def range(self, first: bytes, last: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """Yield rows in the order of their keys. Nothing may change meanwhile."""
        for place, layer in enumerate(self.layers):
            if layer.is_cleared and first < KEPT:
                end = KEPT if last is None else min(last, KEPT)
                yield from _merged(self.layers[: place + 1], (), first, end)
                first = KEPT
                break
        if last is None or first < last:
            yield from _merged(self.layers, _stored(self.txn, first, last), first, last)

    def few(self, first: bytes, last: bytes) -> list[tuple[bytes, bytes]] | None:
        """Return the rows of a range below `KEPT`, in order; None if they are many or large."""
        if any(layer.is_cleared for layer in self.layers):
            return None
        found: list[tuple[bytes, bytes]] = []
        left_bytes = _FEW_BYTES
        cursor = self.txn.cursor()
        if cursor.set_range(first):
            for pair in cursor:
                if pair[0] >= last:
                    break
                found.append(pair)
                left_bytes -= len(pair[1])
                if left_bytes < 0 or len(found) > _FEW_ROWS:
                    return None
        changed: dict[bytes, bytes | None] = {}
        for layer in reversed(self.layers):
            for key in layer.keys(first, last):
                row = changed[key] = layer.rows[key]
                left_bytes -= len(row or b"")
        if left_bytes < 0 or len(changed) > _FEW_ROWS:
            return None
        if not changed:
            return found
        merged: dict[bytes, bytes | None] = {**dict(found), **changed}
        return [(key, row) for key, row in sorted(merged.items()) if row is not None]

    def size_with(self, writes: Writes, before: Mapping[bytes, bytes | None]) -> Size:
        """Return the size after some writes. `before`: rows of now, as far as they are known."""
        if CLEARED in writes:
            return measured(writes.items())
        count = ending = size_bytes = 0
        for key, row in writes.items():  # as `measured` counts; this is faster
            if key >= KEPT:
                continue
            old = before[key] if key in before else self.row(key)
            if old is not None and row is not None:
                size_bytes += len(row) - len(old)
                ends = (row[0] & 1) - (old[0] & 1)
            elif row is not None:
                count += key < RESERVED
                size_bytes += len(key) + len(row) + ROW_BYTES
                ends = row[0] & 1
            elif old is not None:
                count -= key < RESERVED
                size_bytes -= len(key) + len(old) + ROW_BYTES
                ends = -(old[0] & 1)
            else:
                continue
            if ends:
                ending += ends
                size_bytes -= 8 * ends
        if not (count or ending or size_bytes):
            return self.size
        return Size(self.size[0] + count, self.size[1] + ending, self.size[2] + size_bytes)


def _stored(txn: Any, first: bytes, last: bytes | None) -> Iterator[tuple[bytes, bytes]]:
    cursor = txn.cursor()
    if cursor.set_range(first):
        for key, row in cursor:
            if last is not None and key >= last:
                return
            yield key, row


def _merged(
    layers: list[Layer], stored: Iterable[tuple[bytes, bytes]], first: bytes, last: bytes | None
) -> Iterator[tuple[bytes, bytes]]:
    """Yield rows in order; those of the first layer that has a key replace all others."""
    changes = _changed(layers, first, last)
    ahead, new = next(changes, (None, None))
    for key, row in stored:
        while ahead is not None and ahead < key:
            if new is not None:
                yield ahead, new
            ahead, new = next(changes, (None, None))
        if ahead == key:
            continue  # the loop above yields it before the next stored key
        yield key, row
    while ahead is not None:
        if new is not None:
            yield ahead, new
        ahead, new = next(changes, (None, None))


def _changed(
    layers: list[Layer], first: bytes, last: bytes | None
) -> Iterator[tuple[bytes, bytes | None]]:
    """Yield changes in the order of their keys."""
    before = None
    for key in heapq.merge(*[layer.keys(first, last) for layer in layers]):
        if key != before:
            yield key, next(layer.rows[key] for layer in layers if key in layer.rows)
        before = key
