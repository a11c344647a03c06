"""Objects with a table of each type of Arrow, and mutants of them (POOL-6).

`python -m ciel.testing.arrow_mutants 1000` reads so many mutants, each before memory that no read
may enter. It prints how many were refused, how many were valid, and how many pyarrow found invalid.
"""

from __future__ import annotations

import ctypes
import datetime
import mmap
import random
import struct
import sys
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from ciel.python import arrow_tables
from ciel.python.arrow_tables import TableError

LISTS = [[1, 2], None, [], [3]]
TEXTS = ["a", None, "", "x" * 40]
LIST = pa.array(LISTS, pa.list_(pa.int32()))
COLUMNS: dict[str, pa.Array] = {
    "null": pa.nulls(4),
    "bool": pa.array([True, None, False, True]),
    "int": pa.array([1, None, 3, 4]),
    "half": pa.array(np.arange(4, dtype=np.float16)),
    "float": pa.array(np.arange(4, dtype=np.float32)),
    "text": pa.array(TEXTS),
    "large text": pa.array(TEXTS, pa.large_string()),
    "text view": pa.array(TEXTS, pa.string_view()),
    "bytes view": pa.array([b"a", None, b"", b"x" * 40], pa.binary_view()),
    "fixed bytes": pa.array([b"abc", None, b"xyz", b"123"], pa.binary(3)),
    "decimal32": pa.array([Decimal("1.23")] * 4, pa.decimal32(5, 2)),
    "decimal128": pa.array([Decimal("1.23"), None, Decimal(5), Decimal(7)]),
    "decimal256": pa.array([Decimal("1.23")] * 4, pa.decimal256(50, 3)),
    "date": pa.array([datetime.date(2020, 1, 1)] * 4),
    "date64": pa.array([datetime.date(2020, 1, 1)] * 4, pa.date64()),
    "time": pa.array([1, 2, 3, None], pa.time32("s")),
    "time64": pa.array([1, 2, 3, None], pa.time64("us")),
    "timestamp": pa.array([1, 2, 3, None], pa.timestamp("ns", "Europe/Berlin")),
    "duration": pa.array([1, 2, 3, None], pa.duration("ms")),
    "interval": pa.array([pa.MonthDayNano([1, 2, 3])] * 4),
    "list": LIST,
    "large list": LIST.cast(pa.large_list(pa.int32())),
    "list view": pa.array(LISTS, pa.list_view(pa.int32())),
    "large list view": pa.array(LISTS, pa.large_list_view(pa.int32())),
    "fixed list": pa.array([[1, 2], None, [3, 4], [5, 6]], pa.list_(pa.int8(), 2)),
    "struct": pa.array([{"x": 1, "y": "a"}, None, {"x": 2, "y": None}, {"x": None, "y": "b"}]),
    "map": pa.array([[("a", 1)], None, [], [("b", 2)]], pa.map_(pa.string(), pa.int64())),
    "dictionary": pa.array(["a", "b", None, "a"]).dictionary_encode(),
    "dictionary of lists": pa.DictionaryArray.from_arrays(pa.array([0, 1, 0, 2]), LIST),
    "sparse union": pa.UnionArray.from_sparse(
        pa.array([0, 1, 0, 1], pa.int8()), [pa.array([1, 2, 3, 4]), pa.array(["a", "b", "c", "d"])]
    ),
    "dense union": pa.UnionArray.from_dense(
        pa.array([0, 1, 0, 1], pa.int8()), pa.array([0, 0, 1, 1], pa.int32()),
        [pa.array([1, 2]), pa.array(["a", "b"])],
    ),
    "run ends": pa.RunEndEncodedArray.from_arrays([2, 4], [7, 8]),
    "nested": pa.array([[[{"a": [1]}]], None, [], [[{"a": []}]]]),
    "uuid": pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"0" * 16] * 4, pa.binary(16))),
}  # fmt: skip


def stored(value: Any) -> bytes:
    """Return an object with a table."""
    return b"".join(bytes(piece) for piece in arrow_tables.encode(value, 0.5))


class Guarded:
    """A copy of bytes at the end of memory that no read may pass."""

    def __init__(self, content: bytes) -> None:
        size_bytes = len(content) + -len(content) % 8  # buffers begin at multiples of 8
        used_bytes = size_bytes + -size_bytes % mmap.PAGESIZE
        self._memory = mmap.mmap(-1, used_bytes + mmap.PAGESIZE)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        libc = ctypes.CDLL(None, use_errno=True)
        guard = ctypes.c_void_p(address + used_bytes)
        assert libc.mprotect(guard, mmap.PAGESIZE, 0) == 0
        start = used_bytes - size_bytes
        self.view = memoryview(self._memory)[start : start + len(content)]
        self.view[:] = content


def mutated(chance: random.Random, content: bytes) -> bytes:
    """Return an object with some changed bytes, most of them in its descriptor."""
    changed = bytearray(content)
    start = int.from_bytes(content[8:16], "little")
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        first = start if chance.random() < 0.85 else 8
        at = chance.randrange(min(first, len(changed) - 1), len(changed))
        numbers = (0, -1, 1, 1 << 31, (1 << 63) - 1, -(1 << 63), chance.randrange(len(content)))
        match chance.randrange(5):
            case 0 | 1:
                changed[at] ^= 1 << chance.randrange(8)
            case 2:
                changed[at : at + 8] = struct.pack("<q", chance.choice(numbers))
            case 3:
                del changed[at : at + chance.randrange(1, 16)]
            case 4:
                changed[at:at] = bytes(chance.randrange(1, 16))
    return bytes(changed)


def read_mutants(count: int, seed: int = 1) -> tuple[int, int, int]:
    """Read mutated objects; return how many were refused, valid, and found invalid by pyarrow."""
    chance = random.Random(seed)
    originals = [stored(pa.table({name: column})) for name, column in COLUMNS.items()]
    originals.append(stored(pa.table(COLUMNS)))
    counts = [0, 0, 0]
    for _ in range(count):
        guarded = Guarded(mutated(chance, chance.choice(originals)))
        try:
            found = arrow_tables.read(guarded.view)
        except (TableError, pa.ArrowException, ValueError, NotImplementedError):
            counts[0] += 1
            continue
        try:
            found.validate(full=True)
            counts[1] += 1
        except (pa.ArrowException, ValueError):
            counts[2] += 1
    return counts[0], counts[1], counts[2]


if __name__ == "__main__":
    print(*read_mutants(*map(int, sys.argv[1:])))
