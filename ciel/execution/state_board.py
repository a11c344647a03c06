"""A board in shared memory: the state of each member of a group, which waiting members watch.

A state is a vector of 32 flags (POOL-6). Members on one host, and their workers, map the same file:

    0    change, 4 bytes: another number after each change, and the futex of the waiting processes
    4    size, 4 bytes: the number of members
    64   the word of member 0, 8 bytes: its flags, and the marks below; one line of the cache each
    128  the word of member 1, and so on

Each word has one writer: the process of the member, or, if that runs on another host, the worker
that learns of it.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Final

from ciel.core.states import FAILED, FLAGS_MASK, JOINED, MEMBERS_MAX
from ciel.storage.leases import is_ours

_LINE_BYTES: Final = 64
_RECHECK_S: Final = 0.2
"""Even without a wake-up, a waiting process looks again after this time."""
_FUTEX: Final = {
    "x86_64": 202, "aarch64": 98, "riscv64": 98, "ppc64le": 221, "s390x": 238,
}.get(platform.machine())  # fmt: skip
"""The number of the system call."""
_WAIT, _WAKE = 0, 1
_EVERYONE: Final = 2**31 - 1
_syscall = ctypes.CDLL(None, use_errno=True).syscall


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class StateBoard:
    """An open board."""

    def __init__(self, path: str, size: int) -> None:
        """Open the board of a group of `size` members, and create it if it is missing.

        Raises ValueError if the group has another size, and OSError.
        """
        if _FUTEX is None:
            raise OSError(errno.ENOSYS, f"no futexes are known on {platform.machine()}")
        self.size = size
        size_bytes = (1 + MEMBERS_MAX) * _LINE_BYTES  # untouched pages take no memory
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(path, flags, 0o600)
        try:
            if not is_ours(os.fstat(fd)):
                raise PermissionError(f"{path} is no file of this user")
            os.ftruncate(fd, size_bytes)  # a new file is all zeros: no member has joined
            self._map = mmap.mmap(fd, size_bytes)
        finally:
            os.close(fd)
        self._words = memoryview(self._map).cast("Q")
        self._halves = memoryview(self._map).cast("I")
        self._futex = ctypes.c_uint32.from_buffer(self._map)
        if self._halves[1] == 0:
            self._halves[1] = size
        if self._halves[1] != size:
            known = self._halves[1]
            self.close()
            raise ValueError(f"the group has {known} members, not {size}")

    def word(self, member: int) -> int:
        """Return the flags and the marks of a member."""
        return int(self._words[(1 + member) * _LINE_BYTES // 8])

    def words(self) -> Sequence[int]:
        """Return the words of all members."""
        return [self.word(member) for member in range(self.size)]

    def put(self, member: int, word: int) -> None:
        """Change the word of a member, and wake the processes that wait."""
        self._words[(1 + member) * _LINE_BYTES // 8] = word
        # Two processes may change the board at once: if both counted, they could write one number.
        self._halves[0] = secrets.randbits(32)
        _syscall(_FUTEX, ctypes.byref(self._futex), _WAKE, _EVERYONE, None, None, 0)

    def wait(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until `condition` holds, which reads the board; False if the time is over."""
        end_s = time.monotonic() + timeout_s
        while True:
            change = self._halves[0]
            if condition():
                return True
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                return False
            self._sleep(change, min(left_s, _RECHECK_S))

    def _sleep(self, change: int, timeout_s: float) -> None:
        """Sleep until the board has changed, at most so long."""
        limit = _Timespec(int(timeout_s), int(timeout_s % 1 * 1e9))
        futex, time_limit = ctypes.byref(self._futex), ctypes.byref(limit)
        _syscall(_FUTEX, futex, _WAIT, ctypes.c_uint32(change), time_limit, None, 0)

    def close(self) -> None:
        """Unmap the board; a second call does nothing."""
        if not self._map.closed:
            del self._futex
            self._words.release()
            self._halves.release()
            self._map.close()


def joined(flags: int) -> int:
    """Return the word of a member that has joined, with these flags."""
    return JOINED | flags & FLAGS_MASK


def has_failed(word: int) -> bool:
    """Whether the task of a member has failed for good."""
    return bool(word & FAILED)
