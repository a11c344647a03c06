"""Sends an argument once that several rows of a map share.

It is unpacked separately for each row, so that no call sees the changes of another call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

from ciel.python.packing import PLAIN_TYPES, Buffer, pack, unpack

Row = Sequence[Any]


class Shared:
    """An argument of several rows, in the sending process; it arrives as `Arrived`."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __reduce__(self) -> Any:
        packed = pack(self.value)
        return Arrived, (packed.head, packed.buffers)


class Arrived:
    """An argument of several rows, in the receiving process; each row unpacks its own copy."""

    __slots__ = ("_buffers", "_head")

    def __init__(self, head: bytes, buffers: Sequence[Buffer]) -> None:
        self._head = head
        self._buffers = buffers

    def unpacked(self, writable: Callable[[Buffer], Buffer], given: Sequence[Any]) -> Any:
        return unpack(self._head, map(writable, self._buffers), given)


def with_shared(rows: Sequence[Row]) -> tuple[Sequence[Row], bool]:
    """Mark the arguments that several rows share; return the rows, and whether there are any.

    An object that is only a part of several arguments is not marked.
    """
    if len(rows) == 1 or set(map(type, chain.from_iterable(rows))) <= PLAIN_TYPES:
        return rows, False
    counts = Counter([id(item) for row in rows for item in row if type(item) not in PLAIN_TYPES])
    shared = {id(item): Shared(item) for row in rows for item in row if counts.get(id(item), 0) > 1}
    if not shared:
        return rows, False
    return [tuple([shared.get(id(item), item) for item in row]) for row in rows], True


def each_with_its_own(
    rows: Iterable[Row], writable: Callable[[Buffer], Buffer], given: Sequence[Any]
) -> Iterator[Row]:
    """Yield rows with fresh copies of shared arguments.

    `writable` returns the bytes of a buffer in private memory; `given` replaces futures. An
    argument that a row has twice is the same object in both places, unless it is a stream, which
    can be read only once.
    """
    for row in rows:
        own: dict[int, Any] = {}
        values: list[Any] = []
        for item in row:
            value = item
            if type(item) is Arrived:
                value = own.get(id(item))
                if value is None or hasattr(value, "__next__"):
                    value = own[id(item)] = item.unpacked(writable, given)
            values.append(value)
        yield values
