"""The unfinished files of one open store, in a held directory: others empty it if we die."""

from __future__ import annotations

import itertools
import os
import secrets
import stat

from ciel.storage import leases
from ciel.storage.fullness import Fullness
from ciel.storage.leases import is_ours
from ciel.storage.space import PAGE_BYTES

# Without O_NONBLOCK a planted FIFO would hold us until somebody writes to it.
_OPEN = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FRESH_MODE = stat.S_IFREG | 0o600
_SPARE_MAX = 64  # descriptors, of which a process has a thousand


def open_regular(name: str, parent_fd: int, access: int = os.O_RDONLY) -> int | None:
    """Open a regular file of this user; None when anything else, or nothing, stands there."""
    try:
        fd = os.open(name, access | _OPEN, dir_fd=parent_fd)
    except FileNotFoundError:
        return None
    except OSError:
        if regular_status(name, parent_fd) is None:
            return None  # a link, a socket, another user's
        raise
    if is_ours(os.fstat(fd)):
        return fd
    os.close(fd)
    return None


def regular_status(name: str, parent_fd: int) -> os.stat_result | None:
    """Stat a regular file of this user; None when anything else, or nothing, stands there."""
    try:
        status = os.stat(name, dir_fd=parent_fd, follow_symlinks=False)
    except FileNotFoundError:
        return None
    return status if is_ours(status) else None


def list_names(directory_fd: int) -> list[str]:
    """Return the names in a directory, by a descriptor of its own: threads share positions."""
    fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory_fd)
    try:
        return os.listdir(fd)
    finally:
        os.close(fd)


class Temporaries:
    """Makes, finds and discards the temporaries of one open store. Errors are OSErrors."""

    def __init__(self, root_fd: int, root_path: str, fullness: Fullness) -> None:
        self._fullness = fullness
        self._token = secrets.token_hex(8)
        self._path = f"{root_path}/incoming/{self._token}"
        self._numbers = itertools.count()
        self._spare: list[tuple[str, int]] = []
        self._pid = os.getpid()  # a forked copy must not hand out the same
        self._parent_fd = leases.open_private("incoming", parent_fd=root_fd)
        try:
            leases.sweep(self._parent_fd)
            self.directory_fd = leases.hold(self._token, parent_fd=self._parent_fd)
        except BaseException:
            os.close(self._parent_fd)
            raise

    def create(self) -> tuple[str, int]:
        """Make an empty file; return its name and a descriptor to read and write it."""
        if self._spare and self._pid == os.getpid():
            return self._spare.pop()
        while True:
            name = str(next(self._numbers))
            try:
                return name, os.open(name, _CREATE, 0o600, dir_fd=self.directory_fd)
            except FileExistsError:
                continue  # a forked copy of this store has counted past us

    def link(self, path: str) -> str:
        """Give a file of the same file system a name here, and return it."""
        while True:
            name = str(next(self._numbers))
            try:
                os.link(path, name, dst_dir_fd=self.directory_fd, follow_symlinks=False)
            except FileExistsError:
                continue
            return name

    def take_in(self, name: str, parent_fd: int) -> str:
        """Rename a file of the same file system to a temporary, and return its name here."""
        ours = f"{next(self._numbers)}-{os.getpid()}"  # no name of a forked copy's
        os.rename(name, ours, src_dir_fd=parent_fd, dst_dir_fd=self.directory_fd)
        return ours

    @property
    def place(self) -> tuple[str, int]:
        """The directory, as a path and a descriptor."""
        return self._path, self.directory_fd

    def path_of(self, name: str) -> str:
        """Return the name by which another process can open a temporary."""
        return f"{self._path}/{name}"

    def status_of(self, name: str) -> os.stat_result | None:
        """Stat what stands there now; None when it is no file of ours."""
        return regular_status(name, self.directory_fd)

    def reopen(self, name: str) -> int | None:
        """Open what stands there now to read and write; None when it is no file of ours alone.

        A file with a second name is refused: somebody could change it there after the commit.
        """
        fd = open_regular(name, self.directory_fd)
        if fd is None:
            return None
        try:
            if os.fstat(fd).st_nlink != 1:
                return None
            os.fchmod(fd, 0o600)  # the program may have copied a read-only file's mode
            return open_regular(name, self.directory_fd, os.O_RDWR)
        finally:
            os.close(fd)

    def recycle(self, name: str, fd: int, status: os.stat_result) -> None:
        """Take a file back that nobody else has open, to hand it out again: on most file systems
        making and removing one costs more than all else that a small output needs.
        """
        if len(self._spare) >= _SPARE_MAX or status.st_mode != _FRESH_MODE:
            os.close(fd)
            self.discard(name)
            return
        if status.st_size:
            os.ftruncate(fd, 0)  # a page, which makes no difference to `fullness`
        self._spare.append((name, fd))

    def discard(self, name: str) -> None:
        """Remove a temporary, if it is still there and the store still open."""
        if self.directory_fd < 0:
            return
        try:
            self._unlink(name)
        except OSError:
            pass  # gone, or replaced by a directory: then it goes when the store closes

    def _unlink(self, name: str) -> None:
        status = os.stat(name, dir_fd=self.directory_fd, follow_symlinks=False)
        if status.st_nlink > 1 or status.st_blocks * 512 <= PAGE_BYTES:
            os.unlink(name, dir_fd=self.directory_fd)
        else:
            with self._fullness.giving_back(status.st_blocks * 512):
                os.unlink(name, dir_fd=self.directory_fd)

    def close(self) -> None:
        """Remove the directory with all that is left in it."""
        for _, fd in self._spare:
            os.close(fd)
        self._spare.clear()
        os.close(self.directory_fd)
        self.directory_fd = -1
        with self._fullness.giving_back():
            leases.remove_unheld(self._token, parent_fd=self._parent_fd)
        os.close(self._parent_fd)
