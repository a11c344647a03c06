"""What a Python task reads: inline, or mapped from the store. A few objects stay at hand from task
to task. Functions get memory of their own: small buffers are copied, large ones mapped so that the
kernel copies a page when the function writes to it.
"""

from __future__ import annotations

import os
import stat
from binascii import a2b_base64
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from pickle import PickleBuffer
from typing import TYPE_CHECKING, Any, NoReturn

from ciel.executors.programs.python.objects.mappings import copied_on_write, mapped
from ciel.python.contents import ERROR, MOVED, Contents, Outcome, decode
from ciel.python.packing import Buffer

if TYPE_CHECKING:
    from ciel.executors.programs.python.channel import Channel

MAPPED_MIN_BYTES = 64 << 10
"""What is smaller is read: that is quicker than mapping it."""
KEPT_MAX = 8
KEPT_MAX_BYTES = 64 << 20
"""Of objects at hand: what is mapped keeps its memory, even if its store has deleted it."""


UNCHANGING = frozenset((bytes, str))
"""Types of values that no function can change: one value serves all calls."""


class Stored:
    """An object of the store, mapped; its file is open as long as this is."""

    def __init__(self, descriptor: int, size_bytes: int) -> None:
        self._descriptor = descriptor
        self.content = mapped(descriptor, size_bytes)

    def part(self, size_bytes: int, offset: int) -> memoryview:
        """Return a part of it in memory that may be written to."""
        return copied_on_write(self._descriptor, size_bytes, offset)

    def __del__(self) -> None:
        os.close(self._descriptor)


class _Kept:
    """An object at hand, and values that were read from it, by place."""

    def __init__(self, stored: Stored) -> None:
        self.stored = stored
        self.size_bytes = stored.content.nbytes
        self.values: dict[int, Any] = {}


class Kept:
    """Objects that this program has at hand, the last used last."""

    def __init__(self) -> None:
        self._objects: OrderedDict[str, _Kept] = OrderedDict()
        self._size_bytes = 0

    def find(self, object_id: str) -> Stored | None:
        """Return an object, if it is at hand."""
        found = self._objects.get(object_id)
        if found is None:
            return None
        self._objects.move_to_end(object_id)
        return found.stored

    def keep(self, object_id: str, stored: Stored) -> None:
        """Keep an object at hand."""
        size_bytes = stored.content.nbytes
        if size_bytes > KEPT_MAX_BYTES or object_id in self._objects:
            return
        self._objects[object_id] = _Kept(stored)
        self._grow(size_bytes)

    def value(self, object_id: str, place: int) -> Any:
        """Return what was read from an object before, if that is at hand; else None."""
        found = self._objects.get(object_id)
        return None if found is None else found.values.get(place)

    def keep_value(self, object_id: str, place: int, value: bytes | str) -> None:
        """Keep what was read from an object as long as the object itself."""
        kept = self._objects.get(object_id)
        if kept is not None and place not in kept.values:
            kept.values[place] = value
            kept.size_bytes += len(value)
            self._grow(len(value))

    def _grow(self, size_bytes: int) -> None:
        self._size_bytes += size_bytes
        while len(self._objects) > KEPT_MAX or self._size_bytes > KEPT_MAX_BYTES:
            _, oldest = self._objects.popitem(last=False)
            self._size_bytes -= oldest.size_bytes

    def keys(self) -> list[Any]:
        """Say what is at hand as `exit` does."""
        return [[[object_id], ""] for object_id in self._objects]


class Inputs:
    """The inputs of one task, by number; `arrays` are references in JSON form."""

    def __init__(
        self, listed: list[Any], paths: dict[str, str], channel: Channel, kept: Kept
    ) -> None:
        self.arrays: list[list[Any]] = [item["__ref__"] for item in listed]
        self._paths = paths
        self._channel = channel
        self._kept = kept
        self._outcomes: dict[str, list[Outcome]] = {}
        self._places: dict[int, tuple[Buffer, Stored, int]] = {}
        """Large buffers, by identity: which object they lie in, and where."""
        self._unchanging: dict[tuple[str, int], Any] = {}

    def outcome(self, array: list[Any], place: int) -> Outcome:
        """Return what an object that is there holds at some place; of one that failed, an error.
        What is handed on is followed as far as it is there, too; else it is `MOVED`.
        """
        seen = 0
        while True:
            if array[0] == "err":
                return failed(array)
            outcome = self.outcomes(array)[place]
            if outcome.kind != MOVED:
                return outcome
            from ciel.python.packing import unpack

            array, place, _ = unpack(outcome.packed.head)
            seen += 1
            if array[0] not in ("val", "err", "c2", "<3"):
                return outcome

    def read_before(self, array: list[Any], place: int) -> Any:
        """Return an unchanging value that was read from an object; None: none was."""
        found = self._unchanging.get((array[1], place))
        return self._kept.value(array[1], place) if found is None else found

    def note_read(self, array: list[Any], place: int, value: Any) -> None:
        """Note what was read from an object, if it serves other calls as well."""
        if type(value) in UNCHANGING:
            self._unchanging[array[1], place] = value
            self._kept.keep_value(array[1], place, value)

    def outcomes(self, array: list[Any]) -> list[Outcome]:
        """Return all that an object holds which is there."""
        found = self._outcomes.get(array[1])
        if found is None:
            opened = self._open(array)
            if isinstance(opened, Stored):
                contents = decode(opened.content)
                self._note_places(contents, opened)
            else:
                contents = decode(opened)
            found = self._outcomes[array[1]] = contents.outcomes
        return found

    def _note_places(self, contents: Contents, stored: Stored) -> None:
        for outcome, places in zip(contents.outcomes, contents.places, strict=True):
            for buffer, (offset, size_bytes) in zip(outcome.packed.buffers, places, strict=True):
                if size_bytes >= MAPPED_MIN_BYTES:
                    self._places[id(buffer)] = (buffer, stored, offset)

    def writable(self, buffer: Buffer) -> Buffer:
        """Return the bytes of a buffer in memory of their own, which may be written to."""
        found = self._places.get(id(buffer))
        if found is not None:
            known, stored, offset = found
            with suppress(OSError):  # no room for one more mapping
                return stored.part(memoryview(known).nbytes, offset)
        view = buffer.raw() if isinstance(buffer, PickleBuffer) else buffer
        return bytearray(view)

    def close(self) -> None:
        """Let go of what was read, without waiting for a collection of garbage: its memory is to
        serve others as soon as nobody sees it.
        """
        self._outcomes.clear()
        self._places.clear()
        self._unchanging.clear()

    def add_paths(self, paths: dict[str, str]) -> None:
        """Learn where objects are that came to be meanwhile."""
        self._paths.update(paths)

    def content(self, array: list[Any], *, keeps: bool = True) -> Buffer:
        """Return the content of an object that is there; `keeps`: it stays at hand."""
        opened = self._open(array, keeps)
        return opened.content if isinstance(opened, Stored) else opened

    def _open(self, array: list[Any], keeps: bool = True) -> bytes | Stored:
        if array[0] == "val":
            return a2b_base64(array[2])
        kept = self._kept.find(array[1])
        if kept is not None:
            return kept
        try:
            opened = _read(self.path(array))
        except FileNotFoundError as error:
            self._lose(array, str(error))
        if keeps and isinstance(opened, Stored):
            self._kept.keep(array[1], opened)
        return opened

    def shown_path(self, array: list[Any]) -> str:
        """Return the path of an object that is there, for a function of the user's. So its memory
        must never be used again: the file may be linked or sent. The store is told by a bit.
        """
        path = self.path(array)
        os.chmod(path, stat.S_IMODE(os.stat(path).st_mode) | stat.S_ISVTX)
        return path

    def path(self, array: list[Any]) -> str:
        """Return the path of an object that is there, to be read or mapped here."""
        path = self._paths.get(array[1])
        if path is None:
            ref = {"__ref__": array}
            path = self._channel.reply("open_ref", {"ref": ref}).get("filename")
            if path is None:
                self._lose(array, "it is not there, though it was waited for")
            self._paths[array[1]] = path
        return path

    def _lose(self, array: list[Any], details: str) -> NoReturn:
        """Report that an object is gone and end this process: the engine produces the object again
        and runs the task anew. An exception would become the outcome of a call.
        """
        self._channel.tell("lose", {"id": array[1], "details": details})
        self._channel.flush()
        os._exit(0)


def _read(path: str) -> bytes | Stored:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    size_bytes = os.fstat(descriptor).st_size
    if size_bytes >= MAPPED_MIN_BYTES:
        return Stored(descriptor, size_bytes)
    try:
        return b"".join(_pieces(descriptor))
    finally:
        os.close(descriptor)


def _pieces(descriptor: int) -> Iterator[bytes]:
    while piece := os.read(descriptor, MAPPED_MIN_BYTES):
        yield piece


def failed(array: list[Any]) -> Outcome:
    """Return the outcome of what could not be made: `array` is a failure in JSON form."""
    from ciel.core.refs import Failure
    from ciel.python.failures import error_of, pack_error
    from ciel.python.packing import Packed

    details = array[3]
    if isinstance(details, dict) and isinstance(details.get("error"), str):
        with suppress(ValueError):
            return Outcome(ERROR, Packed(a2b_base64(details["error"])))
    return Outcome(ERROR, Packed(pack_error(error_of(Failure(array[1], array[2], details)))))
