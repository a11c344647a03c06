"""Tokens for disk jobs, one line for each device, among all processes of a user on this host.

    /dev/shm/ciel-io-<uid>/<major>-<minor>/<number>    one FIFO for each who waits or has a token

Who comes opens the directory, locks it for a moment (`flock`), makes a FIFO with the next higher
number, opens it for writing and locks that for as long as it is there. It may go when fewer than
its limit are left of those that were there before it. It sees them leave as whoever reads from a
FIFO sees its last writer leave: by a hang-up, which the kernel gives however the writer ended, and
after it has dropped the lock. So nobody looks twice for what does not change, a dead holder's
place is free at once, and nobody ever waits for who came later, whatever their limits. With one
limit for all, no more than that have the token at a time.

FIFOs of the dead go when the next one comes, directories with the last who leaves. Users do not
wait for each other: a place for all could be held up by any. `scc/tools/io_token.c` does the same.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from ciel.storage.errors import StorageError
from ciel.storage.leases import NOT_HELD as PREFIX
from ciel.storage.leases import open_private

_ROOT = "/dev/shm"
# A directory goes with the last who leaves it, perhaps just when we come.
_JOIN_TRIES = 1000
_WATCH = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
_OWN = os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC


class TokenError(StorageError):
    """The host's tokens cannot be used; disk jobs of other processes are not seen."""

    def __init__(self, place: str, error: OSError | StorageError) -> None:
        super().__init__(f"disk jobs of other processes are not seen: {place}: {error}")


class Claim:
    """A place in a device's line: at first one waits, then one has the token. `release` it.

    `fileno` is readable when there is something to `look` at; or `wait`.
    """

    _fd = -1

    def __init__(self, device: str, limit: int, *, root: str = _ROOT) -> None:
        """Join a line. It takes no time worth mentioning, unless another process was stopped while
        it did the same; so it is not for a reactor's thread. Raises TokenError.
        """
        self._limit = limit
        self._earlier: dict[int, str] = {}  # descriptors, and names
        self._line = f"{root}/{PREFIX}{os.geteuid()}/{device}"
        self._epoll = select.epoll()
        try:
            self._path = self._join(root, device)
        except (OSError, StorageError) as error:
            self.release()
            raise TokenError(self._line, error) from error
        except BaseException:
            self.release()
            raise
        for fd in self._earlier:
            self._epoll.register(fd, 0)  # hang-ups are told unasked

    def _join(self, root: str, device: str) -> str:
        for _ in range(_JOIN_TRIES):
            try:
                with _opened(root, device) as directory:
                    self._earlier = _living(directory)
                    return self._enter(directory)
            except FileNotFoundError:  # the last one has just left
                self._close_earlier()
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    def _enter(self, directory: int) -> str:
        number = 1 + max(map(int, _numbers(directory)), default=0)
        os.mkfifo(str(number), 0o600, dir_fd=directory)
        self._fd = os.open(str(number), _OWN, dir_fd=directory)
        fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return f"{self._line}/{number}"

    @property
    def has_token(self) -> bool:
        """Whether one may go, as far as it was looked."""
        return len(self._earlier) < self._limit

    def fileno(self) -> int:
        return self._epoll.fileno()

    def look(self) -> bool:
        """See who has left; return whether one has the token."""
        return self.wait(0)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until one has the token; False if that takes longer."""
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        while not self.has_token:
            left_s = None if until_s is None else max(until_s - time.monotonic(), 0)
            left = self._epoll.poll(left_s)
            for fd, _ in left:
                self._epoll.unregister(fd)
                with contextlib.suppress(OSError):  # it is there still if its owner has died
                    os.unlink(f"{self._line}/{self._earlier.pop(fd)}")
                os.close(fd)
            if not left:
                return self.has_token
        return True

    def release(self) -> None:
        """Leave the line, with or without a token; twice is once."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):
                if os.fstat(fd).st_nlink:
                    os.unlink(self._path)
            os.close(fd)
            _remove_empty(self._line)
        self._close_earlier()
        self._epoll.close()

    def _close_earlier(self) -> None:
        while self._earlier:
            os.close(self._earlier.popitem()[0])

    def __del__(self) -> None:
        if self._fd >= 0:
            self.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


def sweep(*, root: str = _ROOT) -> None:
    """Remove what processes of this user left that were killed."""
    place = f"{root}/{PREFIX}{os.geteuid()}"
    with contextlib.suppress(OSError, StorageError):
        for device in os.listdir(place):
            with _opened(root, device) as directory:
                for fd in _living(directory):
                    os.close(fd)
            _remove_empty(f"{place}/{device}")


@contextmanager
def _opened(root: str, device: str) -> Iterator[int]:
    """Open a device's directory, made when missing, and lock it for a moment."""
    root_fd = top_fd = fd = -1
    try:
        root_fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        top_fd = open_private(f"{PREFIX}{os.geteuid()}", parent_fd=root_fd)
        fd = open_private(device, parent_fd=top_fd)
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield fd
    finally:
        for opened in (fd, top_fd, root_fd):
            if opened >= 0:
                os.close(opened)


def _numbers(directory: int) -> list[str]:
    return [name for name in os.listdir(directory) if name.isascii() and name.isdecimal()]


def _living(directory: int) -> dict[int, str]:
    """Open the FIFOs of all who are in the line, and remove those of the dead."""
    living = {}
    for name in _numbers(directory):
        try:
            fd = os.open(name, _WATCH, dir_fd=directory)
        except FileNotFoundError:
            continue  # it has just left
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            living[fd] = name
            continue
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=directory)
        os.close(fd)
    return living


def _remove_empty(line: str) -> None:
    with contextlib.suppress(OSError):  # somebody is there
        os.rmdir(line)
        os.rmdir(os.path.dirname(line))
