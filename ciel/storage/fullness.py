"""Counts how often a device in memory was full, shared by all processes of a user on the device.

    <device>/ciel-full.<uid>/count    a sparse file whose length is the count

If another user has taken that name, processes use `ciel-full.<uid>.1` instead, or the next up to 7.

A program's write may fail because no block is free, although a block is free a moment later. File
systems keep no record of such failures. So a process that frees space checks whether the device was
full just before: it frees the space under a lock, then compares the free bytes with the bytes that
it freed. If other processes wrote meanwhile, it may count a device as full that was not. This false
positive costs time; a false negative would lose part of an output. No process waits long for the
lock: a process that cannot get it counts the device as full.

Processes hold the directory by a lease (`leases`), and the last holder removes it. The check does
not detect space that the processes of other users, or the programs of tasks, free.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from ciel.storage import leases
from ciel.storage.errors import StoreSpecError
from ciel.storage.space import FULL_BYTES, PAGE_BYTES, free_bytes

_NAME = "ciel-full."  # the names of stores' instances contain no dot
_NAMES = 8
_COUNT = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
AMPLE_BYTES = 1 << 28
"""With so many bytes free, an operation needs no lock: no write fails between the check of the free
space and the end of the operation, unless the process is suspended in between for a long time."""
PATIENCE_S = 0.05
"""How long to wait for the lock. The wait is short, since it may block the reactor. Freeing a
gigabyte takes longer, but is rare on a device with little space left."""


class Fullness:
    """Counts how often the device of the directory `parent` was full; None counts nothing.

    Methods may be called from any thread. They raise OSError and StorageError.
    """

    def __init__(self, parent: str | None) -> None:
        self._lock = threading.RLock()  # the garbage collector may close a file within any call
        self._depth = 0
        self._given_bytes = 0
        self._name = ""
        self._fd = self._hold_fd = self._parent_fd = -1
        if parent is None:
            return
        try:
            os.makedirs(parent, 0o700, exist_ok=True)
            self._parent_fd = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            self._name, self._hold_fd = _held(self._parent_fd)
            self._fd = os.open("count", _COUNT, 0o600, dir_fd=self._hold_fd)
            if not leases.is_ours(os.fstat(self._fd)):
                raise StoreSpecError(self._name, "contains a file of another user")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Release the directory; a second call does nothing."""
        with self._lock:
            fds = self._fd, self._hold_fd
            self._fd = self._hold_fd = -1
            for fd in fds:
                if fd >= 0:
                    os.close(fd)
            if self._parent_fd >= 0:
                leases.remove_unheld(self._name, parent_fd=self._parent_fd)
                os.close(self._parent_fd)
                self._parent_fd = -1

    # --- the count --------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """How often the device was full. A count that has changed means: it was full in between."""
        return os.lseek(self._fd, 0, os.SEEK_END) if self._fd >= 0 else 0

    def note(self) -> None:
        """Record that the device is full, or may be.

        This takes the lock: a process suspended between reading the count and writing it could
        restore a value with which a writer started.
        """
        if self._fd < 0:
            return
        is_alone = self._enter()
        with contextlib.suppress(OSError):
            os.ftruncate(self._fd, self.count + 1)  # takes no space
        if is_alone:
            self._leave()

    def was_full(self, since: int) -> bool:
        """Whether the device was, or may have been, full since `count` was this number."""
        if self._fd < 0:
            return False
        if not self._enter():
            return True
        self._leave()
        return self.count != since  # with the lock, all frees until now are counted

    # --- freeing and allocating -------------------------------------------------------------------

    @contextmanager
    def giving_back(self, most_bytes: int = AMPLE_BYTES) -> Iterator[None]:
        """Run a `with` block that frees up to so many bytes, and count a device that was full."""
        if not self._is_scarce(0):
            yield
            return
        if not self._enter():
            self.note()
            yield
            self.note()
            return
        try:
            self._given_bytes += most_bytes
            yield
        finally:
            left_bytes = free_bytes(self._fd)
            if left_bytes is not None and left_bytes < self._given_bytes + FULL_BYTES:
                self.note()
            self._leave()

    @contextmanager
    def taking(self, size_bytes: int) -> Iterator[None]:
        """Run a `with` block that allocates so many bytes, and count a device that is full.

        An allocation that fails frees all that it has allocated.
        """
        if not self._is_scarce(size_bytes):
            yield
            return
        is_alone = self._enter()
        try:
            yield
        except OSError:
            self.note()
            raise
        finally:
            if is_alone:
                self._leave()

    def close_file(self, fd: int) -> None:
        """Close a descriptor; this frees space if it is the last one of a file without a name."""
        status = os.fstat(fd)
        if status.st_nlink or status.st_blocks * 512 <= PAGE_BYTES:
            os.close(fd)
        else:
            with self.giving_back(status.st_blocks * 512):
                os.close(fd)

    def _is_scarce(self, wanted_bytes: int) -> bool:
        left_bytes = free_bytes(self._fd) if self._fd >= 0 else None
        return left_bytes is not None and left_bytes < AMPLE_BYTES + wanted_bytes

    def _enter(self) -> bool:
        """Take the lock among threads and processes; False if it is not free in time."""
        if not (self._lock.acquire(False) or self._lock.acquire(timeout=PATIENCE_S)):
            return False
        if not self._depth:
            if not self._locked():
                self._lock.release()
                return False
            self._given_bytes = 0
        self._depth += 1
        return True

    def _leave(self) -> None:
        self._depth -= 1
        if not self._depth and self._fd >= 0:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
        self._lock.release()

    def _locked(self) -> bool:
        until_s = 0.0
        while True:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except OSError:  # another process has it
                now_s = time.monotonic()
                until_s = until_s or now_s + PATIENCE_S
                if now_s >= until_s:
                    return False
                os.sched_yield()  # the holder usually frees a file, or waits for our CPU


def _held(parent_fd: int) -> tuple[str, int]:
    """Hold this user's directory: an existing one, or the first that can be created. Any user may
    create files in `/dev/shm`, so a name may be taken. Returns the name and a descriptor.
    """
    name = f"{_NAME}{os.geteuid()}"
    names = [name, *(f"{name}.{number}" for number in range(1, _NAMES))]
    names.sort(key=lambda name: not _is_our_directory(name, parent_fd))
    while True:
        name = names.pop(0)
        try:
            return name, leases.hold(name, parent_fd=parent_fd)
        except StoreSpecError:
            if not names:
                raise


def _is_our_directory(name: str, parent_fd: int) -> bool:
    try:
        status = os.stat(name, dir_fd=parent_fd, follow_symlinks=False)
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
