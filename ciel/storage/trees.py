"""Directories with all that is in them, however deep: nothing here recurses, or depends on how long
a path may be, as programs make directories that are thousands deep.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Iterator
from typing import Final, NamedTuple

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_BYTES_MIN: Final = 4096  # an empty file is not for nothing


class Entry(NamedTuple):
    """A name in a directory, whose descriptor is open until the next entry is asked for."""

    parent_fd: int
    name: str
    is_directory: bool


class _Level(NamedTuple):
    """A directory that was entered: its name, which one it is, and directories not entered yet."""

    name: str
    status: os.stat_result
    left: list[str]


def entries_below(top: str | os.PathLike[str], *, opens_up: bool = False) -> Iterator[Entry]:
    """Yield all that lies below a directory, each directory after what is in it; nothing if it
    cannot be entered. `opens_up`: enter also those that their modes close to us.

    One that is moved meanwhile ends it. Two descriptors are open at a time.
    """
    fd = _entered(os.fspath(top), None, opens_up)
    if fd is None:
        return
    levels = [_Level("", os.fstat(fd), [])]
    try:
        yield from _names(fd, levels[0].left)
        while levels:
            level = levels[-1]
            if level.left:
                name = level.left.pop()
                below = _entered(name, fd, opens_up)
                if below is None:
                    yield Entry(fd, name, True)
                    continue
                os.close(fd)
                fd = below
                levels.append(_Level(name, os.fstat(fd), []))
                yield from _names(fd, levels[-1].left)
                continue
            levels.pop()
            if levels:
                above = os.open("..", _DIRECTORY, dir_fd=fd)
                os.close(fd)
                fd = above
                if not os.path.samestat(os.fstat(fd), levels[-1].status):
                    return
                yield Entry(fd, level.name, True)
    except OSError:
        return  # it goes while we look
    finally:
        os.close(fd)


def _names(fd: int, directories: list[str]) -> Iterator[Entry]:
    """Yield what is no directory, and add directories to a list."""
    with os.scandir(fd) as entries:
        listed = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_directory in listed:  # the caller may remove them
        if is_directory:
            directories.append(name)
        else:
            yield Entry(fd, name, False)


def _entered(name: str, parent_fd: int | None, opens_up: bool) -> int | None:
    try:
        fd = os.open(name, _DIRECTORY, dir_fd=parent_fd)
    except PermissionError:
        if not opens_up:
            return None
    except OSError:
        return None
    else:
        if opens_up and stat.S_IMODE(os.fstat(fd).st_mode) & 0o700 != 0o700:
            with contextlib.suppress(OSError):
                os.fchmod(fd, 0o700)
        return fd
    try:
        if stat.S_ISDIR(os.stat(name, dir_fd=parent_fd, follow_symlinks=False).st_mode):
            os.chmod(name, 0o700, dir_fd=parent_fd)
        return os.open(name, _DIRECTORY, dir_fd=parent_fd)
    except OSError:  # not ours, or gone
        return None


def remove_tree(path: str | os.PathLike[str], *, parent_fd: int | None = None) -> None:
    """Remove a directory with all that is in it, also where a program left directories that cannot
    be written or entered, as some package caches are; what stands there instead of it goes, too.

    Errors are left to the next sweep: a program may still be writing there.
    """
    top = os.fspath(path) if parent_fd is None else f"/proc/self/fd/{parent_fd}/{path}"
    if os.path.islink(top) or not os.path.isdir(top):
        with contextlib.suppress(OSError):
            os.unlink(top)
        return
    for entry in entries_below(top, opens_up=True):
        with contextlib.suppress(OSError):
            (os.rmdir if entry.is_directory else os.unlink)(entry.name, dir_fd=entry.parent_fd)
    with contextlib.suppress(OSError):
        os.rmdir(top)


def move_tree(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Move a file or directory to a name that does not exist, maybe to another file system. Raises
    OSError, with nothing left there: a tree that is too deep cannot be copied.
    """
    try:
        shutil.move(source, target)
    except (OSError, RecursionError) as error:
        remove_tree(target)
        if isinstance(error, RecursionError):
            raise OSError(errno.ELOOP, "its directories lie too deep to be copied") from None
        raise


def bytes_below(path: str | os.PathLike[str]) -> int:
    """Return what a directory with all that is in it takes on its device."""
    found_bytes = _blocks_bytes(os.fspath(path), None)
    for entry in entries_below(path):
        found_bytes += _blocks_bytes(entry.name, entry.parent_fd)
    return found_bytes


def _blocks_bytes(name: str, parent_fd: int | None) -> int:
    try:
        status = os.stat(name, dir_fd=parent_fd, follow_symlinks=False)
    except OSError:
        return 0  # it goes, or is closed to us
    return max(status.st_blocks * 512, _FILE_BYTES_MIN)
