"""Sealed copies of objects in memory, for readers that must seek, reopen or execute a file.

The store makes a copy when a reader first asks for a path, and all readers of the object in this
process share it. After the last reader closes it, the store keeps the copy for later readers while
there is room, at most until the object is deleted. Copied bytes are counted; a program that reads
in place costs nothing.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading

from ciel.scc.shmfs import File
from ciel.storage.errors import StorageError, StoreSystemError

_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
_MODE = 0o500  # an object may be a program


KEPT_MAX = 32
"""Maximum number of copies without readers; each takes a descriptor."""


class Copy:
    """One sealed copy and its number of readers."""

    def __init__(self, fd: int, size_bytes: int) -> None:
        self.fd = fd
        self.size_bytes = size_bytes
        self.users = 1
        self.path = f"/proc/{os.getpid()}/fd/{fd}"


class Copies:
    """All copies of one store; copies without readers are bounded in bytes."""

    def __init__(self, kept_max_bytes: int) -> None:
        self._kept_max_bytes = kept_max_bytes
        self._kept: dict[tuple[int, int], Copy] = {}  # the least recently used first
        self.copied_bytes = 0
        """Bytes copied since the store was opened, in and out."""
        self._copies: dict[tuple[int, int], Copy] = {}
        self._lock = threading.RLock()  # collecting a reader may call `give_back` within any call

    def count(self, size_bytes: int) -> None:
        """Count bytes that were copied elsewhere, such as the output of a program."""
        with self._lock:
            self.copied_bytes += size_bytes

    def take(self, key: tuple[int, int], file: File, size_bytes: int) -> Copy:
        """Return the copy of a file; create it if necessary. The caller later calls `give_back`."""
        with self._lock:
            if (copy := self._copies.get(key)) is not None:
                copy.users += 1
                return copy
            if (copy := self._kept.pop(key, None)) is not None:
                copy.users = 1
                self._copies[key] = copy
                return copy
        fd = self._new_copy(file)
        with self._lock:
            self.copied_bytes += size_bytes
            if (copy := self._copies.get(key)) is not None:  # another thread was quicker
                os.close(fd)
                copy.users += 1
                return copy
            copy = self._copies[key] = Copy(fd, size_bytes)
            return copy

    def give_back(self, key: tuple[int, int]) -> None:
        """End one use of a copy."""
        with self._lock:
            copy = self._copies[key]
            copy.users -= 1
            if not copy.users:
                self._kept[key] = self._copies.pop(key)
                self._make_room(self._kept_max_bytes)

    @property
    def has_kept(self) -> bool:
        return bool(self._kept)

    def forget(self, key: tuple[int, int]) -> None:
        """Drop the copy of a deleted object, unless it has readers."""
        with self._lock:
            if (copy := self._kept.pop(key, None)) is not None:
                os.close(copy.fd)

    def close(self) -> None:
        """Drop all copies without readers; copies in use stay until their readers close."""
        with self._lock:
            self._make_room(-1)
            self._kept_max_bytes = -1

    def _new_copy(self, file: File) -> int:
        """Copy a file. If descriptors run out, drop the copies without readers first."""
        try:
            return _copied(file)
        except StoreSystemError as error:
            if error.error_number != errno.EMFILE or not self._kept:
                raise
        with self._lock:
            self._make_room(-1)
        return _copied(file)

    def _make_room(self, max_bytes: int) -> None:
        total_bytes = sum(copy.size_bytes for copy in [*self._kept.values()])
        while self._kept and (total_bytes > max_bytes or len(self._kept) > KEPT_MAX):
            copy = self._kept.pop(next(iter(self._kept)))
            total_bytes -= copy.size_bytes
            os.close(copy.fd)


def _copied(file: File) -> int:
    fd = -1
    try:
        fd = os.memfd_create("ciel-object", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        rest = file.view()
        while rest:
            rest = rest[os.write(fd, rest) :]
        os.fchmod(fd, _MODE)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    except (OSError, StorageError) as error:
        if fd >= 0:
            os.close(fd)
        if isinstance(error, StorageError):
            raise
        raise StoreSystemError("copy", error.errno or errno.EIO) from error
    return fd
