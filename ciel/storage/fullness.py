"""How often a device in memory was found full, for all processes of a user that keep files there.

    <device>/ciel-full.<uid>/count    an empty file, whose length is that number

If another user has taken that name, processes use `ciel-full.<uid>.1` instead, or the next up to 7.

Who is refused a block may find one a moment later, and no file system remembers. So whoever gives
room back sees whether there was any just before: it does so alone, under a lock, and then compares
what is free with what it has given. More may have been written meanwhile, which makes it find a
device full that was not; that costs time, and the other way round would cost an output. Nobody
waits long for the lock: who cannot know notes that it was full.

The directory is held (`leases`), and goes with its last holder. What other users' processes give
back, or programs of this one by themselves, is not seen.
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

_NAME = "ciel-full."  # no instance of a store has a dot
_NAMES = 8
_COUNT = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
AMPLE_BYTES = 1 << 28
"""With so much left nobody is refused anything before one who has looked gives back, unless that
one is held up for a long time: then there is no need to be alone."""
PATIENCE_S = 0.05
"""The reactor may be waiting; to give back a gigabyte takes longer, but is rare where that little
is left."""


class Fullness:
    """The count of the device on which a directory lies; without one, it counts nothing. Raises
    OSError and StorageError. All may be called from any thread.
    """

    def __init__(self, parent: str | None) -> None:
        self._lock = threading.RLock()  # a file may be collected, and given back, within any call
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
                raise StoreSpecError(self._name, "another user's file lies in it")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let go; twice is once."""
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
        """How often it was found full; what has changed meanwhile has been."""
        return os.lseek(self._fd, 0, os.SEEK_END) if self._fd >= 0 else 0

    def note(self) -> None:
        """It is full, or may be. Alone: who were put off between looking at the count and writing
        it could bring back one that somebody began with.
        """
        if self._fd < 0:
            return
        is_alone = self._enter()
        with contextlib.suppress(OSError):
            os.ftruncate(self._fd, self.count + 1)  # takes no room
        if is_alone:
            self._leave()

    def was_full(self, since: int) -> bool:
        """Whether it was full since the count was that, or nobody can tell."""
        if self._fd < 0:
            return False
        if not self._enter():
            return True
        self._leave()
        return self.count != since  # who was giving back has counted by now

    # --- giving back ------------------------------------------------------------------------------

    @contextmanager
    def giving_back(self, most_bytes: int = AMPLE_BYTES) -> Iterator[None]:
        """Give room back within: so much, or less."""
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
        """Have room set aside at once within: of what is refused all that was had is given back."""
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
        """Close a descriptor; if its file has no name any more, that may give room back."""
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
        """Be alone, among threads and processes; False if that cannot be had in time."""
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
                os.sched_yield()  # most often it is giving back a file, or was put off by us


def _held(parent_fd: int) -> tuple[str, int]:
    """Hold the directory of this user: one that is there, or the first that can be made. Anybody
    may make files in `/dev/shm`, so a name may be taken. Returns its name and a descriptor.
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
