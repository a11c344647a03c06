"""How much a store of files holds, and making sure that promised space is really there."""

from __future__ import annotations

import ctypes
import errno
import os
import threading
import time
from collections.abc import Callable

from ciel.storage.errors import NoSpaceError
from ciel.storage.interface import StoreUsage

PAGE_BYTES = 4096
LOOK_S = 0.01
"""So old may be what is known of a device: it takes half a microsecond to ask."""
FULL_BYTES = 16 * PAGE_BYTES
"""With less left a device counts as full: a file system may refuse a block though it has some."""
_FALLOC_FL_KEEP_SIZE = 1
_FALLOC_FL_PUNCH_HOLE = 2
# os.posix_fallocate cannot keep the size, and then nobody could tell how much a program has
# written.
_fallocate = ctypes.CDLL(None, use_errno=True).fallocate
_fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_longlong, ctypes.c_longlong)


def occupied_bytes(size_bytes: int) -> int:
    """Return what an object of this size is charged: whole pages."""
    return -(-size_bytes // PAGE_BYTES) * PAGE_BYTES


def reserve_blocks(fd: int, size_bytes: int, *, keep_size: bool) -> None:
    """Have the file system set aside this many bytes from the file's start, or raise its OSError.

    Afterwards neither a write nor a mapping within them can fail for want of space. Without
    `keep_size` holes are filled in a file which has that size already. A file system that cannot is
    let be: it has no pages to run out of behind a mapping.
    """
    mode = _FALLOC_FL_KEEP_SIZE if keep_size else 0
    while _fallocate(fd, mode, 0, size_bytes):
        number = ctypes.get_errno()
        if number in (errno.EOPNOTSUPP, errno.ENOSYS):
            return
        if number != errno.EINTR:  # interrupted, tmpfs has undone it: begin again
            raise OSError(number, os.strerror(number))


def release_blocks(fd: int, size_bytes: int) -> None:
    """Give this many bytes from the file's start back; they read as zeros, and its size stays.

    On a file system that cannot, all of the file goes; who is writing to it leaves a hole there.
    """
    mode = _FALLOC_FL_PUNCH_HOLE | _FALLOC_FL_KEEP_SIZE
    while size_bytes > 0 and _fallocate(fd, mode, 0, size_bytes):
        if ctypes.get_errno() != errno.EINTR:
            os.ftruncate(fd, 0)
            return


def free_bytes(fd: int) -> int | None:
    """Return what the device of an open file has left for us; None if it does not tell."""
    device = os.fstatvfs(fd)
    if not device.f_blocks:  # a tmpfs or ramfs without a limit
        return None
    blocks = device.f_bavail if os.geteuid() else device.f_bfree  # some are kept for root
    return blocks * device.f_frsize


def is_full(fd: int) -> bool:
    """Whether the device of an open file may refuse a block."""
    left_bytes = free_bytes(fd)
    return left_bytes is not None and left_bytes < FULL_BYTES


class Space:
    """The account of one store: bytes committed, bytes reserved by writers, and their common limit:
    the capacity, if there is one, or what the device has, if that is less.

    Others may work in the same directory. What they hold is seen when the account is opened and
    again before a request is refused; in between each process answers for its own. So it is with
    the device, which is also asked every `LOOK_S`: what we do ourselves does not change the limit.
    """

    def __init__(
        self,
        capacity_bytes: int | None,
        recount: Callable[[], tuple[int, int]],
        device_bytes: Callable[[], int | None],
    ) -> None:
        """`device_bytes`: what is left there, None if nobody knows."""
        self._lock = threading.Lock()
        self._capacity_bytes = capacity_bytes
        self._recount = recount
        self._device_bytes = device_bytes
        self._used_bytes, self._object_count = recount()
        self._reserved_bytes = 0
        self.recounts = 0
        self._device_limit_bytes = 0
        self._looked_s = -LOOK_S

    def reserve(
        self, wanted_bytes: int, *, may_overrun: bool = False, is_there: bool = False
    ) -> None:
        """Promise this many bytes to a writer, or raise `NoSpaceError`. `is_there`: the device has
        them already.
        """
        is_bounded = self._capacity_bytes is not None and not may_overrun
        with self._lock:
            if is_bounded and wanted_bytes > self._available_bytes(is_there):
                self._used_bytes, self._object_count = self._recount()
                self.recounts += 1
                self._looked_s = -LOOK_S
                available_bytes = self._available_bytes(is_there)
                if wanted_bytes > available_bytes:
                    raise NoSpaceError(wanted_bytes, max(0, available_bytes))
            if is_there:  # and was not known of
                self._looked_s = -LOOK_S
            self._reserved_bytes += wanted_bytes

    def release(self, reserved_bytes: int) -> None:
        """Take a promise back."""
        with self._lock:
            self._reserved_bytes -= reserved_bytes

    def commit(self, reserved_bytes: int) -> None:
        """Turn a promise into an object of that size."""
        with self._lock:
            self._reserved_bytes -= reserved_bytes
            self._used_bytes += reserved_bytes
            self._object_count += 1

    def forget(self, used_bytes: int, recounts: int) -> None:
        """Count an object out whose name has gone, since `recounts` were so many. Another process
        may have brought it, hence never below zero.
        """
        with self._lock:
            if recounts != self.recounts:
                return  # it may be counted out already; whoever is refused recounts once more
            self._used_bytes = max(0, self._used_bytes - used_bytes)
            self._object_count = max(0, self._object_count - 1)

    def usage(self) -> StoreUsage:
        """Return the account as it stands; its capacity is what there really is."""
        with self._lock:
            limit_bytes = None if self._capacity_bytes is None else self._limit_bytes()
            return StoreUsage(
                limit_bytes, self._used_bytes, self._reserved_bytes, self._object_count
            )

    def _available_bytes(self, is_there: bool) -> int:
        limit_bytes = (self._capacity_bytes or 0) if is_there else self._limit_bytes()
        return limit_bytes - self._used_bytes - self._reserved_bytes

    def _limit_bytes(self) -> int:
        now_s = time.monotonic()
        if now_s - self._looked_s >= LOOK_S:
            self._looked_s, self._device_limit_bytes = now_s, self._capacity_bytes or 0
            if (left_bytes := self._device_bytes()) is not None:
                there_bytes = self._used_bytes + self._reserved_bytes + left_bytes
                self._device_limit_bytes = min(self._device_limit_bytes, there_bytes)
        return self._device_limit_bytes
