"""Allocates arrays in the store before a task fills them (`ciel.empty`).

The program maps the file of the task's output, and places the arrays in it where readers will find
them. Later it writes only the pickle that refers to them. Another allocator may use the file, too:
once there is such a region, arrays lie in it.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ciel.executors.programs.python.objects.drafts import (
    IMAGE,
    PAGE_BYTES,
    Draft,
    open_draft,
    open_place,
)
from ciel.python.contents import (
    ALIGNMENT_BYTES,
    HEADER,
    MAGIC,
    Outcome,
    index_of,
    only_table,
)

if TYPE_CHECKING:
    import numpy

    from ciel.executors.programs.python.channel import Channel
    from ciel.executors.programs.python.objects.lender import Lender
    from ciel.python.task_session import MakeRegion, OutputRegion


class OutputArrays:
    """The uncommitted file of one output, and the arrays in it."""

    def __init__(self, channel: Channel, number: int) -> None:
        self._channel = channel
        self._number = number
        self._draft: Draft | None = None
        self._at: str | None = None  # the address of the worker in whose memory the file is
        self._lender: Lender | None = None  # of another worker
        self._end_bytes = PAGE_BYTES  # the first page is for the header
        self._arrays: list[tuple[int, int, int, weakref.ref[Any]]] = []  # address, size, offset
        self._region: OutputRegion | None = None

    def array(self, shape: Any, dtype: Any) -> numpy.ndarray[Any, Any]:
        """Return a new array in the file; raises MemoryError."""
        import numpy

        kind = numpy.dtype(dtype)
        if kind.hasobject:
            raise TypeError(f"an array of {kind} contains references, which cannot be stored")
        dimensions = (shape,) if isinstance(shape, int) else tuple(shape)
        size_bytes = kind.itemsize
        for length in dimensions:
            size_bytes *= length
        room_bytes = -(-max(size_bytes, 1) // PAGE_BYTES) * PAGE_BYTES
        draft = self._open(self._end_bytes + room_bytes)
        try:
            offset = self._take(draft, room_bytes)
            memory = draft.memory(room_bytes, offset)
        except OSError as error:
            text = f"the store has no space for an array of {size_bytes} bytes: {error.strerror}"
            raise MemoryError(text) from None
        array: numpy.ndarray[Any, Any] = numpy.ndarray(dimensions, kind, memory)
        address = array.__array_interface__["data"][0]
        self._arrays.append((address, size_bytes, offset, weakref.ref(array)))
        return array

    def region(self, make: MakeRegion, at: str | None) -> OutputRegion:
        """Return the region of another allocator in the file; `make` makes it once.

        `at`: the address of the worker in whose memory the file shall be. Raises ValueError if
        that is impossible.
        """
        if self._draft is None:
            self._at = at
        elif at not in (None, self._at):
            where = f"the worker at {self._at}" if self._at else "the worker that runs the task"
            raise ValueError(f"the output of this task is in the memory of {where} already")
        if self._region is None:
            draft = self._open(None)  # its allocations are not known yet
            self._region = draft.region(make, self._end_bytes)
        return self._region

    def _open(self, size_bytes: int | None) -> Draft:
        """Open the file, unless it is open, with a hint about its size, if that is known."""
        if self._draft is None:
            request = {"index": self._number, "size": size_bytes, "at": self._at}
            reply = self._channel.call("open_output", request)
            path = reply["filename"]
            if path is None:
                self._draft = self._borrow(reply["socket"], reply["id"])
            else:
                self._draft = open_draft(self._channel, self._number, path, size_bytes)
        return self._draft

    def _borrow(self, socket: str, object_id: str) -> Draft:
        """Let another worker of this host allocate the file."""
        from ciel.executors.programs.python.objects.lender import Lender

        assert self._at is not None
        lender = Lender(self._at, socket, object_id)
        try:
            path = lender.open()
            if path.startswith(IMAGE):
                draft = open_place(path)
            else:
                draft = Draft(os.open(path, os.O_RDWR | os.O_CLOEXEC))
        except (ValueError, MemoryError, OSError):
            lender.give_up()
            self._channel.request("rollback_output", {"index": self._number})
            raise
        self._lender = lender
        return draft

    def _take(self, draft: Draft, room_bytes: int) -> int:
        """Return the offset of new pages of the file."""
        if self._region is not None:
            return self._region.skip(room_bytes)
        offset = self._end_bytes
        draft.reserve(offset + room_bytes)
        self._end_bytes += room_bytes
        return offset

    def publish(self, outcomes: Sequence[Outcome], took_s: float) -> bool:
        """Write the output if the outcomes contain any of the arrays; return whether it has.

        It has not if the store has too little space for the rest of the output.
        """
        try:
            if (table := only_table(outcomes)) is not None:
                return self._publish_table(table, took_s)
            return self._publish_values(outcomes, took_s)
        except OSError:
            self.give_up()
            return False

    def _publish_values(self, outcomes: Sequence[Outcome], took_s: float) -> bool:
        """Write the output if the outcomes contain any of the arrays; return whether they do."""
        places = [[self._offset_of(buffer) for buffer in o.packed.buffers] for o in outcomes]
        if not any(place is not None for row in places for place in row):
            self.give_up()
            return False
        end_bytes = self._used_bytes()
        spans: list[list[tuple[int, int]]] = []
        for outcome, row in zip(outcomes, places, strict=True):
            spans.append([])
            for buffer, place in zip(outcome.packed.buffers, row, strict=True):
                view = _view(buffer)
                if place is None:
                    place = end_bytes + -end_bytes % ALIGNMENT_BYTES
                    self._opened.write(view, place)
                    end_bytes = place + view.nbytes
                spans[-1].append((place, view.nbytes))
        index = index_of(outcomes, spans, took_s)
        return self._commit(HEADER.pack(MAGIC, end_bytes, len(index)), end_bytes, index)

    def _publish_table(self, table: Any, took_s: float) -> bool:
        """Write the output if the file has buffers of a table of Arrow; return whether it does."""
        from ciel.python import arrow_tables

        place = arrow_tables.Place(self._place_of_table) if self._arrays else None
        locator = self._region.locator if self._region is not None else None
        if place is not None:
            locator = arrow_tables.Locator(place)
        description = arrow_tables.describe(table, took_s, locator)
        if not description.placed_count:
            self.give_up()
            return False
        end_bytes = self._used_bytes()
        for absent in description.absent:
            end_bytes += -end_bytes % ALIGNMENT_BYTES
            description.place(absent, end_bytes)
            self._opened.write(absent.content, end_bytes)
            end_bytes += absent.content.nbytes
        descriptor = bytes(description.descriptor)
        return self._commit(arrow_tables.header(end_bytes, len(descriptor)), end_bytes, descriptor)

    def _place_of_table(self, context: None, address: int, size_bytes: int) -> int:
        """Do what `_place_at` does, for a caller in C."""
        place = self._place_at(address, size_bytes)
        return -1 if place is None else place

    def _used_bytes(self) -> int:
        """End all allocations; return the offset where the used part of the file ends."""
        return self._end_bytes if self._region is None else self._region.close(is_final=True)

    def _commit(self, header: bytes, end_bytes: int, index: bytes) -> bool:
        """Write what describes the content, and publish the file.

        Return False if it was in the memory of another worker that has ended meanwhile.
        """
        draft = self._opened
        draft.write(memoryview(index), end_bytes)
        draft.write(memoryview(header), 0)
        size_bytes = end_bytes + len(index)
        draft.finish(size_bytes)
        if self._lender is not None and not self._lender.commit():
            self.give_up()
            return False
        draft.close()
        self._channel.request("close_output", {"index": self._number, "size": size_bytes})
        for *_, known in self._arrays:
            if (array := known()) is not None:
                array.flags.writeable = False
        return True

    def give_up(self) -> None:
        """Roll the output back; the arrays stay as ordinary memory."""
        if self._region is not None:
            self._region.close(is_final=False)
        if self._draft is not None:
            self._draft.close()
            self._draft = None
            if self._lender is not None:
                self._lender.give_up()
            self._channel.request("rollback_output", {"index": self._number})

    @property
    def _opened(self) -> Draft:
        assert self._draft is not None
        return self._draft

    @property
    def has_survivors(self) -> bool:
        """Whether an array is still referenced, so that code could change the published object."""
        return any(known() is not None for *_, known in self._arrays)

    def _offset_of(self, buffer: Any) -> int | None:
        """Return the offset of a buffer in the file; None if it is elsewhere."""
        import numpy

        view = _view(buffer)
        if not view.nbytes:
            return None
        address = numpy.frombuffer(view, numpy.uint8).__array_interface__["data"][0]
        return self._place_at(int(address), view.nbytes)

    def _place_at(self, address: int, length_bytes: int) -> int | None:
        for start, size_bytes, offset, _ in self._arrays:
            if start <= address and address + length_bytes <= start + size_bytes:
                return offset + address - start
        return None if self._region is None else self._region.place(address, length_bytes)


def _view(buffer: Any) -> memoryview:
    view: memoryview = buffer.raw() if hasattr(buffer, "raw") else memoryview(buffer)
    return view
