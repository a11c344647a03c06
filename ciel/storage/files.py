"""The store of plain files: one directory, on a disk or in memory, shared by several processes.

It implements the store interface over a `shelf`, which defines the directory's layout. A process
that dies at any point damages nothing. After a power failure objects may be truncated, because by
default nothing is synced to the device: intermediate results can be recomputed (CIB-4). `sync=yes`
syncs each commit.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import xxhash

from ciel.core.ids import check_id
from ciel.storage.digests import digest_of
from ciel.storage.errors import (
    ANOTHER_FILE_SYSTEM,
    CannotAdoptError,
    CorruptObjectError,
    NoSpaceError,
    ObjectConflictError,
    ObjectNotFoundError,
    ShortOutputError,
    StorageError,
    StoreClosedError,
    StoreSystemError,
)
from ciel.storage.interface import (
    Capabilities,
    Chunk,
    Fingerprint,
    ObjectInfo,
    ObjectReader,
    ObjectStore,
    ObjectWriter,
    Problem,
    StoreLevel,
    StoreUsage,
)
from ciel.storage.shelf import Shelf, ShelfOptions, file_name
from ciel.storage.space import PAGE_BYTES, occupied_bytes
from ciel.storage.specs import StoreKind, check_options, parse_flag, parse_size

_ADOPT_REASONS = {
    errno.ENOENT: "the file is missing",
    errno.ENOTDIR: "the file is missing",
    errno.EXDEV: ANOTHER_FILE_SYSTEM,
    errno.EPERM: "this user may not link the file",
    errno.EACCES: "this user may not link the file",
    errno.EMLINK: "the file has too many links",
}


def open_disk(options: Mapping[str, str], directory: Path) -> FileStore:
    """Open the store in a directory; options: `capacity` (a size), `sync` (`yes` or `no`)."""
    return FileStore(directory, _shelf_options(options))


def _shelf_options(options: Mapping[str, str]) -> ShelfOptions:
    check_options("disk", options, ("capacity", "sync"))
    capacity = options.get("capacity")
    return ShelfOptions(
        capacity_bytes=parse_size(capacity) if capacity else None,
        sync=parse_flag(options.get("sync", "no")),
    )


class DiskKind(StoreKind):
    """The store `disk`, which keeps everything in the work directory of its worker."""

    def check(self, options: Mapping[str, str]) -> None:
        _shelf_options(options)


DISK = DiskKind(open_disk)


class FileReader(ObjectReader):
    """An open committed file."""

    def __init__(self, object_id: str, fd: int, path: str, shelf: Shelf) -> None:
        self.object_id = object_id
        status = os.fstat(fd)
        self.size_bytes = status.st_size
        self._fd = fd
        self._shelf = shelf
        self._path = path
        shelf.reading[fd] = status.st_ino

    @property
    def path(self) -> str:
        self._shelf.note_named(self.fileno(), self.size_bytes)
        return self._path

    @property
    def mapped_path(self) -> str:
        return self._path

    @property
    def source(self) -> str:
        return self._path

    def fileno(self) -> int:
        if self._fd < 0:
            raise StoreClosedError(f"the reader of {self.object_id}")
        return self._fd

    def fingerprint(self) -> Fingerprint:
        status = os.fstat(self.fileno())
        try:
            is_named = os.path.samestat(status, os.stat(self._path))
        except OSError:
            is_named = False
        file = status.st_dev, status.st_ino
        return Fingerprint(file, status.st_size, status.st_mtime_ns, is_named)

    def read_into(self, buffer: bytearray | memoryview, offset_bytes: int) -> int:
        rest = memoryview(buffer)
        filled = 0
        try:
            while rest and (count := os.preadv(self.fileno(), [rest], offset_bytes + filled)):
                filled += count
                rest = rest[count:]
        except OSError as error:
            raise CorruptObjectError(self.object_id, "unreadable", str(error)) from error
        return filled

    def read(self, offset_bytes: int, length_bytes: int) -> bytes:
        try:  # read directly into the returned bytes, without a buffer
            return os.pread(self.fileno(), max(length_bytes, 0), offset_bytes)
        except OSError as error:
            raise CorruptObjectError(self.object_id, "unreadable", str(error)) from error

    def view(self) -> memoryview:
        fd = self.fileno()
        if not self.size_bytes:
            return memoryview(b"")
        try:
            return memoryview(mmap.mmap(fd, self.size_bytes, access=mmap.ACCESS_READ))
        except OSError as error:
            raise StoreSystemError("map", error.errno or errno.EIO) from error

    def close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            self._shelf.close_reader(fd)

    def __del__(self) -> None:
        self.close()


class FileWriter(ObjectWriter):
    """Writes one temporary file, and computes the checksum of what `write` writes."""

    def __init__(
        self,
        shelf: Shelf,
        object_id: str,
        name: str,
        fd: int,
        reserved_bytes: int,
        old_bytes: int = 0,
    ) -> None:
        """`old_bytes`: how many bytes of old content a reused file has, which must stay hidden."""
        self.object_id = object_id
        self._shelf = shelf
        self._name = name
        self._fd = fd
        self._pid = os.getpid()
        self._promised_bytes = self._reserved_bytes = reserved_bytes
        self._times_full = shelf.fullness.count
        self._old_bytes = old_bytes
        self._map: mmap.mmap | None = None
        self._written_bytes = 0
        self._digest = xxhash.xxh3_64()
        self._shared = False  # a program may write too, so size and checksum come from the file
        self._named = False  # a program may not only map and write the file: it may pass pages on
        self._lent = False  # other users of the descriptor may outlive this writer
        shelf.writing.add(name)

    @property
    def path(self) -> str:
        self._require_open()
        self._drop_old_content()
        self._shared = self._named = True
        return self._shelf.temporaries.path_of(self._name)

    @property
    def mapped_path(self) -> str:
        self._require_open()
        if self._written_bytes:
            self._drop_old_content()
        elif not self._promised_bytes and not self._shared:
            self._take_old_file()
        self._old_bytes, self._shared = 0, True
        return self._shelf.temporaries.path_of(self._name)

    def _take_old_file(self) -> None:
        """Write into the file of a deleted object, if one is kept: its pages are allocated."""
        shelf = self._shelf
        segment = shelf.segments.take_any()
        if segment is None:
            return
        room_bytes = occupied_bytes(segment.size_bytes)
        try:
            shelf.space.reserve(room_bytes, is_allocated=True)
        except NoSpaceError:
            shelf.fullness.close_file(segment.fd)
            shelf.temporaries.discard(segment.name)
            return
        self._release()
        self._name, self._fd = segment.name, segment.fd
        self._promised_bytes = self._reserved_bytes = room_bytes
        shelf.writing.add(self._name)

    def fileno(self, *, to_write: bool = True) -> int:
        self._require_open()
        self._drop_old_content()
        self._shared = self._shared or to_write
        self._lent = self._named = True
        return self._fd

    @property
    def size_bytes(self) -> int:
        fd = self._current_fd()
        return os.fstat(fd).st_size if self._shared else self._written_bytes

    def write(self, chunk: Chunk) -> None:
        self._require_open()
        rest = memoryview(chunk)
        length_bytes = rest.nbytes
        if not length_bytes:
            return
        rest = rest.cast("B")
        self._charge(self._written_bytes + length_bytes)
        try:
            while rest:
                try:
                    rest = rest[os.write(self._fd, rest) :]
                except OSError as error:
                    if error.errno != errno.ENOSPC or not self._shelf.segments.drop():
                        raise
        except OSError as error:
            raise self._shelf.translated(error, "write", length_bytes) from error
        self._digest.update(chunk)
        self._written_bytes += length_bytes

    @property
    def may_be_short(self) -> bool:
        if not self._shared or self._shelf.temporaries.directory_fd < 0:
            return False
        status = self._shelf.temporaries.status_of(self._name)
        return self._may_be_short(0 if status is None else status.st_size)

    def _may_be_short(self, size_bytes: int) -> bool:
        if not self._shared or self._old_bytes or 0 < self._promised_bytes >= size_bytes:
            return False  # the writer reserved the whole space before the first write
        shelf = self._shelf
        is_in_memory = shelf.options.whole
        # If a write fails because no block is free, the file ends at a block boundary. An empty
        # file on a disk counts as intended, since there the only reaction would be a failed job.
        is_cut = not size_bytes % PAGE_BYTES and (size_bytes > 0 or is_in_memory)
        # In this order: space freed between the two checks is counted.
        return (is_cut and shelf.drop_if_full()) or shelf.fullness.was_full(self._times_full)

    def view(self, size_bytes: int) -> memoryview:
        self._require_open()
        self._charge(size_bytes)
        try:
            os.ftruncate(self._fd, size_bytes)
            self._shelf.reserve(self._fd, size_bytes, keep_size=False)
            self._old_bytes, self._shared = 0, True
            if not size_bytes:
                return memoryview(bytearray())
            self._map = mmap.mmap(self._fd, size_bytes)
        except OSError as error:
            raise self._shelf.translated(error, "map", size_bytes) from error
        return memoryview(self._map)

    def account(self) -> None:
        self._require_open()
        if self._old_bytes:
            return  # no program has the file
        if self._shelf.options.whole:
            self._shelf.drop_if_full()
        status = self._shelf.temporaries.status_of(self._name)
        if status is not None:  # otherwise commit reports the problem
            self._charge(status.st_size, is_allocated=True)

    def read(self, offset_bytes: int, length_bytes: int) -> bytes:
        if self._old_bytes:
            length_bytes = max(0, min(length_bytes, self._written_bytes - offset_bytes))
        return os.pread(self._current_fd(), length_bytes, offset_bytes)

    def take(self, max_bytes: int, *, is_alone: bool = False) -> bytes | None:
        self._require_open()
        self._drop_old_content()
        status = self._shelf.temporaries.status_of(self._name) if self._shared else None
        ours = os.fstat(self._fd)
        if status is None or self._written_bytes or not os.path.samestat(status, ours):
            if self._shared and (size_bytes := self.size_bytes) <= max_bytes:
                self._require_complete(size_bytes)
            return super().take(max_bytes)
        if ours.st_size > max_bytes:
            return None
        self._require_complete(ours.st_size)
        content = os.pread(self._fd, ours.st_size, 0) if ours.st_size else b""
        if is_alone and not self._lent and ours.st_nlink == 1 and self._pid == os.getpid():
            fd, self._fd = self._fd, -1
            self._shelf.writing.discard(self._name)
            self._shelf.space.release(self._reserved_bytes)
            self._shelf.temporaries.recycle(self._name, fd, ours)
        else:
            self.abort()
        return content

    def commit(self, *, checksum: str | None = None) -> ObjectInfo:
        fd = self._current_fd()
        self._drop_old_content()
        self._unmap()
        status = os.fstat(fd)
        self._require_complete(status.st_size)
        self._charge(status.st_size, is_allocated=True)
        found = None if self._shared else str(self._digest.hexdigest())
        try:
            if checksum is not None:
                found = found or digest_of(fd)
                if found != checksum:
                    detail = f"computed {found}, expected {checksum}"
                    raise CorruptObjectError(self.object_id, "checksum", detail)
            surplus_bytes = self._reserved_bytes - occupied_bytes(status.st_size)
            self._shelf.seal(fd, status, surplus_bytes, found, is_named=self._named)
            self._shelf.space.release(surplus_bytes)
            self._reserved_bytes -= surplus_bytes
            info = self._shelf.publish(self.object_id, self._name, fd, status.st_size, found)
        except OSError as error:
            raise self._shelf.translated(error, "commit", status.st_size) from error
        except ObjectConflictError:
            self.abort()
            raise
        self._reserved_bytes = 0
        self._release()  # removes the temporary name; the object keeps its own
        return info

    def abort(self) -> None:
        if self._fd >= 0:
            self._release()

    def _release(self) -> None:
        fd, self._fd = self._fd, -1
        self._shelf.fullness.close_file(fd)
        if os.getpid() == self._pid:  # a forked process owns neither the file nor the space
            self._shelf.writing.discard(self._name)
            self._shelf.temporaries.discard(self._name)
            self._shelf.space.release(self._reserved_bytes)

    def __del__(self) -> None:
        self.abort()

    def _drop_old_content(self) -> None:
        """Truncate the old content of a reused file."""
        if self._old_bytes:
            surplus_bytes, self._old_bytes = self._old_bytes - self._written_bytes, 0
            with self._shelf.fullness.giving_back(max(surplus_bytes, 0)):
                os.ftruncate(self._fd, self._written_bytes)

    def _unmap(self) -> None:
        if self._map is not None:
            try:
                self._map.close()
            except BufferError:
                detail = "its memory may still be written to: release the view before the commit"
                raise CorruptObjectError(self.object_id, "output", detail) from None

    def _require_open(self) -> None:
        if self._fd < 0:
            raise StoreClosedError(f"the writer of {self.object_id}")
        self._shelf.require_open()

    def _require_complete(self, size_bytes: int) -> None:
        if self._may_be_short(size_bytes):
            raise ShortOutputError(self.object_id, size_bytes)

    def _charge(self, size_bytes: int, *, is_allocated: bool = False) -> None:
        more_bytes = occupied_bytes(size_bytes) - self._reserved_bytes
        if more_bytes > 0:
            try:
                self._shelf.space.reserve(
                    more_bytes, may_overrun=self.may_overrun, is_allocated=is_allocated
                )
            except NoSpaceError as error:
                had_bytes = self._reserved_bytes
                raise NoSpaceError(size_bytes, error.available_bytes + had_bytes) from None
            self._reserved_bytes += more_bytes

    def _current_fd(self) -> int:
        """Return the descriptor of the file that is now at the writer's path, since a program may
        have replaced the first file.
        """
        self._require_open()
        if not self._shared:
            return self._fd
        try:
            fd = self._shelf.temporaries.reopen(self._name)
        except OSError as error:
            raise self._shelf.translated(error, "reopen") from error
        if fd is None:
            detail = "the program deleted or replaced the file that it was given for this output"
            raise CorruptObjectError(self.object_id, "output", detail)
        if not os.path.sameopenfile(fd, self._fd):
            self._fd, fd = fd, self._fd
        self._shelf.fullness.close_file(fd)
        return self._fd


class FileStore(ObjectStore):
    """Stores objects as files of one directory, which is created if missing."""

    def __init__(self, directory: Path, options: ShelfOptions, *, may_block: bool = True) -> None:
        self.capabilities = Capabilities(
            mappable=True,
            nameable=True,
            streaming=True,
            shared_between_processes=True,
            bounded=options.capacity_bytes is not None,
            may_block=may_block,
        )
        self._adopted: set[str] = set()  # objects whose files other stores have written
        self._shelf = Shelf(os.path.abspath(directory), options)
        self.directories = (self._shelf.objects_path,)
        self.places = (f"files:{os.stat(self._shelf.objects_path).st_dev}",)

    def begin(self, object_id: str, *, size_hint_bytes: int | None = None) -> FileWriter:
        check_id(object_id)
        self._shelf.require_open()
        hint_bytes = size_hint_bytes or 0
        reserved_bytes = occupied_bytes(hint_bytes)
        self._shelf.space.reserve(reserved_bytes)
        segments, old_bytes = self._shelf.segments, 0
        try:
            if (segment := segments.take(hint_bytes)) is not None:
                name, fd, old_bytes = segment.name, segment.fd, segment.size_bytes
            else:
                name, fd = self._shelf.temporaries.create()
        except OSError as error:
            self._shelf.space.release(reserved_bytes)
            raise self._shelf.translated(error, "begin", hint_bytes) from error
        writer = FileWriter(self._shelf, object_id, name, fd, reserved_bytes, old_bytes)
        try:
            # A reused file without holes needs no allocation, and even a call that allocates
            # nothing is slow.
            held = os.fstat(fd)
            if held.st_blocks * 512 < max(held.st_size, hint_bytes):
                self._shelf.reserve(fd, hint_bytes, keep_size=True)
        except OSError as error:
            writer.abort()
            raise self._shelf.translated(error, "begin", hint_bytes) from error
        return writer

    def open(self, object_id: str) -> FileReader:
        name = file_name(object_id)
        self._shelf.require_open()
        try:
            fd = self._shelf.open(object_id)
        except OSError as error:
            raise self._shelf.translated(error, "open") from error
        if fd is None:
            raise ObjectNotFoundError(object_id)
        path = f"{self._shelf.objects_path}/{name}"
        return FileReader(object_id, fd, path, self._shelf)

    def stat(self, object_id: str) -> ObjectInfo | None:
        try:
            with self.open(object_id) as reader:
                recorded = self._shelf.recorded(reader.fileno())
                return ObjectInfo(object_id, reader.size_bytes, recorded)
        except ObjectNotFoundError:
            return None

    def checksum(self, object_id: str) -> str:
        with self.open(object_id) as reader:
            return self._shelf.checksum(object_id, reader.fileno())

    def verify(self, object_id: str) -> ObjectInfo:
        with self.open(object_id) as reader:
            found = self._shelf.verify(object_id, reader.fileno())
            return ObjectInfo(object_id, reader.size_bytes, found)

    def adopt(self, object_id: str, path: str, *, checksum: str, size_bytes: int) -> ObjectInfo:
        expected = ObjectInfo(check_id(object_id), size_bytes, checksum)
        self._shelf.require_open()
        charged_bytes = occupied_bytes(size_bytes)
        space, may_overrun = self._shelf.space, self._shelf.options.links_overrun
        space.reserve(charged_bytes, may_overrun=may_overrun, is_allocated=True)
        try:
            temporary = self._shelf.temporaries.link(path)
            try:
                info = self._shelf.publish_linked(expected, path, temporary)
                self._adopted.add(object_id)
                return info
            finally:
                self._shelf.temporaries.discard(temporary)
        except OSError as error:
            self._shelf.space.release(charged_bytes)
            reason = _ADOPT_REASONS.get(error.errno or 0)
            if reason is None:
                raise self._shelf.translated(error, "adopt", size_bytes) from error
            raise CannotAdoptError(object_id, path, reason) from error
        except StorageError:
            self._shelf.space.release(charged_bytes)
            raise

    def delete(self, object_id: str) -> bool:
        try:
            with self.open(object_id) as reader:
                kept = self._shelf.unlink(object_id, reader.fileno())
            if kept:
                is_own = object_id not in self._adopted
                self._shelf.segments.offer(kept, is_own=is_own)
            self._adopted.discard(object_id)
        except (ObjectNotFoundError, FileNotFoundError):
            return False
        except OSError as error:
            raise self._shelf.translated(error, "delete") from error
        return True

    def __iter__(self) -> Iterator[str]:
        self._shelf.require_open()
        return self._shelf.ids()

    def usage(self) -> StoreUsage:
        self._shelf.require_open()
        return self._shelf.space.usage()

    def levels(self) -> tuple[StoreLevel, ...]:
        (level,) = super().levels()
        shelf = self._shelf
        return (level._replace(readers=len(shelf.reading), writers=len(shelf.writing)),)

    def check(self) -> list[Problem]:
        self._shelf.require_open()
        return self._shelf.problems() + super().check()

    def claim(self) -> None:
        self._shelf.claim(self._shelf.path, "directory")

    def gone(self) -> str:
        return self._shelf.gone()

    def close(self) -> None:
        self._shelf.close()
