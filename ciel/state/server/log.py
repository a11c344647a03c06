"""The logs of a daemon: the writes since the last commit of LMDB.

A commit ends a log and begins another, which has the number of the last record before it in its
name.

    header   16 bytes: "ciel kv log 1", a line feed, two zero bytes
    record   4 bytes   "KVr1"
             4 bytes   length of the body, little-endian
             4 bytes   CRC-32 of the body
    body     8 bytes   number of the record, and then for each row that was written:
             2 bytes   length of the key; 4 bytes: length of the row, or 2^32 - 1: it was deleted
             the key, the row. An empty key that was deleted: the base was cleared before

The rows of a record are written together or not at all: a crash may leave an incomplete record only
at the end of the file. Records whose number LMDB has reached are skipped.
"""

from __future__ import annotations

import os
import struct
import threading
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from ciel.journal.directory import sync_directory
from ciel.state.errors import BaseUrlError

HEADER: Final = b"ciel kv log 1\n\0\0"
_MARK: Final = b"KVr1"
_PREFIX: Final = struct.Struct("<4sII")
_NUMBER: Final = struct.Struct("<Q")
_ROW: Final = struct.Struct("<HI")
_DELETED: Final = (1 << 32) - 1

Writes = Mapping[bytes, bytes | None]
"""For each key its new row, or None if it was deleted. With the key `CLEARED`, all rows before
`rows.KEPT` were removed first.
"""
CLEARED: Final = b""


def pack_record(number: int, writes: Writes) -> bytes:
    """Return a record."""
    parts = [_NUMBER.pack(number)]
    for key, row in writes.items():
        if row is None:
            parts += (_ROW.pack(len(key), _DELETED), key)
        else:
            parts += (_ROW.pack(len(key), len(row)), key, row)
    body = b"".join(parts)
    return _PREFIX.pack(_MARK, len(body), zlib.crc32(body)) + body


def unpack_body(body: bytes) -> tuple[int, dict[bytes, bytes | None]]:
    """Return the number of a record, and its writes."""
    writes: dict[bytes, bytes | None] = {}
    at = _NUMBER.size
    while at < len(body):
        key_bytes, row_bytes = _ROW.unpack_from(body, at)
        at += _ROW.size
        key = body[at : at + key_bytes]
        at += key_bytes
        if row_bytes == _DELETED:
            writes[key] = None
        else:
            writes[key] = body[at : at + row_bytes]
            at += row_bytes
    return _NUMBER.unpack_from(body)[0], writes


class Log:
    """A log in a file, which one process writes. Raises OSError if the disk refuses."""

    def __init__(self, path: Path, *, is_new: bool = False) -> None:
        self.path = path
        flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        self._fd = os.open(path, flags | (os.O_CREAT | os.O_TRUNC if is_new else 0), 0o600)
        self._using = threading.Lock()
        self._is_name_durable = False
        self._waiting: list[bytes] = []
        self.size_bytes = 0
        if is_new:
            self.append(HEADER)
            self.flush()

    def records(self) -> Iterator[tuple[int, dict[bytes, bytes | None]]]:
        """Yield the records. An incomplete one at the end is left out. Raises BaseUrlError."""
        data = self.path.read_bytes()
        if not HEADER.startswith(data[: len(HEADER)]):
            raise BaseUrlError(f"{self.path} is not a log of a base, or of another version of ciel")
        at = len(HEADER)
        while (body := _body_at(data, at)) is not None:
            yield unpack_body(body)
            at += _PREFIX.size + len(body)
        if _has_record_after(data, at):
            raise BaseUrlError(
                f"{self.path} is damaged at byte {at:,}: intact records follow; restore it from a "
                "copy, or move it away to lose what was written since the last commit"
            )

    def append(self, record: bytes) -> None:
        """Add a record; `flush` makes it survive the end of this process."""
        self.size_bytes += len(record)
        self._waiting.append(record)

    def flush(self) -> None:
        """Hand all records to the operating system."""
        if self._waiting:
            data, self._waiting = b"".join(self._waiting), []
            written = os.write(self._fd, data)
            while written < len(data):
                written += os.write(self._fd, memoryview(data)[written:])

    def sync(self) -> None:
        """Make all flushed records durable; another thread may call it."""
        with self._using:
            if self._fd < 0:
                return  # LMDB has the records
            os.fdatasync(self._fd)
            if not self._is_name_durable:
                sync_directory(self.path.parent)
                self._is_name_durable = True

    def remove(self) -> None:
        """Close and remove the file: LMDB has its records."""
        with self._using:
            os.close(self._fd)
            self._fd = -1
            self.path.unlink()


def _body_at(data: bytes, at: int) -> bytes | None:
    """Return the body of the record at an offset; None unless it is intact."""
    if len(data) - at < _PREFIX.size:
        return None
    mark, length, checksum = _PREFIX.unpack_from(data, at)
    body = data[at + _PREFIX.size : at + _PREFIX.size + length]
    if mark != _MARK or len(body) < max(length, _NUMBER.size) or zlib.crc32(body) != checksum:
        return None
    return body


def _has_record_after(data: bytes, at: int) -> bool:
    place = data.find(_MARK, at + 1)
    while place >= 0:
        if _body_at(data, place) is not None:
            return True
        place = data.find(_MARK, place + 1)
    return False
