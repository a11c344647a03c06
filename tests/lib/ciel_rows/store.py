"""A store of another package: it keeps objects in an SQLite database, not in files.

    <directory>/objects.db    committed objects (`database`)
    <directory>/owner         the process id of the worker that owns the store, which locks it
    <directory>/incoming/     files that writers and programs write

A program that reads an object gets a sealed copy in memory. A writer's content becomes an object in
one transaction, so a process that dies leaves nothing visible.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from ciel.core.ids import check_id
from ciel.storage import leases
from ciel.storage.digests import digest_of
from ciel.storage.errors import (
    CannotAdoptError,
    CorruptObjectError,
    NoSpaceError,
    ObjectConflictError,
    ObjectNotFoundError,
    StoreClosedError,
    StoreSystemError,
    translated,
)
from ciel.storage.fullness import Fullness
from ciel.storage.interface import (
    Capabilities,
    Chunk,
    ObjectInfo,
    ObjectReader,
    ObjectStore,
    ObjectWriter,
    StoreUsage,
)
from ciel.storage.space import Space, occupied_bytes
from ciel.storage.temporaries import Temporaries
from ciel_rows.database import NAME, PIECE_BYTES, Database

PREFIX: Final = "ciel-rows-"
"""The start of the names of directories that several workers may have in one place."""
_SCHEME: Final = "rows:"
_SEALS: Final = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
_EXECUTABLE: Final = 0o500


class RowReader(ObjectReader):
    """A sealed copy of an object in memory. Its `path` exists while the reader is open."""

    def __init__(self, object_id: str, pieces: Iterator[bytes], source: str) -> None:
        self.object_id = object_id
        self._source = source
        self._fd = -1
        fd = os.memfd_create("ciel-object", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        with open(fd, "wb", buffering=0) as copy:
            for piece in pieces:
                copy.write(piece)
            self.size_bytes = copy.tell()
            os.fchmod(fd, _EXECUTABLE)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
            self._fd = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)

    @property
    def path(self) -> str:
        return f"/proc/{os.getpid()}/fd/{self.fileno()}"

    @property
    def source(self) -> str:
        return self._source

    def fileno(self) -> int:
        if self._fd < 0:
            raise StoreClosedError(f"the reader of {self.object_id}")
        return self._fd

    def read_into(self, buffer: bytearray | memoryview, offset_bytes: int) -> int:
        return os.preadv(self.fileno(), [buffer], offset_bytes)

    def view(self) -> memoryview:
        fd = self.fileno()
        if not self.size_bytes:
            return memoryview(b"")
        return memoryview(mmap.mmap(fd, self.size_bytes, access=mmap.ACCESS_READ))

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        self.close()


class RowWriter(ObjectWriter):
    """A file that becomes rows at the commit."""

    def __init__(self, store: RowStore, object_id: str, hint_bytes: int) -> None:
        self.object_id = object_id
        self._store = store
        self._pid = os.getpid()
        self._fd = -1
        self._reserved_bytes = 0
        self._reserve(hint_bytes)
        try:
            self._name, self._fd = store.temporaries.create()
        except OSError as error:
            store.space.release(self._reserved_bytes)
            raise StoreSystemError("create", error.errno or errno.EIO) from error

    @property
    def path(self) -> str:
        self._require_open()
        return self._store.temporaries.path_of(self._name)

    def fileno(self, *, to_write: bool = True) -> int:
        self._require_open()
        return self._fd

    @property
    def size_bytes(self) -> int:
        return os.fstat(self._current_fd()).st_size

    def write(self, chunk: Chunk) -> None:
        self._require_open()
        left = memoryview(chunk).cast("B") if memoryview(chunk).nbytes else memoryview(b"")
        self._reserve(os.fstat(self._fd).st_size + len(left))
        try:
            while left:
                left = left[os.write(self._fd, left) :]
        except OSError as error:
            raise translated(error, "write", len(left), self._fd) from error

    def account(self) -> None:
        self._require_open()
        status = self._store.temporaries.status_of(self._name)
        if status is not None:  # `commit` reports a missing file
            self._reserve(status.st_size)

    def read(self, offset_bytes: int, length_bytes: int) -> bytes:
        return os.pread(self._current_fd(), length_bytes, offset_bytes)

    def commit(self, *, checksum: str | None = None) -> ObjectInfo:
        fd = self._current_fd()
        info = ObjectInfo(self.object_id, os.fstat(fd).st_size, digest_of(fd))
        if checksum is not None and info.checksum != checksum:
            detail = f"computed {info.checksum}, expected {checksum}"
            raise CorruptObjectError(self.object_id, "checksum", detail)
        self._reserve(info.size_bytes)
        try:
            kept = self._store.publish(info, lambda: _pieces_of(fd))
        except ObjectConflictError:
            self.abort()
            raise
        self.abort()
        return kept

    def abort(self) -> None:
        if self._fd < 0:
            return
        os.close(self._fd)
        self._fd = -1
        if os.getpid() == self._pid:  # a forked copy owns neither the file nor the space
            self._store.temporaries.discard(self._name)
            self._store.space.release(self._reserved_bytes)
            self._reserved_bytes = 0

    def __del__(self) -> None:
        self.abort()

    def _require_open(self) -> None:
        if self._fd < 0:
            raise StoreClosedError(f"the writer of {self.object_id}")
        self._store.require_open()

    def _current_fd(self) -> int:
        """Return a descriptor of the file at the path; a program may have replaced the file."""
        self._require_open()
        fd = self._store.temporaries.reopen(self._name)
        if fd is None:
            detail = "the program deleted or replaced the file that it was given for this output"
            raise CorruptObjectError(self.object_id, "output", detail)
        if os.path.sameopenfile(fd, self._fd):
            os.close(fd)
        else:
            os.close(self._fd)
            self._fd = fd
        return self._fd

    def _reserve(self, size_bytes: int) -> None:
        more_bytes = occupied_bytes(size_bytes) - self._reserved_bytes
        if more_bytes <= 0:
            return
        try:
            self._store.space.reserve(more_bytes, may_overrun=self.may_overrun)
        except NoSpaceError as error:
            available_bytes = error.available_bytes + self._reserved_bytes
            raise NoSpaceError(size_bytes, available_bytes) from error
        self._reserved_bytes += more_bytes


def _pieces_of(fd: int) -> Iterator[bytes]:
    offset_bytes = 0
    while piece := os.pread(fd, PIECE_BYTES, offset_bytes):
        yield piece
        offset_bytes += len(piece)


class RowStore(ObjectStore):
    """The objects of one database. `is_shared`: the directory is in a place that workers share, so
    it exists as long as a process has the store open.
    """

    capabilities = Capabilities(
        mappable=False,
        nameable=True,
        streaming=True,
        shared_between_processes=True,
        bounded=True,
        may_block=True,
    )
    sources = ("/", _SCHEME)

    def __init__(
        self, directory: Path, capacity_bytes: int | None, *, is_shared: bool = False
    ) -> None:
        self.directory = directory
        self.about = f"rows of {directory / NAME}"
        self._is_shared = is_shared
        self._is_open = False
        self._owner_fd = -1
        try:
            directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._parent_fd = os.open(directory.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            if is_shared:
                leases.sweep(self._parent_fd, prefix=PREFIX)
            self._hold_fd = leases.hold(directory.name, parent_fd=self._parent_fd)
            self.temporaries = Temporaries(self._hold_fd, str(directory), Fullness(None))
        except OSError as error:
            raise StoreSystemError(f"open {directory}", error.errno or errno.EIO) from error
        self._rows = Database(directory / NAME)
        self.space = Space(capacity_bytes, self._rows.count, lambda: None)
        self._is_open = True

    def require_open(self) -> None:
        """Raise StoreClosedError after `close`."""
        if not self._is_open:
            raise StoreClosedError(f"the store in {self.directory}")

    # --- one object -------------------------------------------------------------------------------

    def begin(self, object_id: str, *, size_hint_bytes: int | None = None) -> RowWriter:
        check_id(object_id)
        self.require_open()
        return RowWriter(self, object_id, size_hint_bytes or 0)

    def open(self, object_id: str) -> RowReader:
        self._found(object_id)
        source = f"{_SCHEME}{self.directory / NAME}#{object_id}"
        with self._rows.reading():
            self._found(object_id)  # it may have been deleted meanwhile
            return RowReader(object_id, self._rows.pieces(object_id), source)

    def stat(self, object_id: str) -> ObjectInfo | None:
        check_id(object_id)
        self.require_open()
        return self._rows.info(object_id)

    def checksum(self, object_id: str) -> str:
        info = self._found(object_id)
        if info.checksum is not None:
            return info.checksum
        with self._rows.reading():
            checksum = self._rows.digest(object_id)
        self._rows.set_checksum(object_id, checksum)
        return checksum

    def verify(self, object_id: str) -> ObjectInfo:
        self._found(object_id)
        with self._rows.reading():
            info, found = self._found(object_id), self._rows.digest(object_id)
        if info.checksum not in (None, found):
            detail = f"committed as {info.checksum}, now {found}"
            raise CorruptObjectError(object_id, "checksum", detail)
        return ObjectInfo(object_id, info.size_bytes, found)

    def adopt(self, object_id: str, path: str, *, checksum: str, size_bytes: int) -> ObjectInfo:
        check_id(object_id)
        self.require_open()
        place, _, name = path.removeprefix(_SCHEME).partition("#")
        try:
            if not (path.startswith(_SCHEME) and leases.is_ours(os.stat(place))):
                raise CannotAdoptError(object_id, path, "it is not a row of this user's databases")
        except OSError as error:
            raise CannotAdoptError(object_id, path, f"missing: {error.strerror}") from error
        other = Database(Path(place), is_read_only=True)
        try:
            return self._take_over(other, name, ObjectInfo(object_id, size_bytes, checksum), path)
        finally:
            other.close()

    def _take_over(self, other: Database, name: str, expected: ObjectInfo, path: str) -> ObjectInfo:
        found = other.info(name)
        if found is None or found.size_bytes != expected.size_bytes:
            reason = "it is missing" if found is None else f"it has {found.size_bytes} bytes"
            raise CannotAdoptError(expected.object_id, path, reason)
        with self.begin(expected.object_id, size_hint_bytes=expected.size_bytes) as writer:
            with other.reading():
                for piece in other.pieces(name):
                    writer.write(piece)
            try:
                return writer.commit(checksum=expected.checksum)
            except CorruptObjectError as error:
                raise CannotAdoptError(expected.object_id, path, error.detail) from error

    def delete(self, object_id: str) -> bool:
        check_id(object_id)
        self.require_open()
        recounts = self.space.recounts
        with self._rows.changing():
            info = self._rows.info(object_id)
            self._rows.remove(object_id)
        if info is not None:
            self.space.forget(occupied_bytes(info.size_bytes), recounts)
        return info is not None

    def publish(self, info: ObjectInfo, pieces: Callable[[], Iterator[bytes]]) -> ObjectInfo:
        """Add an object, unless there is an equal one; replace a damaged one."""
        object_id, recounts = info.object_id, self.space.recounts
        with self._rows.changing(info.size_bytes):
            kept = self._rows.info(object_id)
            if kept is not None:
                there = self._rows.digest(object_id)
                if kept.checksum in (None, there):
                    if there == info.checksum:
                        return info
                    raise ObjectConflictError(object_id, there, str(info.checksum))
                self._rows.remove(object_id)  # it is damaged
            self._rows.add(info, pieces())
        if kept is not None:
            self.space.forget(occupied_bytes(kept.size_bytes), recounts)
        size_bytes = occupied_bytes(info.size_bytes)
        self.space.reserve(size_bytes, may_overrun=True)  # the writer releases its reservation
        self.space.commit(size_bytes)
        return info

    def _found(self, object_id: str) -> ObjectInfo:
        info = self.stat(object_id)
        if info is None:
            raise ObjectNotFoundError(object_id)
        return info

    # --- the store --------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[str]:
        self.require_open()
        return iter(self._rows.list_sizes())

    def usage(self) -> StoreUsage:
        self.require_open()
        return self.space.usage()

    def claim(self) -> None:
        self._owner_fd = leases.own(
            "owner", parent_fd=self._hold_fd, subject=str(self.directory), what="this store",
            instead="instance",
        )  # fmt: skip

    def gone(self) -> str:
        return leases.moved([(str(self.directory), self._hold_fd)])

    def close(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        self._rows.close()
        self.temporaries.close()
        for fd in (self._owner_fd, self._hold_fd):
            if fd >= 0:
                os.close(fd)
        if self._is_shared:
            leases.remove_unheld(self.directory.name, parent_fd=self._parent_fd)
        os.close(self._parent_fd)
