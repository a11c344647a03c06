"""The temporary files of one open store. If its process dies, other processes remove them."""

from __future__ import annotations

import itertools
import os
import secrets
import stat

from ciel.storage import leases
from ciel.storage.fullness import Fullness
from ciel.storage.leases import is_ours
from ciel.storage.space import PAGE_BYTES

# A program may put a FIFO in place of a file. Without O_NONBLOCK, opening it would block.
_OPEN = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FRESH_MODE = stat.S_IFREG | 0o600
_SPARE_MAX = 64  # of the thousand descriptors that a process may have


def open_regular(name: str, parent_fd: int, access: int = os.O_RDONLY) -> int | None:
    """Open a regular file of this user; None if it is missing or of another kind."""
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
    """Stat a regular file of this user; None if it is missing or of another kind."""
    try:
        status = os.stat(name, dir_fd=parent_fd, follow_symlinks=False)
    except FileNotFoundError:
        return None
    return status if is_ours(status) else None


def list_names(directory_fd: int) -> list[str]:
    """List a directory through a new descriptor, since threads share a descriptor's position."""
    fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory_fd)
    try:
        return os.listdir(fd)
    finally:
        os.close(fd)


class Temporaries:
    """Creates, opens and removes the temporaries of one open store. Its methods raise OSError."""

    def __init__(self, root_fd: int, root_path: str, fullness: Fullness) -> None:
        self._fullness = fullness
        self._token = secrets.token_hex(8)
        self._path = f"{root_path}/incoming/{self._token}"
        self._numbers = itertools.count()
        self._spare: list[tuple[str, int]] = []
        self._pid = os.getpid()  # a forked process must not use the same spare files
        self._parent_fd = leases.open_private("incoming", parent_fd=root_fd)
        try:
            leases.sweep(self._parent_fd)
            self.directory_fd = leases.hold(self._token, parent_fd=self._parent_fd)
        except BaseException:
            os.close(self._parent_fd)
            raise

    def create(self) -> tuple[str, int]:
        """Create an empty file; return its name and a descriptor to read and write it."""
        if self._spare and self._pid == os.getpid():
            return self._spare.pop()
        while True:
            name = str(next(self._numbers))
            try:
                return name, os.open(name, _CREATE, 0o600, dir_fd=self.directory_fd)
            except FileExistsError:
                continue  # a forked process has used this number

    def link(self, path: str) -> str:
        """Link a file of the same file system as a temporary, and return the new name."""
        while True:
            name = str(next(self._numbers))
            try:
                os.link(path, name, dst_dir_fd=self.directory_fd, follow_symlinks=False)
            except FileExistsError:
                continue
            return name

    def take_in(self, name: str, parent_fd: int) -> str:
        """Rename a file of the same file system to a temporary, and return its new name."""
        ours = f"{next(self._numbers)}-{os.getpid()}"  # differs from the names of forked processes
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
        """Stat the file that has this name now; None if it is not a regular file of this user."""
        return regular_status(name, self.directory_fd)

    def reopen(self, name: str) -> int | None:
        """Open the file that has this name now, to read and write. Return None if it is not a
        regular file of this user, or has a second name, so that a program could change it after
        the commit.
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
        """Keep a file that no other process has open, so that `create` can return it again. On most
        file systems creating and removing a file is the largest cost of a small output.
        """
        if len(self._spare) >= _SPARE_MAX or status.st_mode != _FRESH_MODE:
            os.close(fd)
            self.discard(name)
            return
        if status.st_size:
            os.ftruncate(fd, 0)  # one page, so `fullness` need not count it
        self._spare.append((name, fd))

    def discard(self, name: str) -> None:
        """Remove a temporary, if it is still there and the store still open."""
        if self.directory_fd < 0:
            return
        try:
            self._unlink(name)
        except OSError:
            pass  # missing, or replaced by a directory, which `close` removes

    def _unlink(self, name: str) -> None:
        status = os.stat(name, dir_fd=self.directory_fd, follow_symlinks=False)
        if status.st_nlink > 1 or status.st_blocks * 512 <= PAGE_BYTES:
            os.unlink(name, dir_fd=self.directory_fd)
        else:
            with self._fullness.giving_back(status.st_blocks * 512):
                os.unlink(name, dir_fd=self.directory_fd)

    def close(self) -> None:
        """Remove the directory and all files in it."""
        for _, fd in self._spare:
            os.close(fd)
        self._spare.clear()
        os.close(self.directory_fd)
        self.directory_fd = -1
        with self._fullness.giving_back():
            leases.remove_unheld(self._token, parent_fd=self._parent_fd)
        os.close(self._parent_fd)
