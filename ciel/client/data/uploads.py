"""Many files, or pieces of files, to the workers of a cluster: each to the next ones in turn."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Self

from ciel.client.data import objects as data

if TYPE_CHECKING:
    from ciel.client.jobs.client import JobClient
    from ciel.core.refs import Reference

_KNOWN_FOR_S: Final = 5.0  # then somebody who has joined gets something too
_SOUGHT_BYTES: Final = 1 << 20  # at a time, for the end of a block


class Uploads:
    """Brings content to the workers of `client`; every copy lies on another one."""

    def __init__(self, client: JobClient) -> None:
        self._client = client
        self._netlocs: list[str] = []
        self._asked_s = -_KNOWN_FOR_S
        self._connections = data.Connections()
        self._turn = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._connections.close()

    def bring(self, file: IO[bytes], name: str, copies: int = data.REPLICAS) -> Reference:
        """Bring what `file` holds from here on; what is short rides in the reference. Raises
        UploadError.
        """
        netlocs = self._in_turn()
        key = self._client.location.key
        ref = data.upload_file(file, name, netlocs, key, self._connections, copies)
        self._turn += copies
        return ref

    def bring_path(self, path: Path, copies: int) -> Reference:
        """Bring a file; raises OSError, UploadError."""
        with path.open("rb") as file:
            return self.bring(file, str(path), copies)

    def _in_turn(self) -> list[str]:
        now_s = time.monotonic()
        if not self._netlocs or now_s - self._asked_s >= _KNOWN_FOR_S:
            workers = sorted(self._client.ask("workers"), key=lambda worker: worker["queued"])
            self._netlocs, self._asked_s = [worker["netloc"] for worker in workers], now_s
        first = self._turn % len(self._netlocs) if self._netlocs else 0
        return self._netlocs[first:] + self._netlocs[:first]


class Section(io.RawIOBase):
    """A part of a file that is open, read as a file; the file's own position stays."""

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
    """Yield a file in blocks, of `block_bytes`, or until after the first delimiter from there on.
    An empty file has none.
    """
    start = 0
    while start < size_bytes:
        end = min(start + block_bytes, size_bytes)
        if delimiter and end < size_bytes:
            # One that ends just there ends the block.
            end = _after(file, max(start, end - len(delimiter)), size_bytes, delimiter)
        yield io.BufferedReader(Section(file, start, end), data.CHUNK_BYTES)
        start = end


def _after(file: IO[bytes], start: int, size_bytes: int, delimiter: bytes) -> int:
    """Return where the first delimiter from `start` on ends; the end of the file if none comes."""
    while start < size_bytes:
        sought = os.pread(file.fileno(), _SOUGHT_BYTES + len(delimiter) - 1, start)
        found = sought.find(delimiter)
        if found >= 0:
            return start + found + len(delimiter)
        if len(sought) < len(delimiter):
            break  # it became shorter; whoever reads it will tell
        start += len(sought) - len(delimiter) + 1
    return size_bytes
