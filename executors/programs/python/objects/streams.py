"""Writes and reads streams: items that a task yields, and that other tasks read while it runs."""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from ciel.python.contents import ITEM, RETURNED, STREAM_MAGIC, read_stream, stream_frame
from ciel.python.packing import UnpackedError, pack, unpack
from ciel.python.task_futures import Items

if TYPE_CHECKING:
    from ciel.executors.programs.python.channel import Channel
    from ciel.executors.programs.python.objects.outputs import Outputs

READ_BYTES = 64 << 10


class StreamWriter:
    """Writes the output of a task that yields; other tasks can read it from the first item on."""

    def __init__(self, channel: Channel, outputs: Outputs) -> None:
        self._channel = channel
        self._outputs = outputs
        self._descriptor = -1
        self._size_bytes = 0

    @property
    def is_open(self) -> bool:
        """Whether it has written items, which other tasks may have read."""
        return self._descriptor >= 0

    def put(self, item: Any) -> None:
        """Write an item; raises PackingError."""
        if not self.is_open:
            reply = self._channel.call("open_output", {"index": 0, "may_stream": True})
            self._descriptor = os.open(reply["filename"], os.O_WRONLY | os.O_CLOEXEC)
            self._write(STREAM_MAGIC)
        self._write(stream_frame(ITEM, _packed(item, "an item that the task yields")))

    def finish(self, value: Any) -> None:
        """Write the value that the task's function has returned; raises PackingError."""
        frame = stream_frame(RETURNED, _packed(value, "the value that the task returns"))
        if not self.is_open:
            self._outputs.publish_pieces(0, [STREAM_MAGIC, frame])
            return
        self._write(frame)
        self.close()
        self._outputs.give_up((0,))
        self._channel.request("close_output", {"index": 0, "size": self._size_bytes})

    def close(self) -> None:
        """Close the file, without committing it."""
        if self.is_open:
            os.close(self._descriptor)
            self._descriptor = -1

    def _write(self, content: bytes) -> None:
        self._size_bytes += len(content)
        left = memoryview(content)
        while left:
            left = left[os.write(self._descriptor, left) :]


def _packed(value: Any, what: str) -> bytes:
    from ciel.python.failures import packing_error

    try:
        packed = pack(value)
    except UnpackedError as error:
        raise packing_error(what, error) from None
    if packed.buffers:  # a stream contains only pickles, so copy the buffers into one
        import pickle

        return pickle.dumps(value, 5)
    return packed.head


class _GrowingFile:
    """Reads an object that may still grow. At the end of the file it queries the worker."""

    def __init__(self, channel: Channel, ref: list[Any]) -> None:
        self._channel = channel
        self._id = ref[1]
        request = {"ref": {"__ref__": ref}, "chunk_size": 1}
        reply = channel.call("open_ref_async", request)
        self._file = open(reply["filename"], "rb", buffering=0)  # noqa: SIM115  # closed by `close`
        self._is_announced = not reply["done"]
        self._ends_here = reply["done"] or reply["blocking"]
        self._position = 0
        self._buffer = bytearray()

    def read(self, size_bytes: int) -> bytes:
        """Return `size_bytes` bytes; fewer at the end of the object."""
        buffer = self._buffer
        while len(buffer) < size_bytes and (piece := self._piece()):
            buffer += piece
        found = bytes(buffer[:size_bytes])
        del buffer[:size_bytes]
        return found

    def _piece(self) -> bytes:
        while True:
            piece = self._file.read(READ_BYTES) or b""
            self._position += len(piece)
            if piece or self._ends_here:
                return piece
            request = {"id": self._id, "bytes": self._position + 1}
            grown = self._channel.call("wait_stream", request)
            self._ends_here = not grown["success"] or grown["done"]

    def close(self) -> None:
        """Stop reading."""
        self._file.close()
        if self._is_announced:
            self._channel.notify("close_stream", {"id": self._id, "chunk_size": 1})


def items_of(channel: Channel, ref: list[Any]) -> Generator[Any, None, Any]:
    """Yield the items of a stream as they arrive; return the value that its task returned."""
    growing = _GrowingFile(channel, ref)
    try:
        for kind, head in read_stream(growing.read):
            if kind == ITEM:
                yield unpack(head)
            elif kind == RETURNED:
                return unpack(head)
            else:
                from ciel.python.failures import unpack_error

                raise unpack_error(head)
    finally:
        growing.close()


def all_items(channel: Channel, ref: list[Any]) -> Any:
    """Return all items of a stream; if it has none, the value that its task returned."""
    items = Items()
    reading = items_of(channel, ref)
    while True:
        try:
            items.append(next(reading))
        except StopIteration as end:
            return items or end.value
