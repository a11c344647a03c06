"""Readers and writers of the store `scc`."""

from __future__ import annotations

import errno
import os
import threading
import weakref
from functools import partial
from typing import Protocol

import xxhash

from ciel.scc.copies import Copies
from ciel.scc.fifos import Fifos, Served
from ciel.scc.shapes import Info, ShmfsError
from ciel.scc.shmfs import File
from ciel.scc.uncommitted import UncommittedFile
from ciel.storage.errors import (
    CorruptObjectError,
    NoSpaceError,
    ObjectConflictError,
    ObjectNotFoundError,
    StorageError,
    StoreClosedError,
    StoreSystemError,
)
from ciel.storage.interface import Chunk, ObjectInfo, ObjectReader, ObjectWriter

_NO_SPACE = {
    "NO_INODES": (
        "the image has no free inode for another object; delete objects, or create the image with "
        "more capacity"
    ),
    "NO_ENTRIES": (
        "the image has no free directory entry for another name, and each core that holds an "
        "object needs one; delete objects, or create the image with more capacity"
    ),
    "LINKS": "the object already has the maximum number of names, one for each core that holds it",
}
_NO_HANDLES = (
    "the image has no free handle for this worker, because too many objects are open; run fewer "
    "tasks at a time (--slots), give each task fewer inputs, or create the image with more "
    "capacity or for fewer cores"
)
_ERRNOS = {"BUSY": errno.EBUSY, "NO_CLIENTS": errno.EUSERS}
IN_PLACE_MIN_BYTES = 2**20
"""Programs map larger objects in the image; to copy a smaller one takes less time."""
_FIFO_MIN_BYTES = 2**16  # copying a smaller object takes less time than waking a thread


def translated(
    error: ShmfsError, object_id: str, wanted_bytes: int = 0, available_bytes: int = 0
) -> StorageError:
    """Translate an error of the file system into an error of the store."""
    if error.reason == "NOT_FOUND":
        return ObjectNotFoundError(object_id)
    if error.reason == "NO_BLOCKS":
        return NoSpaceError(wanted_bytes, available_bytes)
    if error.reason in _NO_SPACE:
        return NoSpaceError(max(wanted_bytes, 1), 0, _NO_SPACE[error.reason])
    if error.reason == "NO_HANDLES":  # the image's limit, not the system's
        return ShmfsError(error.operation, error.reason, _NO_HANDLES)
    if error.reason == "CORRUPT":
        return CorruptObjectError(object_id, "image", str(error))
    if error.reason in _ERRNOS:
        return StoreSystemError(error.operation, _ERRNOS[error.reason])
    return error


def checksum_of(info: Info) -> str | None:
    """Return the checksum that is stored in a file's tag, None if it was never computed."""
    return f"{info.tag:016x}" if info.tag else None


def digest_of(file: File) -> str:
    """Compute the checksum of a committed file."""
    return str(xxhash.xxh3_64(file.view()).hexdigest())


class OwningStore(Protocol):
    """The part of the store (`store.SccStore`) that readers and writers use."""

    copies: Copies
    readers: OpenObjects
    scheme: str
    block_bytes: int
    writes_in_place: bool

    def fifos(self) -> Fifos: ...
    def file_name(self, object_id: str) -> str: ...
    def require_open(self) -> None: ...
    def new_file(self, object_id: str) -> File: ...
    def new_uncommitted(self, object_id: str) -> UncommittedFile: ...
    def free_bytes(self) -> int: ...
    def charge(self, more_bytes: int) -> None: ...
    def done_writing(self, writer: SccWriter, charged_bytes: int) -> None: ...
    def publish(self, file: File, info: ObjectInfo) -> ObjectInfo: ...
    def new_draft(self, object_id: str, size_bytes: int) -> str: ...
    def draft_info(self, name: str) -> Info | None: ...
    def open_draft(self, name: str) -> File: ...
    def drop_draft(self, name: str) -> None: ...
    def place(self, name: str) -> str: ...
    def publish_draft(self, name: str, info: Info, found: ObjectInfo) -> None: ...


class SccReader(ObjectReader):
    """An open committed object, read in place. `path` is the path of a sealed copy, which exists
    while the reader is open, and longer if the store keeps the copy.
    """

    def __init__(self, store: OwningStore, object_id: str, file: File) -> None:
        info = file.info()
        self.object_id = object_id
        self.size_bytes = info.size_bytes
        self._copies = store.copies
        self._source = f"{store.scheme}{store.file_name(object_id)}"
        self._place = partial(store.place, store.file_name(object_id))
        self._key = (info.inode, info.generation)
        self._file = file
        self._copy_fd = -1
        self._copy_path = ""
        self._fifos = store.fifos
        self._served: Served | None = None
        self._readers = store.readers
        self._readers.add(self)

    @property
    def path(self) -> str:
        self.fileno()
        return self._copy_path

    @property
    def place(self) -> str | None:
        return self._place() if self.size_bytes >= IN_PLACE_MIN_BYTES else None

    @property
    def mapped_path(self) -> str:
        return self.place or self.path

    @property
    def piped_path(self) -> str:
        if self._copy_fd >= 0 or self.size_bytes <= _FIFO_MIN_BYTES:
            return self.path
        if self._served is None or self._served.is_opened:
            self._end_fifo()
            try:
                self._served = self._fifos().serve(self._file.view())
            except OSError as error:
                raise StoreSystemError("mkfifo", error.errno or errno.EIO) from error
        return self._served.path

    @property
    def source(self) -> str:
        return self._source

    def fileno(self) -> int:
        if self._copy_fd < 0:
            copy = self._copies.take(self._key, self._file, self.size_bytes)
            self._copy_fd, self._copy_path = copy.fd, copy.path
        return self._copy_fd

    def read_into(self, buffer: bytearray | memoryview, offset_bytes: int) -> int:
        return self._file.read_into(buffer, offset_bytes)

    def view(self) -> memoryview:
        return self._file.view()

    def close(self) -> None:
        self._file.close()
        self._readers.discard(self)
        self._end_fifo()
        if self._copy_fd >= 0:
            self._copy_fd = -1
            self._copies.give_back(self._key)

    def _end_fifo(self) -> None:
        if self._served is not None:
            self._fifos().end(self._served)
            self._served = None

    def __del__(self) -> None:
        if hasattr(self, "_copy_fd"):
            self.close()


class SccWriter(ObjectWriter):
    """Writes an object directly into the image or, once the caller requests a path or a descriptor,
    into an `UncommittedFile`, for which the image only reserves space. A program that maps its
    output writes and commits a file in the image, the draft.
    """

    def __init__(self, store: OwningStore, object_id: str, hint_bytes: int) -> None:
        self.object_id = object_id
        self._store = store
        self._pid = os.getpid()
        self._is_open = True
        self._file: File | None = None
        self._uncommitted: UncommittedFile | None = None
        self._draft = ""
        self._written_bytes = 0
        self._charged_bytes = 0
        self._digest = xxhash.xxh3_64()
        self._viewed_bytes = 0
        self._hint_bytes = hint_bytes
        self._shared = False  # other processes may write, so only the file has its size
        if hint_bytes:
            self._reserve(hint_bytes)

    @property
    def path(self) -> str:
        uncommitted = self._write_uncommitted()
        self._shared = True
        return uncommitted.path

    @property
    def mapped_path(self) -> str:
        self._require_open()
        if 0 < self._hint_bytes < IN_PLACE_MIN_BYTES or self._written_bytes or self._uncommitted:
            return self.path
        if not self._draft:
            self._let_go_of_file()
            self._draft = self._store.new_draft(self.object_id, self._hint_bytes)
            self._charge_for(self._store.draft_info(self._draft))
        return self._store.place(self._draft)

    def fileno(self, *, to_write: bool = True) -> int:
        uncommitted = self._write_uncommitted()
        self._shared = self._shared or to_write
        uncommitted.is_shared = True
        return uncommitted.fileno()

    @property
    def size_bytes(self) -> int:
        self._require_open()
        if self._draft:
            info = self._store.draft_info(self._draft)
            return info.size_bytes if info is not None else 0
        if self._uncommitted is None or not self._shared:
            return self._written_bytes
        return os.fstat(self._uncommitted.current_fd()).st_size

    def write(self, chunk: Chunk) -> None:
        self._require_open()
        content = memoryview(chunk)
        if not content.nbytes:
            return
        content = content.cast("B")
        size_bytes = self._written_bytes + len(content)
        if self._uncommitted is not None:
            self._reserve(size_bytes)
            self._uncommitted.write(content)
        else:
            self._write_in_place(content, size_bytes)
        self._digest.update(content)
        self._written_bytes = size_bytes

    def view(self, size_bytes: int) -> memoryview:
        self._require_open()
        if self._uncommitted is not None or self._written_bytes or not self._store.writes_in_place:
            return super().view(size_bytes)
        self._reserve(size_bytes)
        self._written_bytes = self._viewed_bytes = size_bytes
        return self._require_file().writable(size_bytes) if size_bytes else memoryview(bytearray())

    def account(self) -> None:
        self._require_open()
        if self._draft:
            self._charge_for(self._store.draft_info(self._draft))
            return
        size_bytes = None
        if self._uncommitted is not None:
            self._uncommitted.note_if_full()
            size_bytes = self._uncommitted.size_now()
        if not size_bytes:  # `commit` reports a missing file
            return
        try:
            self._reserve(size_bytes)
        except NoSpaceError:
            if not self.may_overrun:  # the file is outside the image, and may grow meanwhile
                raise

    @property
    def may_be_short(self) -> bool:
        return self._uncommitted is not None and self._shared and self._uncommitted.may_be_short

    def read(self, offset_bytes: int, length_bytes: int) -> bytes:
        self._require_open()
        if self._draft:
            with self._committed_draft() as file:
                return bytes(file.view()[offset_bytes : offset_bytes + length_bytes])
        if self._uncommitted is not None:
            fd = self._uncommitted.current_fd() if self._shared else self._uncommitted.fileno()
            return os.pread(fd, length_bytes, offset_bytes)
        if self._file is None:
            return b""
        buffer = bytearray(max(0, min(length_bytes, self._written_bytes - offset_bytes)))
        count = self._file.read_into(buffer, offset_bytes) if buffer else 0
        return bytes(memoryview(buffer)[:count])

    def take(self, max_bytes: int, *, is_alone: bool = False) -> bytes | None:
        self._require_open()
        if self._uncommitted is not None and self._shared:
            self._uncommitted.require_complete()
        if self._uncommitted is None or self._written_bytes or self._hint_bytes or not is_alone:
            return super().take(max_bytes)
        if (self._uncommitted.size_now() or 0) > max_bytes:
            return None
        content = self._uncommitted.take_back() if self._pid == os.getpid() else None
        if content is None:
            return super().take(max_bytes)
        self._uncommitted = None
        self.abort()
        return content

    def commit(self, *, checksum: str | None = None) -> ObjectInfo:
        self._require_open()
        if self._draft:
            return self._publish_draft(checksum)
        if self._uncommitted is not None:
            size_bytes, found = self._copy_in(self._uncommitted)
        elif self._viewed_bytes:
            size_bytes, found = self._take_over()
        else:
            size_bytes, found = self._written_bytes, str(self._digest.hexdigest())
        if checksum is not None and found != checksum:
            detail = f"computed {found}, expected {checksum}"
            raise CorruptObjectError(self.object_id, "checksum", detail)
        file = self._require_file()
        info = ObjectInfo(self.object_id, size_bytes, found)
        try:
            file.set_tag(int(found, 16))
            kept = self._store.publish(file, info)
        except ShmfsError as error:
            raise translated(error, self.object_id, size_bytes) from error
        except ObjectConflictError:
            self.abort()
            raise
        self.abort()  # only the handle is left
        return kept

    def abort(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        is_ours = os.getpid() == self._pid  # a forked copy owns neither the file nor the space
        if self._uncommitted is not None:
            self._uncommitted.close(discard=is_ours)
        if self._file is not None:
            self._file.close()
        if is_ours:
            if self._draft:
                self._store.drop_draft(self._draft)
            self._store.done_writing(self, self._charged_bytes)

    def __del__(self) -> None:
        if hasattr(self, "_is_open"):
            self.abort()

    def _require_open(self) -> None:
        if not self._is_open:
            raise StoreClosedError(f"the writer of {self.object_id}")
        self._store.require_open()

    def _require_file(self) -> File:
        if self._file is None:
            self._file = self._store.new_file(self.object_id)
        return self._file

    def _reserve(self, size_bytes: int) -> None:
        try:
            self._require_file().reserve(size_bytes)
        except ShmfsError as error:
            raise self._space_error(error, size_bytes) from error
        self._charge()

    def _write_in_place(self, content: memoryview, size_bytes: int) -> None:
        try:
            self._require_file().write(content, self._written_bytes)
        except ShmfsError as error:
            raise self._space_error(error, size_bytes) from error
        self._charge()

    def _charge(self) -> None:
        """Update the store's count of bytes that the file occupies."""
        assert self._file is not None
        self._charge_for(self._file.info())

    def _charge_for(self, info: Info | None) -> None:
        charged_bytes = info.block_count * self._store.block_bytes if info is not None else 0
        self._store.charge(charged_bytes - self._charged_bytes)
        self._charged_bytes = charged_bytes

    def _let_go_of_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
            self._charge_for(None)

    def _committed_draft(self) -> File:
        """Open the draft, which the program must have committed."""
        try:
            return self._store.open_draft(self._draft)
        except ShmfsError as error:
            if error.reason not in ("NOT_FOUND", "WRITING"):
                raise
            detail = "the program has not completed the file that it was given for this output"
            raise CorruptObjectError(self.object_id, "output", detail) from error

    def _publish_draft(self, checksum: str | None) -> ObjectInfo:
        with self._committed_draft() as file:
            info = file.info()
            if checksum is not None and (found := digest_of(file)) != checksum:
                detail = f"computed {found}, expected {checksum}"
                raise CorruptObjectError(self.object_id, "checksum", detail)
        kept = ObjectInfo(self.object_id, info.size_bytes, checksum)
        try:
            self._store.publish_draft(self._draft, info, kept)
        except ObjectConflictError:
            self.abort()
            raise
        self.abort()  # only the name of the draft is left
        return kept

    def _space_error(self, error: ShmfsError, wanted_bytes: int) -> StorageError:
        available_bytes = self._store.free_bytes() + self._charged_bytes
        return translated(error, self.object_id, wanted_bytes, available_bytes)

    def _write_uncommitted(self) -> UncommittedFile:
        """Return the file outside the image to write to. The first call creates it, with the
        content written so far.
        """
        self._require_open()
        if self._uncommitted is None:
            uncommitted = self._store.new_uncommitted(self.object_id)
            try:
                if self._hint_bytes > self._written_bytes:
                    uncommitted.reserve(self._hint_bytes)
                if self._written_bytes:
                    uncommitted.write(memoryview(self.read(0, self._written_bytes)))
            except StorageError:
                uncommitted.close()
                raise
            self._uncommitted = uncommitted
        return self._uncommitted

    def _take_over(self) -> tuple[int, str]:
        """Make the bytes that were written through `view` the content."""
        file = self._require_file()
        file.set_written(self._viewed_bytes)
        content = file.writable(self._viewed_bytes)
        return self._viewed_bytes, str(xxhash.xxh3_64(content).hexdigest())

    def _copy_in(self, uncommitted: UncommittedFile) -> tuple[int, str]:
        """Copy the uncommitted file into the image. May be repeated after a failed commit."""
        if self._shared:
            uncommitted.require_complete()
        size_bytes = os.fstat(uncommitted.current_fd()).st_size
        try:
            file = self._require_file()
            file.truncate(0)
            self._reserve(size_bytes)
            copied_bytes, found = uncommitted.copy_to(
                file, size_bytes, in_place=self._store.writes_in_place
            )
        except ShmfsError as error:
            raise self._space_error(error, size_bytes) from error
        except OSError as error:
            raise StoreSystemError("commit", error.errno or errno.EIO) from error
        self._store.copies.count(copied_bytes)
        return copied_bytes, found


class OpenObjects:
    """The open readers or writers of a store. Any thread may use this."""

    def __init__(self) -> None:
        self._alive: weakref.WeakSet[SccReader | SccWriter] = weakref.WeakSet()
        self._lock = threading.RLock()  # garbage collection may call `discard` within any call

    def add(self, opened: SccReader | SccWriter) -> None:
        with self._lock:
            self._alive.add(opened)

    def discard(self, opened: SccReader | SccWriter) -> None:
        with self._lock:
            self._alive.discard(opened)

    def __len__(self) -> int:
        return len(self._alive)

    def all(self) -> list[SccReader | SccWriter]:
        with self._lock:
            return list(self._alive)
