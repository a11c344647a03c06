"""Outputs that programs write by name: temporaries beside the image, copied in when they are whole.

A program may rename, replace and reopen what it was given, and that takes a real file.
"""

from __future__ import annotations

import errno
import os

import xxhash

from ciel.scc.shmfs import File
from ciel.storage.errors import (
    CorruptObjectError,
    ShortOutputError,
    StoreSystemError,
    translated,
)
from ciel.storage.fullness import Fullness
from ciel.storage.space import PAGE_BYTES, is_full, reserve_blocks
from ciel.storage.temporaries import Temporaries

_CHUNK_BYTES = 2**20


class Draft:
    """One file that a program writes, or that somebody follows while it grows."""

    def __init__(self, temporaries: Temporaries, object_id: str, fullness: Fullness) -> None:
        self._temporaries = temporaries
        self._fullness = fullness
        self._times_full = fullness.count
        self._object_id = object_id
        self._name, self._fd = temporaries.create()
        self.is_lent = False
        """Whether somebody may have it open who is not done when we are."""

    @property
    def path(self) -> str:
        return self._temporaries.path_of(self._name)

    def fileno(self) -> int:
        """Return the descriptor of the file that was made, whatever has become of its name."""
        return self._fd

    def current_fd(self) -> int:
        """Return that of the file that bears the name now: a program may have put its own there."""
        try:
            fd = self._temporaries.reopen(self._name)
        except OSError as error:
            raise StoreSystemError("reopen", error.errno or errno.EIO) from error
        if fd is None:
            detail = "the program left no regular file of its own under the name it was given"
            raise CorruptObjectError(self._object_id, "output", detail)
        if not os.path.sameopenfile(fd, self._fd):
            self._fd, fd = fd, self._fd
        self._fullness.close_file(fd)
        return self._fd

    def size_now(self) -> int | None:
        """Return the size of what bears the name now; None if that is no file of ours."""
        status = self._temporaries.status_of(self._name)
        return None if status is None else status.st_size

    def look_if_full(self) -> None:
        """See whether the device is full, where what a program writes is refused."""
        if is_full(self._temporaries.directory_fd):
            self._fullness.note()

    @property
    def may_be_short(self) -> bool:
        """Whether it may have been."""
        if not (self.size_now() or 0) % PAGE_BYTES:  # what is refused a block ends where one does
            self.look_if_full()
        return self._fullness.was_full(self._times_full)

    def expect_all(self) -> None:
        """Raise `ShortOutputError` if it may have been."""
        if self.may_be_short:
            raise ShortOutputError(self._object_id, self.size_now() or 0)

    def write(self, chunk: memoryview) -> None:
        """Append."""
        try:
            while chunk:
                chunk = chunk[os.write(self._fd, chunk) :]
        except OSError as error:
            raise translated(error, "write", len(chunk), self._fd) from error

    def reserve(self, size_bytes: int) -> None:
        """Have room for so many bytes, so that whoever writes them cannot be refused any. Raises
        NoSpaceError.
        """
        try:
            with self._fullness.taking(size_bytes):
                reserve_blocks(self._fd, size_bytes, keep_size=True)
        except OSError as error:
            raise translated(error, "begin", size_bytes, self._fd) from error

    def copy_to(self, file: File, size_bytes: int, *, in_place: bool) -> tuple[int, str]:
        """Copy what bears the name into a file with that much room; returns how much it was, less
        if it has shrunk meanwhile, and its checksum.
        """
        fd, digest, offset_bytes = self.current_fd(), xxhash.xxh3_64(), 0
        if in_place:
            memory = file.writable(size_bytes) if size_bytes else memoryview(b"")
        else:
            memory = memoryview(bytearray(min(size_bytes, _CHUNK_BYTES)))
        while offset_bytes < size_bytes:
            start = offset_bytes if in_place else 0
            part = memory[start : start + min(_CHUNK_BYTES, size_bytes - offset_bytes)]
            if not (count := os.preadv(fd, [part], offset_bytes)):
                break
            digest.update(part[:count])
            if not in_place:
                file.write(part[:count], offset_bytes)
            offset_bytes += count
        if in_place:
            file.wrote(offset_bytes)
        return offset_bytes, str(digest.hexdigest())

    def take_back(self) -> bytes | None:
        """Return all of it and have the file serve again: for the file that was made and that
        nobody else has; None, and nothing has happened, if it is not.
        """
        status, ours = self._temporaries.status_of(self._name), os.fstat(self._fd)
        if status is None or self.is_lent or not os.path.samestat(status, ours):
            return None
        if ours.st_nlink != 1:
            return None
        content = os.pread(self._fd, ours.st_size, 0) if ours.st_size else b""
        fd, self._fd = self._fd, -1
        self._temporaries.recycle(self._name, fd, ours)
        return content

    def close(self, *, discard: bool = True) -> None:
        """Let go of it; it is gone, unless a forked copy says so."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            self._fullness.close_file(fd)
            if discard:
                self._temporaries.discard(self._name)
