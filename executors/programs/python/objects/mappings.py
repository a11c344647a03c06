"""Maps files of the store into memory.

Large mappings are aligned, so that huge pages can serve them. A mapping ends with the last view of
it.
"""

from __future__ import annotations

import os
from functools import cache
from mmap import (
    MAP_ANONYMOUS,
    MAP_POPULATE,
    MAP_PRIVATE,
    MAP_SHARED,
    PAGESIZE,
    PROT_READ,
    PROT_WRITE,
    mmap,
)
from typing import TYPE_CHECKING

HUGE_BYTES = 2 << 20
_MAP_FIXED = 0x10
_MAP_NORESERVE = 0x4000
_PROT_NONE = 0

if TYPE_CHECKING:
    import ctypes


def copied_on_write(descriptor: int, size_bytes: int, offset: int) -> memoryview:
    """Map a part of a file copy-on-write: writes change neither the file nor its other readers."""
    start = offset - offset % PAGESIZE
    before = offset - start
    length = size_bytes + before
    flags = MAP_PRIVATE | _MAP_NORESERVE
    if length < 2 * HUGE_BYTES:
        memory = memoryview(mmap(descriptor, length, flags, PROT_READ | PROT_WRITE, offset=start))
    else:
        if os.fstat(descriptor).st_blksize >= HUGE_BYTES:
            flags |= MAP_POPULATE
        memory = _aligned(descriptor, length, start, PROT_READ | PROT_WRITE, flags)
    return memory[before:]


def mapped(
    descriptor: int, size_bytes: int, offset: int = 0, *, writes: bool = False
) -> memoryview:
    """Map a part of a file.

    Pages to be written are populated at once, since all of them will be used. So are huge pages:
    populating one costs a tenth of a page fault.
    """
    prot, flags = PROT_READ, MAP_SHARED
    if writes or os.fstat(descriptor).st_blksize >= HUGE_BYTES:
        flags |= MAP_POPULATE
    if writes:
        prot |= PROT_WRITE
    if size_bytes < 2 * HUGE_BYTES:
        return memoryview(mmap(descriptor, size_bytes, flags, prot, offset=offset))
    return _aligned(descriptor, size_bytes, offset, prot, flags)


def _aligned(descriptor: int, size_bytes: int, offset: int, prot: int, flags: int) -> memoryview:
    import ctypes
    import weakref
    from pickle import PickleBuffer

    def checked(address: int) -> int:
        if address in (-1, ctypes.c_void_p(-1).value):
            number = ctypes.get_errno()
            raise OSError(number, f"cannot map {size_bytes} bytes of a file into memory")
        return address

    libc = _libc()
    map_ = libc.mmap
    room_bytes = size_bytes + HUGE_BYTES
    room = checked(map_(None, room_bytes, _PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))
    start = room + (offset - room) % HUGE_BYTES
    # A private mapping that is writable would be copied as a whole when it is populated.
    first = prot if flags & MAP_SHARED else PROT_READ
    try:
        checked(map_(start, size_bytes, first, flags | _MAP_FIXED, descriptor, offset))
        if first != prot and libc.mprotect(start, size_bytes, prot):
            checked(-1)
    except OSError:
        libc.munmap(room, room_bytes)
        raise
    memory = (ctypes.c_char * size_bytes).from_address(start)
    weakref.finalize(memory, libc.munmap, room, room_bytes).atexit = False
    view = PickleBuffer(memory).raw()  # of plain bytes
    return view if prot & PROT_WRITE else view.toreadonly()


@cache
def _libc() -> ctypes.CDLL:
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (
        ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int,
        ctypes.c_longlong,
    )  # fmt: skip
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return libc
