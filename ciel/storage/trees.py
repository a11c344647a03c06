"""Lists, removes, moves and measures directory trees of any depth.

Programs make directories that are thousands of levels deep. So no function except `move_tree`
recurses, or depends on the maximum length of paths.
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
_FILE_BYTES_MIN: Final = 4096  # empty files need some space, too


class Entry(NamedTuple):
    """A name in a directory. `parent_fd` is open until the generator continues."""

    parent_fd: int
    name: str
    is_directory: bool


class _Level(NamedTuple):
    """An entered directory: its name, its identity, and its subdirectories not entered yet."""

    name: str
    status: os.stat_result
    left: list[str]


def entries_below(top: str | os.PathLike[str], *, opens_up: bool = False) -> Iterator[Entry]:
    """Yield all entries below a directory, each directory after its contents; yield nothing if the
    top cannot be opened. `opens_up`: change the modes of directories that deny access.

    The iteration ends early if a directory on its path is moved meanwhile. At most two descriptors
    are open at a time.
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
        return  # another process is removing the tree
    finally:
        os.close(fd)


def _names(fd: int, directories: list[str]) -> Iterator[Entry]:
    """Yield the entries that are not directories, and append the directories to a list."""
    with os.scandir(fd) as entries:
        listed = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_directory in listed:  # complete first, as the caller may remove the entries
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
    except OSError:  # another user's, or missing
        return None


def remove_tree(path: str | os.PathLike[str], *, parent_fd: int | None = None) -> None:
    """Remove a directory tree, or the file at that path. This includes directories without write
    or search permission, which some package caches have.

    Errors are ignored, and left to the next sweep: a program may still be writing there.
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
    """Move a file or directory to a name that does not exist, also across file systems. If this
    fails, for example because the tree is too deep to copy, remove the target and raise OSError.
    """
    try:
        shutil.move(source, target)
    except (OSError, RecursionError) as error:
        remove_tree(target)
        if isinstance(error, RecursionError):
            raise OSError(errno.ELOOP, "its directories are nested too deeply to copy") from None
        raise


def bytes_below(path: str | os.PathLike[str]) -> int:
    """Return how many bytes a directory tree occupies on its device."""
    found_bytes = _blocks_bytes(os.fspath(path), None)
    for entry in entries_below(path):
        found_bytes += _blocks_bytes(entry.name, entry.parent_fd)
    return found_bytes


def _blocks_bytes(name: str, parent_fd: int | None) -> int:
    try:
        status = os.stat(name, dir_fd=parent_fd, follow_symlinks=False)
    except OSError:
        return 0  # removed meanwhile, or not accessible
    return max(status.st_blocks * 512, _FILE_BYTES_MIN)
