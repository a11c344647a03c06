"""An arena: a tmpfs of our own under `/dev/shm`, with huge pages, for all stores of this user.

What is written there comes in pages of 2 MiB, which are made, filled, mapped and given back several
times as fast as those of 4 KiB. All instances share one mount, since a file can be linked within a
mount only. It lives as long as somebody holds it, by a lock on its root (`storage.leases`); it is
removed by the last who has it, or, when that one was killed, by the next start of any store in
memory on this host, and by whoever calls `remove_arena`.

`huge=within_size`: a small object takes small pages. Who may not mount has plain `/dev/shm`.
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
    """Where instances lie, and what that is, in words. `fd` is its root, and holds it."""

    path: str
    fd: int
    about: str


def open_arena() -> Arena:
    """Mount or join the arena; where that cannot be, return plain `/dev/shm`. Raises OSError."""
    path = arena_path()
    reason = ""
    for _ in range(_HOLD_TRIES):
        try:
            _mount(path)
            fd = _hold(path)
        except FileNotFoundError:
            continue  # unmounted before it was held
        except OSError as error:
            reason = error.strerror or str(error)
            break
        if fd is not None:
            return Arena(path, fd, f"{path}, a tmpfs with huge pages")
    return plain(f"{ROOT}; no arena with huge pages: {reason or 'it is being removed'}")


def plain(about: str = ROOT) -> Arena:
    """Return `/dev/shm` as it is. Raises OSError."""
    fd = os.open(ROOT, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    return Arena(ROOT, fd, about)


def arena_path() -> str:
    """Return where this user's arena is, or would be."""
    return f"{ROOT}/{NAME}-{os.geteuid()}"


def remove_arena() -> bool:
    """Unmount the arena unless somebody holds it; whether it went."""
    path = arena_path()
    if not _is_mount(path):
        return False
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False  # another was quicker
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not _stands_at(fd, path):
            return False
        flags = _MNT_DETACH | _UMOUNT_NOFOLLOW
        if _libc.umount2(path.encode(), flags):
            return False
        with suppress(OSError):  # mounted anew already
            os.rmdir(path)
        return True
    except OSError:
        return False  # held, or another was quicker
    finally:
        os.close(fd)


def _mount(path: str) -> None:
    """Have a file system of our own there; raises OSError. Whoever mounts has locked the directory
    under it, so that no two do.
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
        fcntl.flock(fd, fcntl.LOCK_EX)  # for as long as a mount takes
        if not _stands_at(fd, path):
            return  # mounted by another meanwhile, or removed
        if _libc.mount(b"none", path.encode(), b"tmpfs", _MS_NOSUID_NODEV, _OPTIONS):
            number = ctypes.get_errno()
            os.rmdir(path)
            raise OSError(number, os.strerror(number))
    finally:
        os.close(fd)


def _hold(path: str) -> int | None:
    """Hold the root; None if it is being removed."""
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
    return None  # a remover has locked it, or it was unmounted at this moment


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
