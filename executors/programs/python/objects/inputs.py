"""Reads the inputs of a Python task, from their references or from mapped files of the store.

A cache keeps a few objects from task to task. Functions get private memory: small buffers are
copied; large ones are mapped copy-on-write.
"""

from __future__ import annotations

import os
import stat
from binascii import a2b_base64
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pickle import PickleBuffer
from typing import TYPE_CHECKING, Any, NoReturn

from ciel.executors.programs.python.objects.drafts import IMAGE
from ciel.executors.programs.python.objects.mappings import copied_on_write, mapped
from ciel.python.contents import ERROR, MOVED, Contents, Outcome, decode
from ciel.python.packing import Buffer

if TYPE_CHECKING:
    from ciel.executors.programs.python.channel import Channel

MAPPED_MIN_BYTES = 64 << 10
"""The program reads smaller objects, which is faster than mapping them."""
CACHED_MAX = 8
CACHED_MAX_BYTES = 64 << 20
"""Limits of the cache: a mapped object occupies memory even after its store has deleted it."""

SHARED_TYPES = frozenset((bytes, str))
"""Immutable types: one value of such a type serves all calls."""


class Stored:
    """A mapped object of the store, whose file stays open."""

    def __init__(self, descriptor: int, size_bytes: int) -> None:
        self._descriptor = descriptor
        self.content = mapped(descriptor, size_bytes)

    def part(self, size_bytes: int, offset: int) -> memoryview:
        """Return a part of it in private memory, which may be written to."""
        return copied_on_write(self._descriptor, size_bytes, offset)

    def __del__(self) -> None:
        os.close(self._descriptor)


class StoredInImage(Stored):
    """An object in an image of shmfs, which keeps its content while this or a part of it exists.

    So it is never cached: it would take space from the store.
    """

    def __init__(self, place: str) -> None:
        """Open a place; raises StorageError."""
        from ciel.scc import attachments

        self._file = attachments.open_file(place)
        self.content = attachments.content_of(self._file)
        self._part = attachments.private_part

    def part(self, size_bytes: int, offset: int) -> memoryview:
        return self._part(self._file, size_bytes, offset)

    def __del__(self) -> None:
        pass  # the file is closed when it is collected, after the views of it


class _Entry:
    """A cached object, and values that were read from it, by place."""

    def __init__(self, stored: Stored) -> None:
        self.stored = stored
        self.size_bytes = stored.content.nbytes
        self.values: dict[int, Any] = {}


class Cache:
    """Objects that this program keeps from task to task, the least recently used first."""

    def __init__(self) -> None:
        self._objects: OrderedDict[str, _Entry] = OrderedDict()
        self._size_bytes = 0

    def find(self, object_id: str) -> Stored | None:
        """Return an object if it is cached."""
        found = self._objects.get(object_id)
        if found is None:
            return None
        self._objects.move_to_end(object_id)
        return found.stored

    def keep(self, object_id: str, stored: Stored) -> None:
        """Add an object."""
        size_bytes = stored.content.nbytes
        if size_bytes > CACHED_MAX_BYTES or object_id in self._objects:
            return
        self._objects[object_id] = _Entry(stored)
        self._grow(size_bytes)

    def value(self, object_id: str, place: int) -> Any:
        """Return a value that was read from an object before, if it is cached; else None."""
        found = self._objects.get(object_id)
        return None if found is None else found.values.get(place)

    def keep_value(self, object_id: str, place: int, value: bytes | str) -> None:
        """Add a value that was read from an object, for as long as the object is cached."""
        entry = self._objects.get(object_id)
        if entry is not None and place not in entry.values:
            entry.values[place] = value
            entry.size_bytes += len(value)
            self._grow(len(value))

    def _grow(self, size_bytes: int) -> None:
        self._size_bytes += size_bytes
        while len(self._objects) > CACHED_MAX or self._size_bytes > CACHED_MAX_BYTES:
            _, oldest = self._objects.popitem(last=False)
            self._size_bytes -= oldest.size_bytes

    def keys(self) -> list[Any]:
        """List the cached objects in the form of the argument `soft_cache_keys` of `exit`."""
        return [[[object_id], ""] for object_id in self._objects]


class Inputs:
    """The inputs of one task. `refs`: the references to them, in JSON form."""

    def __init__(
        self, listed: list[Any], paths: dict[str, str], channel: Channel, cache: Cache
    ) -> None:
        self.refs: list[list[Any]] = [item["__ref__"] for item in listed]
        self._paths = paths
        self._channel = channel
        self._cache = cache
        self._outcomes: dict[str, list[Outcome]] = {}
        self._places: dict[int, tuple[Buffer, Stored, int]] = {}
        """Large buffers, by identity: the buffer, its object, and its offset there."""
        self._shared: dict[tuple[str, int], Any] = {}

    def outcome(self, ref: list[Any], place: int) -> Outcome:
        """Return the outcome at a place in an object, which must be available or failed.

        A failed object has an error as its outcome. If the outcome is a reference to another
        object, return the outcome there; or, if that object is not available, the reference
        (`MOVED`).
        """
        while True:
            if ref[0] == "err":
                return failed(ref)
            outcome = self.outcomes(ref)[place]
            if outcome.kind != MOVED:
                return outcome
            from ciel.python.packing import unpack

            ref, place, _ = unpack(outcome.packed.head)
            if ref[0] not in ("val", "err", "c2", "<3"):
                return outcome

    def read_before(self, ref: list[Any], place: int) -> Any:
        """Return the value that was passed to `note_read`; None if it was not called."""
        found = self._shared.get((ref[1], place))
        return self._cache.value(ref[1], place) if found is None else found

    def note_read(self, ref: list[Any], place: int, value: Any) -> None:
        """Keep a value that was read from an object, if it can serve other calls as well."""
        if type(value) in SHARED_TYPES:
            self._shared[ref[1], place] = value
            self._cache.keep_value(ref[1], place, value)

    def outcomes(self, ref: list[Any]) -> list[Outcome]:
        """Return all outcomes in an available object."""
        found = self._outcomes.get(ref[1])
        if found is None:
            opened = self._open(ref)
            if isinstance(opened, Stored):
                contents = decode(opened.content)
                self._note_places(contents, opened)
            else:
                contents = decode(opened)
            found = self._outcomes[ref[1]] = contents.outcomes
        return found

    def _note_places(self, contents: Contents, stored: Stored) -> None:
        for outcome, places in zip(contents.outcomes, contents.places, strict=True):
            for buffer, (offset, size_bytes) in zip(outcome.packed.buffers, places, strict=True):
                if size_bytes >= MAPPED_MIN_BYTES:
                    self._places[id(buffer)] = (buffer, stored, offset)

    def writable(self, buffer: Buffer) -> Buffer:
        """Return the bytes of a buffer in private memory, which may be written to."""
        found = self._places.get(id(buffer))
        if found is not None:
            known, stored, offset = found
            with suppress(OSError):  # the process has reached its limit of mappings
                return stored.part(memoryview(known).nbytes, offset)
        view = buffer.raw() if isinstance(buffer, PickleBuffer) else buffer
        return bytearray(view)

    def close(self) -> None:
        """Release all objects at once, so that the store can reuse their memory.

        The garbage collector would release them later.
        """
        self._outcomes.clear()
        self._places.clear()
        self._shared.clear()

    def add_paths(self, paths: dict[str, str]) -> None:
        """Add the paths of objects that were produced meanwhile."""
        self._paths.update(paths)

    def content(self, ref: list[Any], *, may_cache: bool = True) -> Buffer:
        """Return the content of an available object."""
        opened = self._open(ref, may_cache)
        return opened.content if isinstance(opened, Stored) else opened

    def _open(self, ref: list[Any], may_cache: bool = True) -> bytes | Stored:
        if ref[0] == "val":
            return a2b_base64(ref[2])
        cached = self._cache.find(ref[1])
        if cached is not None:
            return cached
        path = self.path(ref)
        opened: bytes | Stored | None = None
        if path.startswith(IMAGE):
            opened = _in_image(path)
            path = path if opened is not None else self._path_of_file(ref)
        try:
            opened = opened or _read(path)
        except FileNotFoundError as error:
            self._lose(ref, str(error))
        if may_cache and type(opened) is Stored:
            self._cache.keep(ref[1], opened)
        return opened

    def is_elsewhere(self, ref: list[Any]) -> bool:
        """Whether the worker has not copied an available object to this host."""
        return (
            ref[0] in ("c2", "<3")
            and ref[1] not in self._paths
            and self._cache.find(ref[1]) is None
        )

    def size_bytes(self, ref: list[Any]) -> int:
        """Return the size of an object that is elsewhere."""
        return int(ref[2] if ref[0] == "c2" else ref[3])

    def fetch_parts(
        self, wanted: Sequence[tuple[list[Any], Sequence[tuple[int, int]]]]
    ) -> list[memoryview]:
        """Fetch parts of objects that are elsewhere; see `Fetch`."""
        items = [[{"__ref__": ref}, parts] for ref, parts in wanted]
        paths = self._channel.call("parts", {"items": items})["filenames"]
        return [
            self._whole(ref) if path.startswith(IMAGE) else _mapped(path)
            for (ref, _), path in zip(wanted, paths, strict=True)
        ]

    def _whole(self, ref: list[Any]) -> memoryview:
        """Return an object in private memory that is on this host by now."""
        stored = self._open(ref)
        assert isinstance(stored, Stored)
        return stored.part(stored.content.nbytes, 0)

    def path_for_user(self, ref: list[Any]) -> str:
        """Return the path of an available object for a function of the user.

        The function may link or send the file. The sticky bit tells the store never to reuse the
        memory of the file.
        """
        path = self.path(ref)
        if path.startswith(IMAGE):
            path = self._path_of_file(ref)
        os.chmod(path, stat.S_IMODE(os.stat(path).st_mode) | stat.S_ISVTX)
        return path

    def path(self, ref: list[Any]) -> str:
        """Return the path of an available object, for this program to read or map.

        It may be a place in an image.
        """
        path = self._paths.get(ref[1])
        if path is None:
            path = self._paths[ref[1]] = self._request({"ref": {"__ref__": ref}})
        return path

    def _path_of_file(self, ref: list[Any]) -> str:
        return self._request({"ref": {"__ref__": ref}, "in_file": True})

    def _request(self, request: dict[str, Any]) -> str:
        path = self._channel.call("open_ref", request).get("filename")
        if path is None:
            ref = request["ref"]["__ref__"]
            self._lose(ref, "the object is not available, though the task has waited for it")
        return str(path)

    def _lose(self, ref: list[Any], details: str) -> NoReturn:
        """Report that an object is lost, and end this process.

        The engine then recomputes the object and re-executes the task. An exception would become
        the outcome of a call.
        """
        self._channel.notify("lose", {"id": ref[1], "details": details})
        self._channel.flush()
        os._exit(0)


def _in_image(place: str) -> StoredInImage | None:
    """Return an object in an image; None if this process cannot attach to that, or it is gone."""
    from ciel.storage.errors import StorageError

    try:
        return StoredInImage(place)
    except StorageError:
        return None


def _mapped(path: str) -> memoryview:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return copied_on_write(descriptor, os.fstat(descriptor).st_size, 0)
    finally:
        os.close(descriptor)


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


def failed(ref: list[Any]) -> Outcome:
    """Return the outcome of a failed object; `ref` is a failure in JSON form."""
    from ciel.core.refs import Failure
    from ciel.python.failures import error_of, pack_error
    from ciel.python.packing import Packed

    details = ref[3]
    if isinstance(details, dict) and isinstance(details.get("error"), str):
        with suppress(ValueError):
            return Outcome(ERROR, Packed(a2b_base64(details["error"])))
    return Outcome(ERROR, Packed(pack_error(error_of(Failure(ref[1], ref[2], details)))))
