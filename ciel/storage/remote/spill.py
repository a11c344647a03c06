"""A lower level of stores in memory: memory of other machines first, then a store on a disk.

Only moves between the levels read and write remote memory: whoever opens an object has it brought
back first (`ObjectStore.bring_back`), since a read may wait for a server that has died. Objects in
remote memory exist as long as this store is open, and as long as memory servers have their pages.
An object whose pages are lost is corrupt (code `unreadable`), and the engine has it computed again.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Final, NamedTuple

import xxhash

from ciel.core.ids import check_id
from ciel.storage.errors import (
    CorruptObjectError,
    ObjectConflictError,
    ObjectNotFoundError,
    StoreClosedError,
    StoreSystemError,
)
from ciel.storage.interface import (
    Chunk,
    Guard,
    ObjectInfo,
    ObjectReader,
    ObjectStore,
    ObjectWriter,
    Problem,
    StoreLevel,
    StoreUsage,
)
from ciel.storage.remote.memory import PAGE_BYTES, Lender, Range, RemoteMemory, RemoteMemoryError

PIECE_BYTES: Final = 1 << 20
REMOTE: Final = "remote"
"""The name of the level in memory of other machines."""


class Kept(NamedTuple):
    """An object in remote memory."""

    info: ObjectInfo
    ranges: list[Range]


class RemoteSpill(ObjectStore):
    """Objects that were moved to remote memory, over a store of files for all others."""

    def __init__(self, disk: ObjectStore, memory: RemoteMemory) -> None:
        self.capabilities = disk.capabilities
        self.sources, self.directories, self.about = disk.sources, disk.directories, disk.about
        self.places = disk.places
        self._disk = disk
        self._memory = memory
        self._objects: dict[str, Kept] = {}
        self._readers: dict[int, int] = {}  # by the identity of ranges, which are freed after them
        self._is_closed = False
        self._lock = threading.RLock()  # collecting a reader may call `close` in any call

    def use_memory(self, lender: Lender) -> bool:
        self._memory.use(lender)
        return True

    def begin(self, object_id: str, *, size_hint_bytes: int | None = None) -> ObjectWriter:
        self._require_open()
        return self._disk.begin(object_id, size_hint_bytes=size_hint_bytes)

    def begin_moved(self, object_id: str, size_bytes: int) -> ObjectWriter:
        check_id(object_id)
        self._require_open()
        ranges = self._memory.take(max(size_bytes, 1))
        if ranges is None:
            return self._disk.begin(object_id, size_hint_bytes=size_bytes)
        return RemoteWriter(self, self._memory, object_id, size_bytes, ranges)

    def keep(self, info: ObjectInfo, ranges: list[Range]) -> ObjectInfo:
        """Commit a written object; the first commit wins. Raises ObjectConflictError."""
        with self._lock:
            kept = self.stat(info.object_id)
            if kept is None:
                self._objects[info.object_id] = Kept(info, ranges)
                return info
        self._memory.give_back(ranges)
        if (checksum := self.checksum(info.object_id)) != info.checksum:
            raise ObjectConflictError(info.object_id, checksum, str(info.checksum))
        return kept

    def is_remote(self, object_id: str) -> bool:
        return object_id in self._objects

    def bring_back(self, object_id: str) -> None:
        """Move an object to the disk, since the level above has no space for it."""
        with (
            self._open_remote(object_id) as reader,
            self._disk.begin(object_id, size_hint_bytes=reader.size_bytes) as writer,
        ):
            for piece in reader.pieces():
                writer.write(piece)
            writer.commit(checksum=reader.info.checksum)
        self._forget(object_id)

    def settle(self, object_id: str, guard: Guard, may_go_on: Callable[[], bool]) -> bool:
        """Move an object from the disk to remote memory, if there is any."""
        with self._disk.open(object_id) as reader:
            info = ObjectInfo(object_id, reader.size_bytes, self._disk.checksum(object_id))
            ranges = self._memory.take(max(info.size_bytes, 1))
            if ranges is None:
                return False
            writer = RemoteWriter(self, self._memory, object_id, info.size_bytes, ranges)
            with writer:
                for offset_bytes in range(0, info.size_bytes, PIECE_BYTES):
                    writer.write(reader.read(offset_bytes, PIECE_BYTES))
                    if not may_go_on():
                        return False
                kept = Kept(info, writer.finish(info.checksum))
        with guard:
            if may_go_on():
                self._objects[object_id] = kept
                self._disk.delete(object_id)
                return True
        self._memory.give_back(kept.ranges)
        return False

    def open(self, object_id: str) -> ObjectReader:
        try:
            return self._open_remote(object_id)
        except ObjectNotFoundError:
            return self._disk.open(object_id)

    def _open_remote(self, object_id: str) -> RemoteReader:
        check_id(object_id)
        with self._lock:
            self._require_open()
            kept = self._objects.get(object_id)
            if kept is None:
                raise ObjectNotFoundError(object_id)
            self._readers[id(kept.ranges)] = self._readers.get(id(kept.ranges), 0) + 1
        return RemoteReader(kept, self._memory, self._reader_closed)

    def _reader_closed(self, kept: Kept) -> None:
        """Free the pages of a deleted object after its last reader."""
        with self._lock:
            key, current = id(kept.ranges), self._objects.get(kept.info.object_id)
            self._readers[key] -= 1
            if self._readers[key]:
                return
            del self._readers[key]
            if current is None or current.ranges is not kept.ranges:
                self._memory.give_back(kept.ranges)

    def stat(self, object_id: str) -> ObjectInfo | None:
        self._require_open()
        kept = self._objects.get(check_id(object_id))
        return self._disk.stat(object_id) if kept is None else kept.info

    def checksum(self, object_id: str) -> str:
        kept = self._objects.get(check_id(object_id))
        return self._disk.checksum(object_id) if kept is None else str(kept.info.checksum)

    def verify(self, object_id: str) -> ObjectInfo:
        try:
            with self._open_remote(object_id) as reader:
                digest = xxhash.xxh3_64()
                for piece in reader.pieces():
                    digest.update(piece)
                _compare(reader.info, digest.hexdigest())
                return reader.info
        except ObjectNotFoundError:
            return self._disk.verify(object_id)

    def adopt(self, object_id: str, path: str, *, checksum: str, size_bytes: int) -> ObjectInfo:
        kept = self._objects.get(check_id(object_id))
        if kept is None:
            return self._disk.adopt(object_id, path, checksum=checksum, size_bytes=size_bytes)
        if kept.info.checksum != checksum:
            raise ObjectConflictError(object_id, str(kept.info.checksum), checksum)
        return kept.info

    def delete(self, object_id: str) -> bool:
        self._require_open()
        was_remote = self._forget(check_id(object_id))
        return self._disk.delete(object_id) or was_remote

    def _forget(self, object_id: str) -> bool:
        with self._lock:
            kept = self._objects.pop(object_id, None)
            if kept is not None and id(kept.ranges) not in self._readers:
                self._memory.give_back(kept.ranges)
        return kept is not None

    def __iter__(self) -> Iterator[str]:
        self._require_open()
        remote = dict.fromkeys(self._objects)
        yield from remote
        yield from (object_id for object_id in self._disk if object_id not in remote)

    def usage(self) -> StoreUsage:
        self._require_open()
        usage = self._disk.usage()
        return replace(
            usage,
            used_bytes=usage.used_bytes + self._memory.used_bytes,
            object_count=usage.object_count + len(self._objects),
        )

    def levels(self) -> tuple[StoreLevel, ...]:
        (disk,) = self._disk.levels()
        capacity_bytes, used_bytes = self._memory.capacity_bytes, self._memory.used_bytes
        return (StoreLevel(REMOTE, capacity_bytes, used_bytes, 0, len(self._objects)), disk)

    def advise(
        self,
        can_be_had_again: Callable[[str], bool],
        dropped: Callable[[str], None],
        turn: Callable[[str, int], AbstractContextManager[None]],
    ) -> None:
        self._disk.advise(can_be_had_again, dropped, turn)

    def claim(self) -> None:
        self._disk.claim()

    def gone(self) -> str:
        return self._disk.gone()

    def check(self) -> list[Problem]:
        return self._disk.check() + [
            problem for object_id in [*self._objects] for problem in self._problems(object_id)
        ]

    def _problems(self, object_id: str) -> Iterator[Problem]:
        try:
            self.verify(object_id)
        except ObjectNotFoundError:
            pass  # deleted during the check
        except CorruptObjectError as error:
            yield Problem(error.code, object_id, error.detail)

    def close(self) -> None:
        with self._lock:
            is_first, self._is_closed = not self._is_closed, True
            self._objects.clear()
        if is_first:
            self._memory.close()
        self._disk.close()

    def _require_open(self) -> None:
        if self._is_closed:
            raise StoreClosedError("the store")


class RemoteReader(ObjectReader):
    """An open object in remote memory. It has no file: bring the object back for that."""

    def __init__(self, kept: Kept, memory: RemoteMemory, closed: Callable[[Kept], object]) -> None:
        self.info = kept.info
        self.object_id, self.size_bytes = kept.info.object_id, kept.info.size_bytes
        self._kept: Kept | None = kept
        self._memory = memory
        self._closed = closed

    @property
    def path(self) -> None:
        return None

    def fileno(self) -> int:
        raise StoreSystemError("open a file of remote memory", errno.EOPNOTSUPP)

    def read_into(self, buffer: bytearray | memoryview, offset_bytes: int) -> int:
        if self._kept is None:
            raise StoreClosedError(f"the reader of {self.object_id}")
        view = memoryview(buffer).cast("B")
        count = max(0, min(view.nbytes, self.size_bytes - offset_bytes))
        try:
            self._memory.read(self._kept.ranges, offset_bytes, view[:count])
        except RemoteMemoryError as error:
            raise CorruptObjectError(self.object_id, "unreadable", str(error)) from error
        return count

    def pieces(self) -> Iterator[bytes]:
        """Yield the content."""
        for offset_bytes in range(0, self.size_bytes, PIECE_BYTES):
            yield self.read(offset_bytes, PIECE_BYTES)

    def view(self) -> memoryview:
        return memoryview(self.read(0, self.size_bytes))

    def close(self) -> None:
        kept, self._kept = self._kept, None
        if kept is not None:
            self._closed(kept)

    def __del__(self) -> None:
        if hasattr(self, "_closed"):
            self.close()


class RemoteWriter(ObjectWriter):
    """Writes an object of known size to remote memory."""

    def __init__(
        self,
        store: RemoteSpill,
        memory: RemoteMemory,
        object_id: str,
        size_bytes: int,
        ranges: list[Range],
    ) -> None:
        self.object_id = object_id
        self._store = store
        self._memory = memory
        self._whole_bytes = size_bytes
        self._ranges: list[Range] | None = ranges
        self._pending = bytearray()  # not written yet
        self._written_bytes = 0
        self._digest = xxhash.xxh3_64()

    @property
    def path(self) -> None:
        return None

    def fileno(self, *, to_write: bool = True) -> int:
        raise StoreSystemError("open a file of remote memory", errno.EOPNOTSUPP)

    @property
    def size_bytes(self) -> int:
        return self._written_bytes + len(self._pending)

    def write(self, chunk: Chunk) -> None:
        content = memoryview(chunk).cast("B")
        if self.size_bytes + content.nbytes > self._whole_bytes:
            raise StoreSystemError("write more than was reserved", errno.EFBIG)
        self._digest.update(content)
        is_last = self.size_bytes + content.nbytes == self._whole_bytes
        if not self._pending and (is_last or content.nbytes % PAGE_BYTES == 0):
            self._write(content)
            return
        self._pending += content
        if len(self._pending) >= PIECE_BYTES:
            self._flush(len(self._pending) & -PIECE_BYTES)

    def _flush(self, size_bytes: int) -> None:
        """Write the first pending bytes: a whole number of pages, or all."""
        with memoryview(self._pending) as pending, pending[:size_bytes] as first:
            self._write(first)
        del self._pending[:size_bytes]

    def _write(self, content: memoryview) -> None:
        if self._ranges is None:
            raise StoreClosedError(f"the writer of {self.object_id}")
        try:
            self._memory.write(self._ranges, self._written_bytes, content)
        except RemoteMemoryError as error:
            raise StoreSystemError(f"write remote memory: {error}", errno.EIO) from error
        self._written_bytes += content.nbytes

    def read(self, offset_bytes: int, length_bytes: int) -> bytes:
        raise StoreSystemError("read an object that is being moved", errno.EOPNOTSUPP)

    def commit(self, *, checksum: str | None = None) -> ObjectInfo:
        digest = self._digest.hexdigest()
        return self._store.keep(
            ObjectInfo(self.object_id, self.size_bytes, digest), self.finish(checksum or digest)
        )

    def finish(self, checksum: str | None) -> list[Range]:
        """Write the pending bytes, and return the pages of the object, which the caller frees."""
        _compare(ObjectInfo(self.object_id, self.size_bytes, checksum), self._digest.hexdigest())
        self._flush(len(self._pending))
        ranges, self._ranges = self._ranges, None
        return ranges or []

    def abort(self) -> None:
        ranges, self._ranges = self._ranges, None
        if ranges:
            self._memory.give_back(ranges)

    def __del__(self) -> None:
        if hasattr(self, "_digest"):
            self.abort()


def _compare(info: ObjectInfo, found: str) -> None:
    """Raise CorruptObjectError if an object has another checksum than it should have."""
    if info.checksum != found:
        detail = f"{found} instead of {info.checksum}"
        raise CorruptObjectError(info.object_id, "checksum", detail)
