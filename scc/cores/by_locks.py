"""Registers cores in a directory, for processes of one kernel.

The processes of an incarnation hold a shared lock on a file. A process that gets the exclusive lock
therefore knows that the incarnation has ended.

The file also counts the core's objects; each process has its own word in it.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ciel.scc.cores.registration import CoreRegistration, Forget, chosen
from ciel.storage.errors import translated
from ciel.storage.leases import open_private

_DIRECTORY = "cores"
_WORD_BYTES = 8


class LockRegistration(CoreRegistration):
    """This process as a core, by a lock on a file."""

    def __init__(
        self,
        parent_fd: int,
        core: int | None,
        core_count: int,
        place: tuple[int, int],
        forget: Forget,
    ) -> None:
        """Register as `core`, joining other processes of the core, or as the first free core.
        `place` is this process's number, and the maximum number of processes.
        """
        self._forget = forget
        self._place, place_count = place
        self._lock = threading.RLock()  # collecting an object may call `count` within any call
        self._pid = os.getpid()
        self._fd = -1
        self._directory_fd = open_private(_DIRECTORY, parent_fd=parent_fd)
        try:
            with self._alone():
                taken = self._sweep()
                self.core = chosen(core, core_count, taken)
                self.name = taken.get(self.core) or f"{self.core}.{secrets.token_hex(4)}"
                self._fd = self._opened(self.name, os.O_CREAT)
                fcntl.flock(self._fd, fcntl.LOCK_SH)
                os.posix_fallocate(self._fd, 0, place_count * _WORD_BYTES)
            self._words = mmap.mmap(self._fd, place_count * _WORD_BYTES)
            self._counts = memoryview(self._words).cast("q")
        except BaseException as error:
            for fd in (self._fd, self._directory_fd):
                if fd >= 0:
                    os.close(fd)
            if isinstance(error, OSError):
                raise translated(error, "register a core", _WORD_BYTES, parent_fd) from error
            raise

    def count(self, more: int) -> None:
        with self._lock:
            self._counts[self._place] += more

    @property
    def object_count(self) -> int:
        return sum(self._counts)

    def others(self) -> list[str]:
        return [name for name in os.listdir(self._directory_fd) if name != self.name]

    def close(self) -> None:
        try:
            if self._fd >= 0 and self._pid == os.getpid():
                with self._alone():
                    if _is_free(self._fd):
                        self._forget(self.name)
                        os.unlink(self.name, dir_fd=self._directory_fd)
        finally:
            if self._fd >= 0:
                self._counts.release()
                self._words.close()
            for fd in (self._fd, self._directory_fd):
                if fd >= 0:
                    os.close(fd)
            self._fd = self._directory_fd = -1

    def sweep(self) -> None:
        pass  # the next process that registers removes names; only the host's failure ends all

    def _sweep(self) -> dict[int, str]:
        """Remove the names of ended incarnations; return the live incarnations, by core."""
        living = {}
        for name in os.listdir(self._directory_fd):
            fd = self._opened(name)
            if _is_free(fd):
                self._forget(name)
                os.unlink(name, dir_fd=self._directory_fd)
            else:
                living[int(name.partition(".")[0])] = name
            os.close(fd)
        return living

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold a lock, so that no other process registers or unregisters meanwhile."""
        fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._directory_fd)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def _opened(self, name: str, flags: int = 0) -> int:
        flags |= os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
        return os.open(name, flags, 0o600, dir_fd=self._directory_fd)


def _is_free(fd: int) -> bool:
    """Take the exclusive lock; False if another process holds the lock."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
