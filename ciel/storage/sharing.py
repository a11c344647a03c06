"""Takes objects from other stores on this host, without a server (CIB-56).

`link` creates a hard link to the file of the object; `copy_in` copies the file where links are
impossible.
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


class PeerStoreError(StorageError):
    """A query to another store on this host failed, or that store cannot provide the object."""

    def __init__(self, peer: str, reason: str) -> None:
        self.peer = peer
        self.reason = reason
        super().__init__(f"the store of {peer}: {reason}")


class PeerObject(NamedTuple):
    """A committed object of another store, as a file that this process can read."""

    path: str
    size_bytes: int
    checksum: str


def link(store: ObjectStore, object_id: str, found: PeerObject) -> ObjectInfo | None:
    """Adopt an object by a hard link; return None if only a copy is possible.

    Call this in a thread: it reads the whole object if the file system cannot record checksums.
    Raises StorageError.
    """
    path, size_bytes = found.path, found.size_bytes
    try:
        return store.adopt(object_id, path, checksum=found.checksum, size_bytes=size_bytes)
    except CannotAdoptError:
        if not os.path.lexists(path):
            raise  # the file does not exist any more
        return None


def copy_in(
    store: ObjectStore,
    object_id: str,
    found: PeerObject,
    *,
    writer: ObjectWriter | None = None,
    is_cancelled: Callable[[], bool] = lambda: False,
) -> ObjectInfo:
    """Copy the file of another store. Checks `is_cancelled` before each piece.

    Raises StorageError, and then leaves nothing behind. All checks use the opened file, not its
    path. `writer`: a writer with reserved space, which this function commits or aborts; by default
    the store starts one.
    """
    path = found.path
    # A path to a descriptor of a process is always a symbolic link.
    no_follow = 0 if path.startswith("/proc/") else os.O_NOFOLLOW
    try:
        fd = os.open(path, os.O_RDONLY | no_follow | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise CannotAdoptError(object_id, path, error.strerror or "missing") from error
    with open(fd, "rb", buffering=0) as source:
        status = os.fstat(fd)
        if not is_ours(status) or status.st_mode & _WRITABLE_BITS:
            raise CannotAdoptError(object_id, path, "not a committed file of this user")
        if status.st_size != found.size_bytes:
            reason = f"it has {status.st_size} bytes, not {found.size_bytes}"
            raise CannotAdoptError(object_id, path, reason)
        buffer = memoryview(bytearray(min(_CHUNK_BYTES, max(found.size_bytes, 1))))
        with writer or store.begin(object_id, size_hint_bytes=found.size_bytes) as writer:
            while count := _read(source, buffer):
                if is_cancelled():
                    raise CannotAdoptError(object_id, path, "the copy was cancelled")
                writer.write(buffer[:count])
            return writer.commit(checksum=found.checksum)


def _read(source: FileIO, buffer: memoryview) -> int:
    try:
        return source.readinto(buffer) or 0
    except OSError as error:
        raise StoreSystemError(f"read {source.name}", error.errno or errno.EIO) from error
