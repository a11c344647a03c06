"""The object that a Python task makes: what became of some calls, in order.

    magic (8 bytes) | where the index begins, its length (8 each, little-endian) | buffers, index

The index is a pickle. Buffers begin at multiples of 64 bytes, so that arrays can lie in a mapping
of the object; those of `ciel.empty` lie where they were filled, from 4,096 on, and the index behind
them. A value that was put there by a client is the same, with one outcome.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from ciel.python.packing import PROTOCOL, Buffer, Packed, UnpackedError

MAGIC: Final = b"ciel.py1"
HEADER: Final = struct.Struct("<8sQQ")
ALIGNMENT_BYTES: Final = 64

VALUE, ERROR, MOVED, CUT = 0, 1, 2, 3
"""Kinds of outcomes: what it returned; what it raised (see `failures`); another object has it: its
head is that of (reference in JSON form, place in it, whether that is raw). CUT follows the outcome
of a map that stopped at its time limit: its head is the number of rows that were called, in decimal
digits.
"""


class Outcome(NamedTuple):
    """What became of one call. `refs`: the futures in it, by place: (reference in JSON form, place
    in what it holds, whether it is raw), see `calls.Use`.
    """

    kind: int
    packed: Packed
    refs: tuple[Any, ...] = ()


class Times(NamedTuple):
    """When the calls of a lot ran, for a trace: on which worker, and for each (of a map, for each
    element) when it began, in seconds since the epoch, and how many seconds it took.
    """

    worker: str
    spans: list[tuple[float, float]]


class Contents(NamedTuple):
    """Outcomes, and how long they took, in seconds. `places`: offset and length of each buffer, for
    each outcome. `times`: only if a trace was asked for.
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
    """Return the index: `places` are offset and length of each buffer, for each outcome."""
    rows = [
        (outcome.kind, outcome.packed.head, tuple(spans), outcome.refs)
        for outcome, spans in zip(outcomes, places, strict=True)
    ]
    index = (rows, took_s) if times is None else (rows, took_s, tuple(times))
    return pickle.dumps(index, PROTOCOL)


def encode(
    outcomes: Sequence[Outcome], took_s: float = 0.0, times: Times | None = None
) -> list[Buffer]:
    """Return the pieces of an object, to be written one after the other; no buffer is copied."""
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
    """Read an object; its buffers are views of `content`, read-only if that is. Raises
    UnpackedError.
    """
    view = memoryview(content)
    try:
        magic, start, size_bytes = HEADER.unpack_from(view)
        if magic != MAGIC:
            raise ValueError
        rows, took_s, *times = pickle.loads(view[start : start + size_bytes])
        outcomes = [
            Outcome(kind, Packed(head, tuple([view[at : at + size] for at, size in spans])), refs)
            for kind, head, spans, refs in rows
        ]
    except (ValueError, TypeError, EOFError, struct.error, pickle.UnpicklingError):
        raise UnpackedError(f"{len(view)} bytes that no Python task has made") from None
    spans = [spans for _, _, spans, _ in rows]
    return Contents(outcomes, took_s, spans, Times(*times[0]) if times else None)


# --- streams --------------------------------------------------------------------------------------

STREAM_MAGIC: Final = b"ciel.st1"
_FRAME: Final = struct.Struct("<BQ")
ITEM, RETURNED, RAISED = 0, 1, 2
"""What a frame of a stream holds, packed: an item, what was returned at the end, or what was raised
there (see `failures`). A stream is its magic and such frames; without an end it is not whole.
"""


def stream_frame(kind: int, head: bytes) -> bytes:
    """Return a frame of a stream."""
    return _FRAME.pack(kind, len(head)) + head


def read_stream(read: Callable[[int], bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield the frames of a stream as they come: kind, and what is packed; the last is no item.

    `read` is that of a file: it returns fewer bytes only at the end. Raises UnpackedError for what
    is no stream, or has no end.
    """
    if read(len(STREAM_MAGIC)) != STREAM_MAGIC:
        raise UnpackedError("this is no stream that a Python task has made")
    kind = ITEM
    while kind == ITEM:
        header = read(_FRAME.size)
        if len(header) < _FRAME.size:
            raise UnpackedError("the stream has no end: whoever made it has failed")
        kind, size_bytes = _FRAME.unpack(header)
        head = read(size_bytes)
        if len(head) < size_bytes:
            raise UnpackedError("the stream has no end: whoever made it has failed")
        yield kind, head
