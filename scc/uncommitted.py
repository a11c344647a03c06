"""Temporary files for outputs that programs write by name; complete ones are copied into the image.

A program may rename, replace and reopen its output, which requires a real file.
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


class UncommittedFile:
    """A file that a program writes, or that readers follow while it grows."""

    def __init__(self, temporaries: Temporaries, object_id: str, fullness: Fullness) -> None:
        self._temporaries = temporaries
        self._fullness = fullness
        self._times_full = fullness.count
        self._object_id = object_id
        self._name, self._fd = temporaries.create()
        self.is_shared = False
        """Whether another process may have the file open after this process closes it."""

    @property
    def path(self) -> str:
        return self._temporaries.path_of(self._name)

    def fileno(self) -> int:
        """Return the descriptor of the file that was created, even if it was renamed."""
        return self._fd

    def current_fd(self) -> int:
        """Return a descriptor of the file at the path; a program may have replaced the file."""
        try:
            fd = self._temporaries.reopen(self._name)
        except OSError as error:
            raise StoreSystemError("reopen", error.errno or errno.EIO) from error
        if fd is None:
            detail = "the program deleted or replaced the file that it was given for this output"
            raise CorruptObjectError(self._object_id, "output", detail)
        if not os.path.sameopenfile(fd, self._fd):
            self._fd, fd = fd, self._fd
        self._fullness.close_file(fd)
        return self._fd

    def size_now(self) -> int | None:
        """Return the size of the file at the path; None if it is missing or another user's."""
        status = self._temporaries.status_of(self._name)
        return None if status is None else status.st_size

    def note_if_full(self) -> None:
        """Record that the device is full, if it is: writes of programs may have failed."""
        if is_full(self._temporaries.directory_fd):
            self._fullness.note()

    @property
    def may_be_short(self) -> bool:
        """Whether a write to the file may have failed because the device was full."""
        if not (self.size_now() or 0) % PAGE_BYTES:  # a failed write ends at a page boundary
            self.note_if_full()
        return self._fullness.was_full(self._times_full)

    def require_complete(self) -> None:
        """Raise `ShortOutputError` if the file may lack bytes."""
        if self.may_be_short:
            raise ShortOutputError(self._object_id, self.size_now() or 0)

    def write(self, chunk: memoryview) -> None:
        """Append to the file."""
        try:
            while chunk:
                chunk = chunk[os.write(self._fd, chunk) :]
        except OSError as error:
            raise translated(error, "write", len(chunk), self._fd) from error

    def reserve(self, size_bytes: int) -> None:
        """Reserve space, so that writing this many bytes cannot fail. Raises NoSpaceError."""
        try:
            with self._fullness.taking(size_bytes):
                reserve_blocks(self._fd, size_bytes, keep_size=True)
        except OSError as error:
            raise translated(error, "begin", size_bytes, self._fd) from error

    def copy_to(self, file: File, size_bytes: int, *, in_place: bool) -> tuple[int, str]:
        """Copy the file at the path into a file of the image that has `size_bytes` of space. Return
        the number of bytes, which is lower if the file has shrunk meanwhile, and the checksum.
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
            file.set_written(offset_bytes)
        return offset_bytes, str(digest.hexdigest())

    def take_back(self) -> bytes | None:
        """Return the content and recycle the file, if it is the file that was created and no other
        process has it open. Otherwise return None and do nothing.
        """
        status, ours = self._temporaries.status_of(self._name), os.fstat(self._fd)
        if status is None or self.is_shared or not os.path.samestat(status, ours):
            return None
        if ours.st_nlink != 1:
            return None
        content = os.pread(self._fd, ours.st_size, 0) if ours.st_size else b""
        fd, self._fd = self._fd, -1
        self._temporaries.recycle(self._name, fd, ours)
        return content

    def close(self, *, discard: bool = True) -> None:
        """Close the file and delete it; a forked copy passes `discard=False`."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            self._fullness.close_file(fd)
            if discard:
                self._temporaries.discard(self._name)
