"""The arena: one tmpfs with huge pages under `/dev/shm`, for all stores of this user.

Files there consist of pages of 2 MiB, which the kernel allocates, fills, maps and frees several
times as fast as pages of 4 KiB. All instances of stores share one mount, since a file can only be
linked within a mount. The arena exists while a process holds a lock on its root (`storage.leases`).
The last process unmounts it. If that process was killed, the next start of any memory store on this
host unmounts it, or a call of `remove_arena`.

With `huge=within_size`, a small object takes small pages. If the user may not mount, stores use
plain `/dev/shm`.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
from contextlib import suppress
from typing import NamedTuple

ROOT = "/dev/shm"
NAME = "ciel-arena"
_OPTIONS = b"huge=within_size,mode=0700"
_MS_NOSUID_NODEV = 2 | 4
_MNT_DETACH, _UMOUNT_NOFOLLOW = 2, 8
_HOLD_TRIES = 100
_libc = ctypes.CDLL(None, use_errno=True)


class Arena(NamedTuple):
    """The directory of the instances. `fd` is open on its root, and holds the lock."""

    path: str
    fd: int
    about: str


def open_arena() -> Arena:
    """Mount or join the arena; if that fails, return plain `/dev/shm`. Raises OSError."""
    path = arena_path()
    reason = ""
    for _ in range(_HOLD_TRIES):
        try:
            _mount(path)
            fd = _hold(path)
        except FileNotFoundError:
            continue  # unmounted before we locked it
        except OSError as error:
            reason = error.strerror or str(error)
            break
        if fd is not None:
            return Arena(path, fd, f"{path}, a tmpfs with huge pages")
    return plain(f"{ROOT}; no arena with huge pages: {reason or 'it is being removed'}")


def plain(about: str = ROOT) -> Arena:
    """Return plain `/dev/shm`. Raises OSError."""
    fd = os.open(ROOT, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    return Arena(ROOT, fd, about)


def arena_path() -> str:
    """Return the path of this user's arena, which may not exist."""
    return f"{ROOT}/{NAME}-{os.geteuid()}"


def remove_arena() -> bool:
    """Unmount the arena unless a process holds it. Returns whether it was unmounted."""
    path = arena_path()
    if not _is_mount(path):
        return False
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False  # another process removed it first
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not _stands_at(fd, path):
            return False
        flags = _MNT_DETACH | _UMOUNT_NOFOLLOW
        if _libc.umount2(path.encode(), flags):
            return False
        with suppress(OSError):  # mounted again already
            os.rmdir(path)
        return True
    except OSError:
        return False  # in use, or another process was faster
    finally:
        os.close(fd)


def _mount(path: str) -> None:
    """Mount the arena at a path unless it is mounted. The process locks the directory under the
    mount point, so that no two processes mount at the same time. Raises OSError.
    """
    if _is_mount(path):
        return
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(fd).st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, f"{path} belongs to another user")
        fcntl.flock(fd, fcntl.LOCK_EX)  # held during the mount
        if not _stands_at(fd, path):
            return  # another process has mounted or removed it meanwhile
        if _libc.mount(b"none", path.encode(), b"tmpfs", _MS_NOSUID_NODEV, _OPTIONS):
            number = ctypes.get_errno()
            os.rmdir(path)
            raise OSError(number, os.strerror(number))
    finally:
        os.close(fd)


def _hold(path: str) -> int | None:
    """Lock the root of the arena; return None if it is being removed."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        if _is_mount(path) and _stands_at(fd, path):
            return fd
    except BlockingIOError:
        os.sched_yield()
    except BaseException:
        os.close(fd)
        raise
    os.close(fd)
    return None  # a process is removing it, or has just unmounted it


def _is_mount(path: str) -> bool:
    try:
        return not os.path.islink(path) and os.stat(path).st_dev != os.stat(ROOT).st_dev
    except FileNotFoundError:
        return False


def _stands_at(fd: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False
