"""Huge pages for a file in memory, on whatever tmpfs, whatever it holds: a page of 2 MiB is mapped
in one step, where 512 small ones take as many.
"""

from __future__ import annotations

import ctypes
import mmap
from typing import Final

HUGE_BYTES: Final = 2 << 20
STEP_BYTES: Final = 8 * HUGE_BYTES
_MADV_COLLAPSE: Final = 25  # since Linux 6.1
_MAP_FIXED: Final = 0x10
_PROT_NONE: Final = 0
_FAILED: Final = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_longlong,
)  # fmt: skip
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def make_huge(fd: int, size_bytes: int) -> bool:
    """Have the kernel move what is in an open file into huge pages, but for the end of it, as far
    as it can and has some. Whoever reads or writes the file meanwhile sees nothing of that. Takes
    about a second for a gibibyte. False where there is no such thing.
    """
    whole_bytes = size_bytes // HUGE_BYTES * HUGE_BYTES
    if not whole_bytes:
        return True
    room_bytes = whole_bytes + HUGE_BYTES
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    room = _libc.mmap(None, room_bytes, _PROT_NONE, private, -1, 0)
    if room == _FAILED:
        return False
    try:
        start = -(-room // HUGE_BYTES) * HUGE_BYTES  # a huge page is mapped at a multiple of it
        flags = mmap.MAP_SHARED | _MAP_FIXED
        if _libc.mmap(start, whole_bytes, mmap.PROT_READ, flags, fd, 0) == _FAILED:
            return False
        for offset in range(0, whole_bytes, STEP_BYTES):
            step_bytes = min(STEP_BYTES, whole_bytes - offset)
            if _libc.madvise(start + offset, step_bytes, _MADV_COLLAPSE) and not offset:
                return False
        return True
    finally:
        _libc.munmap(room, room_bytes)
