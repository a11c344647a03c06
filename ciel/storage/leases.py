"""Leases of directories: a directory exists as long as a process holds it, even if that is killed.

A holder keeps a shared lock on the directory itself. The kernel drops the lock with the last
descriptor, so a process can get the exclusive lock exactly when the directory has no holder, and
may then remove it. A pid and its start time would serve the same purpose within one host and one
pid namespace. The lock also works in containers that share `/dev/shm`, is not confused by reused
pids, and needs no file to be written.

A forked process holds its parent's leases until it ends or executes another program.

One of the holders may own the directory, by an exclusive lock on a file in it. The owner of a
store's directory is a worker: it offers all objects that it finds there, and deletes unwanted ones.
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

# A directory is busy only while a process removes it (from lock to rename) or creates it (from
# mkdir to lock).
_HOLD_TRIES = 1000
NOT_HELD = "ciel-io-"
"""The prefix of the directories of `device_semaphores`, which are never held."""

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def open_private(name: str, *, parent_fd: int) -> int:
    """Open a private directory, created if missing; refuse another user's, or a link."""
    try:
        os.mkdir(name, 0o700, dir_fd=parent_fd)
    except FileExistsError:
        pass
    try:
        fd = os.open(name, _DIRECTORY, dir_fd=parent_fd)
    except (NotADirectoryError, PermissionError) as error:
        reason = "the store needs a directory of this name, but cannot open what has this name"
        raise StoreSpecError(name, reason) from error
    if os.fstat(fd).st_uid != os.geteuid():
        os.close(fd)
        raise StoreSpecError(name, "belongs to another user")
    return fd


def is_ours(status: os.stat_result) -> bool:
    """Whether this is a regular file of this user; other users may place files in a store."""
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()


def hold(name: str, *, parent_fd: int) -> int:
    """Create the directory if missing, and return a descriptor that holds it."""
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
        if _is_still_at(fd, name, parent_fd):
            return fd
        os.close(fd)
    raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), name)


def own(name: str, *, parent_fd: int, subject: str, what: str, instead: str) -> int:
    """Lock a file in a held directory, and return its descriptor. Until the descriptor is closed,
    this process alone uses `what`. The file contains the process id. Raises `StoreSpecError` about
    `subject` if another process has the lock; the message proposes to name another `instead`.
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
        reason = f"{holder} already uses {what}, and only one worker may; name another {instead}"
        raise StoreSpecError(subject, reason) from None
    with contextlib.suppress(OSError):  # if the device is full, errors cannot name the owner
        os.ftruncate(fd, 0)
        os.pwrite(fd, str(os.getpid()).encode(), 0)
    return fd


def remove_unheld(name: str, *, parent_fd: int) -> bool:
    """Remove the directory unless it is held or another user's; True if it was removed."""
    try:
        fd = os.open(name, _DIRECTORY, dir_fd=parent_fd)
    except OSError:
        return False  # missing, not a directory, or not accessible
    try:
        if os.fstat(fd).st_uid != os.geteuid():
            return False
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not _is_still_at(fd, name, parent_fd):
            return False
        # Rename first, so that the next holder can use the name at once, however long the removal
        # takes.
        doomed = f"{name.partition('.')[0]}.{secrets.token_hex(8)}"
        os.rename(name, doomed, src_dir_fd=parent_fd, dst_dir_fd=parent_fd)
        remove_tree(doomed, parent_fd=parent_fd)
        return True
    except OSError:
        return False  # held, or on a file system without locks, where nothing is ever removed
    finally:
        os.close(fd)


def sweep(parent_fd: int, *, prefix: str = "") -> int:
    """Remove all directories with that prefix that no process holds; return their number. This
    skips the directories of `device_semaphores`, which are never held, and removed there.
    """
    names = [name for name in os.listdir(parent_fd) if name.startswith(prefix)]
    names = [name for name in names if not name.startswith(NOT_HELD)]
    return sum(remove_unheld(name, parent_fd=parent_fd) for name in names)


def moved(places: Iterable[tuple[str, int]]) -> str:
    """Return the first path that no longer leads to the directory of its descriptor; empty if all
    still do.
    """
    for path, fd in places:
        try:
            if os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(fd)):
                continue
        except OSError:
            pass
        return path
    return ""


def _is_still_at(fd: int, name: str, parent_fd: int) -> bool:
    """Whether the name still leads to the open directory."""
    try:
        named = os.stat(name, dir_fd=parent_fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(fd), named)
