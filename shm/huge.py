"""Moves a file on a tmpfs into huge pages: a process then maps 2 MiB in one step instead of 512."""

from __future__ import annotations

import ctypes
import mmap
from typing import Final

HUGE_BYTES: Final = 2 << 20
STEP_BYTES: Final = 8 * HUGE_BYTES
_MADV_COLLAPSE: Final = 25  # since Linux 6.1
_MAP_FIXED: Final = 0x10
_PROT_NONE: Final = 0
_PROT_READ: Final = mmap.PROT_READ
_FAILED: Final = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_longlong,
)  # fmt: skip
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def make_huge(fd: int, start: int, size_bytes: int) -> None:
    """Ask the kernel to move a part of an open file into huge pages, as far as it can. Processes
    may read and write the file meanwhile. This takes about 3 ms per page, and no time for a page
    that is huge already. `start` is a multiple of `STEP_BYTES`.
    """
    whole_bytes = size_bytes // HUGE_BYTES * HUGE_BYTES
    room_bytes = whole_bytes + HUGE_BYTES
    room = _libc.mmap(None, room_bytes, _PROT_NONE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    if room == _FAILED:
        return
    place = -(-room // HUGE_BYTES) * HUGE_BYTES  # a huge page is mapped at a multiple of its size
    flags = mmap.MAP_SHARED | _MAP_FIXED
    if whole_bytes and _libc.mmap(place, whole_bytes, _PROT_READ, flags, fd, start) == place:
        _libc.madvise(place, whole_bytes, _MADV_COLLAPSE)  # a failure changes nothing
    _libc.munmap(room, room_bytes)
