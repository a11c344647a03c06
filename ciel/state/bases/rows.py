"""Rows as LMDB stores them: a byte for the kind, when the row ends if it does, and the content.

    byte     2 x the kind, and 1 more if the row ends
    8 bytes  when it ends, if so: microseconds since the epoch, big-endian
    content  a value; or the head of a hash or a sorted set of Redis

The head of a hash or a sorted set has a number, 8 bytes, and the count of its elements, 8 bytes.
Elements are rows under reserved keys with that number. So a removed hash disappears at once; its
number is put under `GARBAGE`, and its elements are removed later.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final

from ciel.state.batches import RESERVED
from ciel.state.errors import KindError

ELEMENT: Final = RESERVED + b"e"
GARBAGE: Final = RESERVED + b"g"
NUMBERS: Final = RESERVED + b"n"
"""The key of the last number that was given to a hash or a sorted set."""
KEPT: Final = NUMBERS
"""Keys from here on stay when a base is cleared: the last number, and the results of requests."""
_END: Final = struct.Struct(">Q")
_HEAD: Final = struct.Struct(">QQ")


class Kind(IntEnum):
    """The kinds of content."""

    VALUE = 0
    HASH = 1
    SORTED_SET = 2


def pack_row(content: bytes, end_us: int | None, kind: int = Kind.VALUE) -> bytes:
    """Return a row; `end_us` None: it does not end."""
    if end_us is None:
        return bytes((2 * kind,)) + content
    return bytes((2 * kind + 1,)) + _END.pack(end_us) + content


def kind_of(row: bytes) -> int:
    """Return the kind of a row."""
    return row[0] >> 1


def end_of(row: bytes | None) -> int | None:
    """Return the time when a row ends; None if it does not end, or is missing."""
    if row is None or not row[0] & 1:
        return None
    end_us: int = _END.unpack_from(row, 1)[0]
    return end_us


def is_there(row: bytes | None, now_us: int) -> bool:
    """Return whether there is a row, which has not ended."""
    return row is not None and (not row[0] & 1 or _END.unpack_from(row, 1)[0] > now_us)


def content_of(row: bytes) -> bytes:
    """Return the content of a row."""
    return row[9:] if row[0] & 1 else row[1:]


def value_of(row: bytes | None, now_us: int) -> bytes | None:
    """Return the value of a row; None if there is none, or it has ended. Raises KindError."""
    if row is None:
        return None
    if row[0] == 0:
        return row[1:]
    if not is_there(row, now_us):
        return None
    if row[0] > 1:
        raise KindError(Kind(kind_of(row)).name)
    return row[9:]


def pack_head(number: int, count: int) -> bytes:
    """Return the content of the row of a hash or a sorted set."""
    return _HEAD.pack(number, count)


def head_of(row: bytes) -> tuple[int, int]:
    """Return the number and the count of the elements of a hash or a sorted set."""
    number, count = _HEAD.unpack(content_of(row))
    return number, count


def garbage_of(before: bytes | None, after: bytes | None) -> bytes | None:
    """Return the key that marks elements for removal when a row is replaced; None if none are."""
    if before is None or not before[0] > 1:
        return None
    number, _ = head_of(before)
    if after is not None and after[0] > 1 and head_of(after)[0] == number:
        return None
    return GARBAGE + _END.pack(number)
