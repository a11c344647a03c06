"""Device semaphores: limit how many disk jobs of a user run at a time, in all processes of a host.

    /dev/shm/ciel-io-<uid>/<major>-<minor>/<number>    the FIFO of one entry

A disk job is one long read or write. A process runs it while it has a permit of the device.

Each device has a queue, which is a directory. A process that joins the queue locks the directory
for a moment (`flock`), creates a FIFO with the next higher number, opens it for writing, and keeps
the FIFO locked until it leaves. This is its entry. An entry has a permit as soon as the number of
earlier entries that remain is less than the entry's limit.

A process opens the FIFOs of the earlier entries for reading. When the writer of such a FIFO closes
it, the kernel reports a hang-up to the reader, also if the writer was killed. It does so after it
has released the lock. So waiting needs no polling, the entry of a dead process is released at once,
and no entry waits for a later one, whatever their limits. If all processes use the same limit, at
most that many have a permit at a time.

A process that joins removes the FIFOs of dead processes, and the last process that leaves removes
the directories. Different users have separate queues, because any user could block a shared one.
`scc/tools/io_token.c` implements the same protocol.
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
# The last process that leaves a directory removes it, perhaps while this one joins.
_JOIN_TRIES = 1000
_WATCH = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
_OWN = os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC


class DeviceQueueError(StorageError):
    """A device's queue is unusable, so this process cannot count other processes' disk jobs."""

    def __init__(self, place: str, error: OSError | StorageError) -> None:
        super().__init__(f"cannot count the disk jobs of other processes: {place}: {error}")


class QueueEntry:
    """An entry in a device's queue: it first waits, then has a permit, until `release`.

    Call `check` when `fileno` is readable, or call `wait`.
    """

    _fd = -1

    def __init__(self, device: str, limit: int, *, root: str = _ROOT) -> None:
        """Join a queue. This is fast, but it blocks while a suspended process has the queue's
        directory locked, so do not call it in a reactor's thread. Raises DeviceQueueError.
        """
        self._limit = limit
        self._earlier: dict[int, str] = {}  # names of FIFOs, by descriptor
        self._line = f"{root}/{PREFIX}{os.geteuid()}/{device}"
        self._epoll = select.epoll()
        try:
            self._path = self._join(root, device)
        except (OSError, StorageError) as error:
            self.release()
            raise DeviceQueueError(self._line, error) from error
        except BaseException:
            self.release()
            raise
        for fd in self._earlier:
            self._epoll.register(fd, 0)  # epoll always reports hang-ups

    def _join(self, root: str, device: str) -> str:
        for _ in range(_JOIN_TRIES):
            try:
                with _opened(root, device) as directory:
                    self._earlier = _living(directory)
                    return self._enter(directory)
            except FileNotFoundError:  # the last process has just removed the directory
                self._close_earlier()
                if not os.path.isdir(root):
                    raise
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    def _enter(self, directory: int) -> str:
        number = 1 + max(map(int, _numbers(directory)), default=0)
        os.mkfifo(str(number), 0o600, dir_fd=directory)
        self._fd = os.open(str(number), _OWN, dir_fd=directory)
        fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return f"{self._line}/{number}"

    @property
    def has_permit(self) -> bool:
        """Whether the entry had a permit when `check` or `wait` was last called."""
        return len(self._earlier) < self._limit

    def fileno(self) -> int:
        return self._epoll.fileno()

    def check(self) -> bool:
        """Process the entries that have left; return whether this entry has a permit."""
        return self.wait(0)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until this entry has a permit; False after the timeout."""
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        while not self.has_permit:
            left_s = None if until_s is None else max(until_s - time.monotonic(), 0)
            left = self._epoll.poll(left_s)
            for fd, _ in left:
                self._epoll.unregister(fd)
                with contextlib.suppress(OSError):  # the FIFO still exists if its owner has died
                    os.unlink(f"{self._line}/{self._earlier.pop(fd)}")
                os.close(fd)
            if not left:
                return self.has_permit
        return True

    def release(self) -> None:
        """Leave the queue, with or without a permit; a second call does nothing."""
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
    """Remove the FIFOs and directories that killed processes of this user have left."""
    place = f"{root}/{PREFIX}{os.geteuid()}"
    with contextlib.suppress(OSError, StorageError):
        for device in os.listdir(place):
            with _opened(root, device) as directory:
                for fd in _living(directory):
                    os.close(fd)
            _remove_empty(f"{place}/{device}")


@contextmanager
def _opened(root: str, device: str) -> Iterator[int]:
    """Open and lock a device's directory, created if missing."""
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
    """Open the FIFOs of all entries in the queue, and remove the FIFOs of dead processes."""
    living = {}
    for name in _numbers(directory):
        try:
            fd = os.open(name, _WATCH, dir_fd=directory)
        except FileNotFoundError:
            continue  # its owner has just left
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
    with contextlib.suppress(OSError):  # not empty
        os.rmdir(line)
        os.rmdir(os.path.dirname(line))
