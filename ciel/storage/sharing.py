"""Takes objects over from other stores on this host, without a server (CIB-56).

`link` makes a hard link; `copy_in` copies from file to file if links are not possible.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from io import FileIO
from typing import Final, NamedTuple

from ciel.storage.errors import CannotAdoptError, StorageError, StoreSystemError
from ciel.storage.interface import ObjectInfo, ObjectStore, ObjectWriter
from ciel.storage.leases import is_ours

_CHUNK_BYTES: Final = 1024 * 1024
_WRITABLE_BITS: Final = 0o222


class NeighbourError(StorageError):
    """A query to another store on this host failed, or that store cannot provide the object."""

    def __init__(self, neighbour: str, reason: str) -> None:
        self.neighbour = neighbour
        self.reason = reason
        super().__init__(f"the store of {neighbour}: {reason}")


class Found(NamedTuple):
    """A committed object of another store, as a file that this process can read."""

    path: str
    size_bytes: int
    checksum: str


def link(store: ObjectStore, object_id: str, found: Found) -> ObjectInfo | None:
    """Take an object over by a link; None if that is impossible but a copy may be possible.

    Call this in a thread: it reads the object if the file system keeps no checksums. Raises the
    errors of stores.
    """
    path, size_bytes = found.path, found.size_bytes
    try:
        return store.adopt(object_id, path, checksum=found.checksum, size_bytes=size_bytes)
    except CannotAdoptError:
        if not os.path.lexists(path):
            raise  # the file no longer exists, or this is not a path
        return None


def copy_in(
    store: ObjectStore,
    object_id: str,
    found: Found,
    *,
    writer: ObjectWriter | None = None,
    is_called_off: Callable[[], bool] = lambda: False,
) -> ObjectInfo:
    """Copy another store's file. This may take long; it polls `is_called_off` for each piece.

    Raises the errors of stores, and then leaves nothing behind. All checks use the opened file, not
    its path. `writer`: a writer of the object with reserved space, which this function commits or
    aborts; by default the store starts one.
    """
    path = found.path
    # A path through a process's descriptor is always a link.
    follows = 0 if path.startswith("/proc/") else os.O_NOFOLLOW
    try:
        fd = os.open(path, os.O_RDONLY | follows | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise CannotAdoptError(object_id, path, error.strerror or "missing") from error
    with open(fd, "rb", buffering=0) as source:
        status = os.fstat(fd)
        if not is_ours(status) or status.st_mode & _WRITABLE_BITS:
            raise CannotAdoptError(object_id, path, "not a committed file of this user")
        if status.st_size != found.size_bytes:
            reason = f"{status.st_size} bytes, not {found.size_bytes}"
            raise CannotAdoptError(object_id, path, reason)
        buffer = memoryview(bytearray(min(_CHUNK_BYTES, max(found.size_bytes, 1))))
        with writer or store.begin(object_id, size_hint_bytes=found.size_bytes) as writer:
            while count := _read(source, buffer):
                if is_called_off():
                    raise CannotAdoptError(object_id, path, "called off")
                writer.write(buffer[:count])
            return writer.commit(checksum=found.checksum)


def _read(source: FileIO, buffer: memoryview) -> int:
    try:
        return source.readinto(buffer) or 0
    except OSError as error:
        raise StoreSystemError(f"read {source.name}", error.errno or errno.EIO) from error
