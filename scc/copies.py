"""Objects for who needs a name that seeks, opens twice or executes: sealed copies in memory.

A copy is made when a name is first asked for, and shared by all who read the object here. Once the
last of them has closed it, it is kept for the next while there is room, and at most until the
object is deleted. What was copied is counted: a program that reads in place costs nothing.
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
"""Copies that nobody reads; each is a descriptor."""


class Copy:
    """One sealed copy, and how many read it."""

    def __init__(self, fd: int, size_bytes: int) -> None:
        self.fd = fd
        self.size_bytes = size_bytes
        self.users = 1
        self.path = f"/proc/{os.getpid()}/fd/{fd}"


class Copies:
    """All copies of one store; of those that nobody reads, so many bytes at most."""

    def __init__(self, kept_max_bytes: int) -> None:
        self._kept_max_bytes = kept_max_bytes
        self._kept: dict[tuple[int, int], Copy] = {}  # what was read longest ago first
        self.copied_bytes = 0
        """Copied since the store was opened, in and out."""
        self._copies: dict[tuple[int, int], Copy] = {}
        self._lock = threading.RLock()  # a reader may be collected, and give back, within any call

    def count(self, size_bytes: int) -> None:
        """Count what was copied by others, such as the output of a program that has a name."""
        with self._lock:
            self.copied_bytes += size_bytes

    def take(self, key: tuple[int, int], file: File, size_bytes: int) -> Copy:
        """Return the copy of a file, made if there is none, until `give_back`."""
        with self._lock:
            if (copy := self._copies.get(key)) is not None:
                copy.users += 1
                return copy
            if (copy := self._kept.pop(key, None)) is not None:
                copy.users = 1
                self._copies[key] = copy
                return copy
        fd = self._made(file)
        with self._lock:
            self.copied_bytes += size_bytes
            if (copy := self._copies.get(key)) is not None:  # another thread was quicker
                os.close(fd)
                copy.users += 1
                return copy
            copy = self._copies[key] = Copy(fd, size_bytes)
            return copy

    def give_back(self, key: tuple[int, int]) -> None:
        """Have no more use for it."""
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
        """The object is deleted: keep no copy of it, unless somebody reads it."""
        with self._lock:
            if (copy := self._kept.pop(key, None)) is not None:
                os.close(copy.fd)

    def close(self) -> None:
        """Keep nothing any more; what is read stays until then."""
        with self._lock:
            self._make_room(-1)
            self._kept_max_bytes = -1

    def _made(self, file: File) -> int:
        """Copy a file; with the descriptors of copies that nobody reads, if there are no others."""
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
