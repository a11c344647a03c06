"""Who sits where: the cores that share an image, each under names of its own.

A core's objects are named `<core>.<incarnation>:<id>`. An incarnation is one life of a core: of the
processes that have it open, from the first to the last. It is shown by a file that they hold a
shared lock on, so whoever gets the exclusive one knows that it is over, however it ended, and takes
its names away.

The file also tells how many objects the core has: each of its processes counts in its own word.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ciel.storage.errors import StoreSpecError, translated
from ciel.storage.leases import open_private

_DIRECTORY = "cores"
_WORD_BYTES = 8


class Seat:
    """One core as this process has it."""

    def __init__(
        self,
        parent_fd: int,
        core: int | None,
        core_count: int,
        place: tuple[int, int],
        forget: Callable[[str], object],
    ) -> None:
        """Take a seat in an image's directory: that core's, whose processes are joined, or the
        first that is free. `place` is this process's number, and how many there can be; `forget`
        takes the names of an incarnation that is over.
        """
        self._forget = forget
        self._place, place_count = place
        self._lock = threading.RLock()  # what counts may be collected within any call
        self._pid = os.getpid()
        self._fd = -1
        self._directory_fd = open_private(_DIRECTORY, parent_fd=parent_fd)
        try:
            with self._alone():
                taken = self._swept()
                if core is None:
                    free = (number for number in range(core_count) if number not in taken)
                    core = next(free, core_count)
                if not core < core_count:
                    text = f"the image has cores={core_count}, numbered from 0"
                    raise StoreSpecError(f"core={core}", f"{text}; say more where the first does")
                self.core = core
                self.name = taken.get(core) or f"{core}.{secrets.token_hex(4)}"
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
                raise translated(error, "take a seat", _WORD_BYTES, parent_fd) from error
            raise

    def count(self, more: int) -> None:
        """Note that objects have come or gone."""
        with self._lock:
            self._counts[self._place] += more

    @property
    def object_count(self) -> int:
        return sum(self._counts)

    def others(self) -> list[str]:
        """Return the incarnations there are beside this one."""
        return [name for name in os.listdir(self._directory_fd) if name != self.name]

    def close(self) -> None:
        """Leave; the last one to do so takes the core's names along."""
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

    def _swept(self) -> dict[int, str]:
        """Take the names of incarnations that are over; return the others, by their cores."""
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
        """Nobody else comes or goes meanwhile."""
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
    """Take the lock for ourselves if nobody else holds it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
