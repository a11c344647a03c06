"""Allocates the files of images completely, and maps separate runs of blocks contiguously."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os

from ciel.storage.errors import StoreSystemError, translated

_PROT_NONE = 0
_MAP_FIXED = 0x10
_MAP_NORESERVE = 0x4000
_FAILED = ctypes.c_void_p(-1).value
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_longlong,
)  # fmt: skip
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)


def reserve_whole(fd: int, size_bytes: int) -> None:
    """Set the size of a file and allocate all of its space, so that no access raises SIGBUS.

    Raises `NoSpaceError`; then the file is empty.
    """
    try:
        os.ftruncate(fd, 0)
        os.posix_fallocate(fd, 0, size_bytes)
    except OSError as error:
        os.ftruncate(fd, 0)
        raise translated(error, "reserve an image", size_bytes, fd) from error


def map_runs(
    fd: int, runs: list[tuple[int, int]], *, writable: bool = False, private: bool = False
) -> int:
    """Map parts of a file, given by offset and length, contiguously. All lengths except the last
    must be whole pages. Read-only by default; `private`: writes change only this process's copy.
    Returns the address, for `unmap`.
    """
    protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable or private else 0)
    sharing = mmap.MAP_PRIVATE | _MAP_NORESERVE if private else mmap.MAP_SHARED
    size_bytes = sum(length for _, length in runs)
    start = _map(None, size_bytes, _PROT_NONE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    place = start
    try:
        for offset, length in runs:
            _map(place, length, protection, sharing | _MAP_FIXED, fd, offset)
            place += length
    except StoreSystemError:
        unmap(start, size_bytes)
        raise
    return start


def unmap(start: int, size_bytes: int) -> None:
    """Remove a mapping."""
    _libc.munmap(start, size_bytes)


def _map(
    start: int | None, size_bytes: int, protection: int, flags: int, fd: int, offset_bytes: int
) -> int:
    place = _libc.mmap(start, size_bytes, protection, flags, fd, offset_bytes)
    if place in (None, _FAILED):
        raise StoreSystemError("map", ctypes.get_errno() or errno.ENOMEM)
    return int(place)
