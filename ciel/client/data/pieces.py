"""Presents parts of files, and sequences of buffers, as files."""

from __future__ import annotations

import bisect
import io
import os
from collections.abc import Iterator, Sequence
from typing import IO, Any, Final

CHUNK_BYTES: Final = 1 << 20
_SEARCHED_BYTES: Final = 1 << 20  # how much is searched at a time for the end of a block


class ShrunkError(OSError):
    """A file became shorter while it was read."""


class Limited:
    """Exactly `size_bytes` bytes of a file, from `origin` on.

    Another process may change the size of the file meanwhile.
    """

    def __init__(self, file: IO[bytes], origin: int, size_bytes: int) -> None:
        file.seek(origin)
        self._file = file
        self._missing_bytes = size_bytes

    def read(self, size_bytes: int = CHUNK_BYTES, /) -> bytes:
        """Read as from a file; raises ShrunkError if the file ends too early."""
        chunk = self._file.read(min(size_bytes, self._missing_bytes))
        if not chunk and self._missing_bytes:
            raise ShrunkError("the file became shorter while it was sent")
        self._missing_bytes -= len(chunk)
        return chunk


class Pieces(io.RawIOBase):
    """The concatenation of several buffers, without a copy."""

    def __init__(self, pieces: Sequence[Any]) -> None:
        self._pieces = [memoryview(piece).cast("B") for piece in pieces if memoryview(piece).nbytes]
        self._starts = [0]
        for piece in self._pieces:
            self._starts.append(self._starts[-1] + piece.nbytes)
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._starts[-1]}[whence]
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        with memoryview(buffer).cast("B") as room:
            number = bisect.bisect_right(self._starts, self._position) - 1
            if number >= len(self._pieces):
                return 0
            start = self._position - self._starts[number]
            part = self._pieces[number][start : start + len(room)]
            room[: len(part)] = part
        self._position += len(part)
        return len(part)


class Section(io.RawIOBase):
    """A part of an open file. Reading it does not change the position of the file."""

    def __init__(self, file: IO[bytes], start: int, end: int) -> None:
        self._fd = file.fileno()
        self._start, self._end = start, end
        self._position = start

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: self._start, os.SEEK_CUR: self._position, os.SEEK_END: self._end}
        self._position = base[whence] + offset
        return self._position - self._start

    def readinto(self, buffer: Any) -> int:
        with memoryview(buffer).cast("B") as room:
            wanted = max(0, min(len(room), self._end - self._position))
            read = os.preadv(self._fd, [room[:wanted]], self._position)
        self._position += read
        return read


def sections(
    file: IO[bytes], size_bytes: int, block_bytes: int, delimiter: bytes
) -> Iterator[IO[bytes]]:
    """Yield a file in blocks of `block_bytes`; an empty file has no blocks.

    With a delimiter, each block is extended to the end of the next delimiter.
    """
    start = 0
    while start < size_bytes:
        end = min(start + block_bytes, size_bytes)
        if delimiter and end < size_bytes:
            # A delimiter that ends exactly at the end of the block also counts.
            end = _after(file, max(start, end - len(delimiter)), size_bytes, delimiter)
        yield io.BufferedReader(Section(file, start, end), CHUNK_BYTES)
        start = end


def _after(file: IO[bytes], start: int, size_bytes: int, delimiter: bytes) -> int:
    """Return the end of the first delimiter from `start` on, or the end of the file."""
    while start < size_bytes:
        text = os.pread(file.fileno(), _SEARCHED_BYTES + len(delimiter) - 1, start)
        found = text.find(delimiter)
        if found >= 0:
            return start + found + len(delimiter)
        if len(text) < len(delimiter):
            break  # the file became shorter; reading the block reports it
        start += len(text) - len(delimiter) + 1
    return size_bytes
