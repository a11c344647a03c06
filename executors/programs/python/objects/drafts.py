"""Writes objects: in files of the store, or in place in an image of shmfs (`ciel.scc.attachments`).

The worker commits files. The program itself commits a draft in an image; then the worker gives the
draft the name of the object.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ciel.executors.programs.python.objects.mappings import mapped

if TYPE_CHECKING:
    from ciel.executors.programs.python.channel import Channel
    from ciel.python.packing import Buffer
    from ciel.python.task_session import MakeRegion, OutputRegion
    from ciel.scc.shmfs import File

PAGE_BYTES = 4096
IMAGE = "image:"
"""The places of objects in an image begin with this."""
_PIECES_MAX = 1000  # of one call of writev


class Draft:
    """A file that this program writes."""

    def __init__(self, descriptor: int) -> None:
        """Own the descriptor."""
        self._descriptor = descriptor

    def memory(self, size_bytes: int, offset: int) -> memoryview:
        """Return whole pages of the file to write to, which are allocated; raises OSError."""
        return mapped(self._descriptor, size_bytes, offset, writes=True)

    def reserve(self, size_bytes: int) -> None:
        """Allocate all pages of the file, so that no write fails later; raises OSError.

        The worker may have allocated them already.
        """
        status = os.fstat(self._descriptor)
        if status.st_blocks * 512 < size_bytes:
            os.posix_fallocate(self._descriptor, 0, size_bytes)
        elif status.st_size < size_bytes:
            os.ftruncate(self._descriptor, size_bytes)

    def region(self, make: MakeRegion, offset: int) -> OutputRegion:
        """Make a region of the file, from an offset on."""
        return make(os.dup(self._descriptor), offset, None)

    def write(self, content: memoryview, offset: int) -> None:
        """Write at an offset; raises OSError."""
        left = content.cast("B")
        while left:
            count = os.pwrite(self._descriptor, left, offset)
            left, offset = left[count:], offset + count

    def write_all(self, pieces: Sequence[Buffer]) -> None:
        """Replace the content by pieces; raises OSError."""
        waiting: list[Any] = [memoryview(piece) for piece in pieces]
        waiting = [piece for piece in waiting if piece.nbytes]
        waiting.reverse()
        os.ftruncate(self._descriptor, sum(piece.nbytes for piece in waiting))
        while waiting:
            batch = waiting[: -_PIECES_MAX - 1 : -1]
            written = os.writev(self._descriptor, batch)
            while waiting and written >= len(waiting[-1]):
                written -= len(waiting.pop())
            if written:
                waiting[-1] = waiting[-1][written:]

    def finish(self, size_bytes: int) -> None:
        """End the content; raises OSError."""
        os.ftruncate(self._descriptor, size_bytes)  # it may be longer: files are reused

    def close(self) -> None:
        """Close the file; its mappings stay. A second call does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class ImageDraft(Draft):
    """A file in an image, written in place."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._end_bytes = 0  # what lies before is content

    def memory(self, size_bytes: int, offset: int) -> memoryview:
        with _as_os_error():
            return self._file.mapped(size_bytes, offset, writable=True)

    def reserve(self, size_bytes: int) -> None:
        with _as_os_error():
            self._file.reserve(size_bytes)

    def region(self, make: MakeRegion, offset: int) -> OutputRegion:
        growth = self._file.growth()
        return make(os.dup(growth.fileno()), offset, growth)

    def write(self, content: memoryview, offset: int) -> None:
        end_bytes = offset + content.nbytes
        with _as_os_error():
            if end_bytes > self._end_bytes:
                self._file.reserve(end_bytes)
                self._file.set_written(end_bytes)  # or what is in place before would become zeros
                self._end_bytes = end_bytes
            self._file.write(content, offset)

    def write_all(self, pieces: Sequence[Buffer]) -> None:
        offset = 0
        self.reserve(sum(memoryview(piece).nbytes for piece in pieces))
        for piece in pieces:
            self.write(memoryview(piece), offset)
            offset += memoryview(piece).nbytes
        self.finish(offset)

    def finish(self, size_bytes: int) -> None:
        with _as_os_error():
            self._file.set_written(size_bytes)
            self._file.commit()

    def close(self) -> None:
        self._file.close()


class EmulatedDraft(Draft):
    """A file in an image of the strict build, in which a core sees only what others have committed.

    Private memory stands for the cache of this core.
    """

    def __init__(self, file: File) -> None:
        super().__init__(os.memfd_create("ciel-draft", os.MFD_CLOEXEC))
        self._file = file

    def write_all(self, pieces: Sequence[Buffer]) -> None:
        super().write_all(pieces)
        self.finish(os.fstat(self._descriptor).st_size)

    def finish(self, size_bytes: int) -> None:
        with _as_os_error():
            self._file.write(mapped(self._descriptor, size_bytes), 0)
            self._file.commit()

    def close(self) -> None:
        super().close()
        self._file.close()


def open_draft(channel: Channel, index: int, path: str, size_bytes: int | None) -> Draft:
    """Open the output of a number, at the path that the worker gave; raises OSError.

    If it is a place that this process cannot open, request a file instead. `size_bytes`: if known.
    """
    if path.startswith(IMAGE):
        try:
            return open_place(path)
        except OSError:
            channel.request("rollback_output", {"index": index})
            request = {"index": index, "size": size_bytes, "in_file": True}
            path = channel.call("open_output", request)["filename"]
    return Draft(os.open(path, os.O_RDWR | os.O_CLOEXEC))


def open_place(place: str) -> Draft:
    """Open a place for writing; raises OSError."""
    from ciel.scc import attachments

    with _as_os_error():
        file = attachments.open_draft(place)
    return EmulatedDraft(file) if file.build == "strict" else ImageDraft(file)


@contextmanager
def _as_os_error() -> Iterator[None]:
    """Translate errors of an image into OSError."""
    from ciel.storage.errors import NoSpaceError, StorageError

    try:
        yield
    except StorageError as error:
        is_full = isinstance(error, NoSpaceError) or getattr(error, "reason", "") == "NO_BLOCKS"
        raise OSError(errno.ENOSPC if is_full else errno.EIO, str(error)) from error
