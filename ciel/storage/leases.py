"""Directories that live as long as somebody holds them, whatever kills the holder.

A holder keeps a shared lock on the directory itself. The kernel drops it with the last descriptor,
so the exclusive lock can be had exactly when nobody lives there; whoever gets it may remove the
directory. A pid and its start time would say the same within one host and one pid namespace; the
lock is also right in containers that share `/dev/shm`, cannot be fooled by a reused pid, and needs
no file to be written.

A process made by a bare fork holds what its parent held, until it ends or executes another program.

Of those who hold a directory one may own it, by an exclusive lock on a file in it: a worker, which
says of all it finds in its store that it is its own, and deletes what nobody wants.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import stat
from collections.abc import Iterable

from ciel.storage.errors import StoreSpecError
from ciel.storage.trees import remove_tree

# A directory is busy only between a remover's lock and its rename, or newborn and not yet locked.
_HOLD_TRIES = 1000
NOT_HELD = "ciel-io-"
"""What `tokens` calls its directories."""

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def open_private(name: str, *, parent_fd: int) -> int:
    """Open a directory for us alone, made when missing; refuse another user's, or a link."""
    try:
        os.mkdir(name, 0o700, dir_fd=parent_fd)
    except FileExistsError:
        pass
    try:
        fd = os.open(name, _DIRECTORY, dir_fd=parent_fd)
    except (NotADirectoryError, PermissionError) as error:
        raise StoreSpecError(name, "stands where the store needs a directory of its own") from error
    if os.fstat(fd).st_uid != os.geteuid():
        os.close(fd)
        raise StoreSpecError(name, "belongs to another user")
    return fd


def is_ours(status: os.stat_result) -> bool:
    """Tell a regular file of this user from whatever else may be planted in a store."""
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()


def hold(name: str, *, parent_fd: int) -> int:
    """Make or join the directory and return the descriptor that holds it."""
    for _ in range(_HOLD_TRIES):
        try:
            fd = open_private(name, parent_fd=parent_fd)
        except FileNotFoundError:
            continue  # removed between making and opening
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            os.sched_yield()
            continue
        except OSError:
            os.close(fd)
            raise
        if _stands_at(fd, name, parent_fd):
            return fd
        os.close(fd)
    raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), name)


def own(name: str, *, parent_fd: int, subject: str, what: str, instead: str) -> int:
    """Lock a file in a held directory, which says who has `what`, and return the descriptor: until
    it is closed nobody else has. Raises `StoreSpecError`, about `subject`, when somebody has.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(name, flags, 0o600, dir_fd=parent_fd)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        pid = os.pread(fd, 20, 0).decode(errors="replace")
        os.close(fd)
        if not isinstance(error, BlockingIOError):
            raise
        holder = f"process {pid}" if pid.isdecimal() else "another process"
        reason = f"{holder} has {what}, which is one worker's alone; name another {instead}"
        raise StoreSpecError(subject, reason) from None
    with contextlib.suppress(OSError):  # a full device: then nobody is told who has it
        os.ftruncate(fd, 0)
        os.pwrite(fd, str(os.getpid()).encode(), 0)
    return fd


def remove_unheld(name: str, *, parent_fd: int) -> bool:
    """Remove the directory unless somebody holds it (or it is not ours); True if it went."""
    try:
        fd = os.open(name, _DIRECTORY, dir_fd=parent_fd)
    except OSError:
        return False  # gone, or no directory, or not for us
    try:
        if os.fstat(fd).st_uid != os.geteuid():
            return False
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not _stands_at(fd, name, parent_fd):
            return False
        # Renamed first: the name is free for its next holder at once, however long the removal
        # takes.
        doomed = f"{name.partition('.')[0]}.{secrets.token_hex(8)}"
        os.rename(name, doomed, src_dir_fd=parent_fd, dst_dir_fd=parent_fd)
        remove_tree(doomed, parent_fd=parent_fd)
        return True
    except OSError:
        return False  # held, or on a file system without locks: then nothing is ever thought dead
    finally:
        os.close(fd)


def sweep(parent_fd: int, *, prefix: str = "") -> int:
    """Remove every directory of that prefix which nobody holds; return how many went. Those of
    `tokens` are not held, and look after themselves.
    """
    names = [name for name in os.listdir(parent_fd) if name.startswith(prefix)]
    names = [name for name in names if not name.startswith(NOT_HELD)]
    return sum(remove_unheld(name, parent_fd=parent_fd) for name in names)


def moved(places: Iterable[tuple[str, int]]) -> str:
    """Return the first path that does not lead to the directory of its descriptor any more; empty
    if all do.
    """
    for path, fd in places:
        try:
            if os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(fd)):
                continue
        except OSError:
            pass
        return path
    return ""


def _stands_at(fd: int, name: str, parent_fd: int) -> bool:
    """Tell whether the open directory is still the one of that name."""
    try:
        named = os.stat(name, dir_fd=parent_fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(fd), named)
