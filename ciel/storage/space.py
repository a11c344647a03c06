"""Accounts for the space of a file store, and allocates reserved space on the device."""

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
FREE_SPACE_CACHE_S = 0.01
"""How long the free space of a device is cached; querying it takes half a microsecond."""
FULL_BYTES = 16 * PAGE_BYTES
"""A device with fewer free bytes counts as full: a write may fail although some blocks are free."""
_FALLOC_FL_KEEP_SIZE = 1
_FALLOC_FL_PUNCH_HOLE = 2
# os.posix_fallocate always extends the size, which would hide how much a program has written.
_fallocate = ctypes.CDLL(None, use_errno=True).fallocate
_fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_longlong, ctypes.c_longlong)


def occupied_bytes(size_bytes: int) -> int:
    """Return how many bytes an object of this size occupies: whole pages."""
    return -(-size_bytes // PAGE_BYTES) * PAGE_BYTES


def reserve_blocks(fd: int, size_bytes: int, *, keep_size: bool) -> None:
    """Allocate this many bytes from the file's start on the file system, or raise its OSError.

    Afterwards neither a write nor a mapping within them can run out of space. Without `keep_size`
    this fills the holes of a file that has that size already. On a file system that does not
    support allocation, this does nothing: its mappings cannot run out of pages.
    """
    # A file system may allocate all that is free before it finds that this is too little; until it
    # has freed that again, the writes of all others fail.
    missing_bytes = size_bytes - os.fstat(fd).st_blocks * 512
    left_bytes = free_bytes(fd)
    if left_bytes is not None and missing_bytes > left_bytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    mode = _FALLOC_FL_KEEP_SIZE if keep_size else 0
    while _fallocate(fd, mode, 0, size_bytes):
        number = ctypes.get_errno()
        if number in (errno.EOPNOTSUPP, errno.ENOSYS):
            return
        if number != errno.EINTR:  # after an interruption tmpfs has freed all again: retry
            raise OSError(number, os.strerror(number))


def release_blocks(fd: int, size_bytes: int) -> None:
    """Free this many bytes from the file's start; they read as zeros, and the size stays.

    On a file system that does not support this, the file is truncated. If a process is writing to
    the file, its later writes then leave a hole at the start.
    """
    mode = _FALLOC_FL_PUNCH_HOLE | _FALLOC_FL_KEEP_SIZE
    while size_bytes > 0 and _fallocate(fd, mode, 0, size_bytes):
        if ctypes.get_errno() != errno.EINTR:
            os.ftruncate(fd, 0)
            return


def free_bytes(file: int | str) -> int | None:
    """Return the bytes free for this user on the device of a file, which is open or has a path;
    None if unlimited.
    """
    device = os.statvfs(file)
    if not device.f_blocks:  # a tmpfs or ramfs without a limit
        return None
    blocks = device.f_bavail if os.geteuid() else device.f_bfree  # some are kept for root
    return blocks * device.f_frsize


def is_full(fd: int) -> bool:
    """Whether a write to the device of an open file may fail because no space is free."""
    left_bytes = free_bytes(fd)
    return left_bytes is not None and left_bytes < FULL_BYTES


def lacks_room(path: str) -> bool:
    """Whether creating or writing a file may fail because the device of a directory is full."""
    try:
        device, left_bytes = os.statvfs(path), free_bytes(path)
    except OSError:
        return False
    has_no_inode = device.f_files > 0 and not device.f_favail
    return has_no_inode or (left_bytes is not None and left_bytes < FULL_BYTES)


class Space:
    """The account of one store: bytes committed and bytes reserved by writers. Their sum is limited
    by the capacity, if one is configured, and by the device.

    Other processes may use the same directory. The account counts their objects when it is opened,
    and again before it refuses a request, unless it did so within `recount_s`; in between, each
    process counts only its own. It queries the free space of the device at most every
    `FREE_SPACE_CACHE_S`. Its own reservations and commits do not change the limit in between.
    """

    def __init__(
        self,
        capacity_bytes: int | None,
        recount: Callable[[], tuple[int, int]],
        device_bytes: Callable[[], int | None],
    ) -> None:
        """`device_bytes` returns the free bytes of the device, None if unlimited.

        `recount` returns the bytes and the number of the objects in the directory.
        """
        self._lock = threading.Lock()
        self._capacity_bytes = capacity_bytes
        self._recount = recount
        self._device_bytes = device_bytes
        self._used_bytes, self._object_count = recount()
        self._reserved_bytes = 0
        self.recounts = 0
        self.recount_s = 0.0
        """How long the account is true without another count: the objects of other processes."""
        self._counted_s = time.monotonic()
        self._device_limit_bytes = 0
        self._queried_s = -FREE_SPACE_CACHE_S

    def reserve(
        self, wanted_bytes: int, *, may_overrun: bool = False, is_allocated: bool = False
    ) -> None:
        """Reserve this many bytes for a writer, or raise `NoSpaceError`. `is_allocated`: they are
        already allocated on the device.
        """
        is_bounded = self._capacity_bytes is not None and not may_overrun
        with self._lock:
            if is_bounded and wanted_bytes > self._available_bytes(is_allocated):
                self._count_again()
                self._queried_s = -FREE_SPACE_CACHE_S
                available_bytes = self._available_bytes(is_allocated)
                if wanted_bytes > available_bytes:
                    raise NoSpaceError(wanted_bytes, max(0, available_bytes))
            if is_allocated:  # the cached free space does not include this allocation
                self._queried_s = -FREE_SPACE_CACHE_S
            self._reserved_bytes += wanted_bytes

    def _count_again(self) -> None:
        now_s = time.monotonic()
        if now_s - self._counted_s >= self.recount_s:
            self._used_bytes, self._object_count = self._recount()
            self.recounts += 1
            self._counted_s = now_s

    def release(self, reserved_bytes: int) -> None:
        """Cancel a reservation."""
        with self._lock:
            self._reserved_bytes -= reserved_bytes

    def commit(self, reserved_bytes: int) -> None:
        """Turn a reservation into an object of that size."""
        with self._lock:
            self._reserved_bytes -= reserved_bytes
            self._used_bytes += reserved_bytes
            self._object_count += 1

    def forget(self, used_bytes: int, recounts: int) -> None:
        """Subtract a deleted object. `recounts`: the value of that attribute before the deletion.

        Another process may have added the object, so the counts never go below zero.
        """
        with self._lock:
            if recounts != self.recounts:
                return  # the recount may have left it out; if not, the next recount will
            self._used_bytes = max(0, self._used_bytes - used_bytes)
            self._object_count = max(0, self._object_count - 1)

    def usage(self) -> StoreUsage:
        """Return the current account; its capacity is the effective limit."""
        with self._lock:
            limit_bytes = None if self._capacity_bytes is None else self._limit_bytes()
            return StoreUsage(
                limit_bytes, self._used_bytes, self._reserved_bytes, self._object_count
            )

    def _available_bytes(self, is_allocated: bool) -> int:
        limit_bytes = (self._capacity_bytes or 0) if is_allocated else self._limit_bytes()
        return limit_bytes - self._used_bytes - self._reserved_bytes

    def _limit_bytes(self) -> int:
        now_s = time.monotonic()
        if now_s - self._queried_s >= FREE_SPACE_CACHE_S:
            self._queried_s, self._device_limit_bytes = now_s, self._capacity_bytes or 0
            if (left_bytes := self._device_bytes()) is not None:
                there_bytes = self._used_bytes + self._reserved_bytes + left_bytes
                self._device_limit_bytes = min(self._device_limit_bytes, there_bytes)
        return self._device_limit_bytes
