"""The format of the object that a Python task produces: the outcomes of a batch of calls, in order.

    magic (8 bytes) | offset and length of the index (8 each, little-endian) | buffers, index

An object whose only outcome is a table of Arrow has the format of `arrow_tables` instead.

The index is a pickle. Buffers begin at multiples of 64 bytes, so that arrays can use a mapping of
the object. Arrays of `ciel.empty` are where the task has filled them, from offset 4,096 on, and the
index follows them. A value that a client has stored has the same format, with one outcome.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from ciel.python.packing import PROTOCOL, TABLE, Buffer, Packed, PackedTable, UnpackedError

MAGIC: Final = b"ciel.py1"
HEADER: Final = struct.Struct("<8sQQ")
ALIGNMENT_BYTES: Final = 64

VALUE, ERROR, MOVED, CUT = 0, 1, 2, 3
"""Kinds of outcomes. VALUE: what the function returned. ERROR: what it raised (see `failures`).
MOVED: another object has the outcome; the head is a pickle of (reference in JSON form, place in
that object, whether the object is raw). CUT follows the outcome of a map that has stopped at its
time limit; the head is the number of rows that were called, in decimal digits.
"""


class Outcome(NamedTuple):
    """The outcome of one call.

    `refs`: the futures in it, in order, each as (reference in JSON form, place in that object,
    whether the object is raw); see `calls.Use`.
    """

    kind: int
    packed: Packed
    refs: tuple[Any, ...] = ()


class Times(NamedTuple):
    """The times of the calls of a batch, for a trace.

    `spans`: for each call (of a map: each row) its start, in seconds since the epoch, and its
    duration in seconds.
    """

    worker: str
    spans: list[tuple[float, float]]


class Contents(NamedTuple):
    """The content of an object: outcomes, and how many seconds their calls took.

    `places`: for each outcome, the offset and length of each buffer. `times`: only if the client
    wants a trace.
    """

    outcomes: list[Outcome]
    took_s: float
    places: list[Sequence[tuple[int, int]]]
    times: Times | None = None


def index_of(
    outcomes: Sequence[Outcome],
    places: Sequence[Sequence[tuple[int, int]]],
    took_s: float,
    times: Times | None = None,
) -> bytes:
    """Return the index. `places`: for each outcome, the offset and length of each buffer."""
    rows = [
        (outcome.kind, outcome.packed.head, tuple(spans), outcome.refs)
        for outcome, spans in zip(outcomes, places, strict=True)
    ]
    index = (rows, took_s) if times is None else (rows, took_s, tuple(times))
    return pickle.dumps(index, PROTOCOL)


def only_table(outcomes: Sequence[Outcome], times: Times | None = None) -> Any:
    """Return the table if these outcomes are one table of Arrow; None otherwise."""
    if len(outcomes) != 1 or times is not None:
        return None
    packed = outcomes[0].packed
    return packed.value if isinstance(packed, PackedTable) else None


def encode(
    outcomes: Sequence[Outcome], took_s: float = 0.0, times: Times | None = None
) -> list[Buffer]:
    """Return the pieces of an object in the order of the file; buffers are not copied."""
    if (table := only_table(outcomes, times)) is not None:
        from ciel.python.arrow_tables import encode as encode_table

        return encode_table(table, took_s)
    places: list[list[tuple[int, int]]] = []
    buffers: list[Buffer] = []
    position = HEADER.size
    for outcome in outcomes:
        spans: list[tuple[int, int]] = []
        places.append(spans)
        for buffer in outcome.packed.buffers:
            raw = buffer.raw() if isinstance(buffer, pickle.PickleBuffer) else memoryview(buffer)
            gap = -position % ALIGNMENT_BYTES
            if gap:
                buffers.append(bytes(gap))
            spans.append((position + gap, raw.nbytes))
            buffers.append(raw.cast("B") if raw.nbytes else b"")
            position += gap + raw.nbytes
    index = index_of(outcomes, places, took_s, times)
    return [HEADER.pack(MAGIC, position, len(index)), *buffers, index]


def decode(content: Buffer) -> Contents:
    """Read an object; raises UnpackedError. Its buffers are views of `content`."""
    view = memoryview(content)
    try:
        magic, start, size_bytes = HEADER.unpack_from(view)
        if magic != MAGIC:
            return _decode_table(view)
        rows, took_s, *times = pickle.loads(view[start : start + size_bytes])
        outcomes = [
            Outcome(kind, Packed(head, tuple([view[at : at + size] for at, size in spans])), refs)
            for kind, head, spans, refs in rows
        ]
    except (ValueError, TypeError, EOFError, struct.error, pickle.UnpicklingError):
        raise UnpackedError(
            f"the object ({len(view)} bytes) is not in the format that Python tasks write"
        ) from None
    spans = [spans for _, _, spans, _ in rows]
    return Contents(outcomes, took_s, spans, Times(*times[0]) if times else None)


def _decode_table(view: memoryview) -> Contents:
    """Read an object that is a table; raises ValueError and struct.error if it is none."""
    from ciel.python.arrow_tables import time_of

    took_s = time_of(view)
    return Contents([Outcome(VALUE, Packed(TABLE, (view,)))], took_s, [((0, view.nbytes),)])


# --- streams --------------------------------------------------------------------------------------

STREAM_MAGIC: Final = b"ciel.st1"
_FRAME: Final = struct.Struct("<BQ")
ITEM, RETURNED, RAISED = 0, 1, 2
"""Kinds of frames in a stream. ITEM: an item. RETURNED: the value that the function returned.
RAISED: its exception (see `failures`). A stream is its magic followed by frames. It is complete if
its last frame is RETURNED or RAISED.
"""


def stream_frame(kind: int, head: bytes) -> bytes:
    """Return a frame of a stream."""
    return _FRAME.pack(kind, len(head)) + head


def read_stream(read: Callable[[int], bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield the kind and the pickle of each frame as it arrives.

    `read` is the method of a file: it returns fewer bytes only at the end. Raises UnpackedError if
    the file is not a stream, or ends before the stream is complete.
    """
    if read(len(STREAM_MAGIC)) != STREAM_MAGIC:
        raise UnpackedError("the object is not a stream of a Python task")
    kind = ITEM
    while kind == ITEM:
        header = read(_FRAME.size)
        if len(header) < _FRAME.size:
            raise UnpackedError("the stream is incomplete: the task that wrote it has failed")
        kind, size_bytes = _FRAME.unpack(header)
        head = read(size_bytes)
        if len(head) < size_bytes:
            raise UnpackedError("the stream is incomplete: the task that wrote it has failed")
        yield kind, head
