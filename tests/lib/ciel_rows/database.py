"""An SQLite database of objects: a row for each object, and rows for the pieces of its content."""

from __future__ import annotations

import errno
import sqlite3
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import quote

import xxhash

from ciel.storage.errors import NoSpaceError, StoreSystemError
from ciel.storage.interface import ObjectInfo
from ciel.storage.space import occupied_bytes

NAME: Final = "objects.db"
PIECE_BYTES: Final = 1 << 18
"""A row has at most this much content, so that large objects need little memory."""
_BUSY_S: Final = 30.0
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS objects (id TEXT PRIMARY KEY, size_bytes INTEGER, checksum TEXT);
CREATE TABLE IF NOT EXISTS pieces (id TEXT, number INTEGER, content BLOB, UNIQUE (id, number));
"""


class Database:
    """The objects of one database. Thread-safe; several processes may open it."""

    def __init__(self, path: Path, *, is_read_only: bool = False) -> None:
        self._path = path
        self._lock = threading.RLock()
        mode = "ro" if is_read_only else "rwc"
        with self._translated():
            self._rows = sqlite3.connect(
                f"file:{quote(str(path))}?mode={mode}", uri=True, timeout=_BUSY_S,
                isolation_level=None, check_same_thread=False,
            )  # fmt: skip
            if not is_read_only:
                self._rows.execute("PRAGMA journal_mode=TRUNCATE")
                self._rows.execute("PRAGMA synchronous=OFF")  # results can be recomputed
                self._rows.executescript(_SCHEMA)

    def close(self) -> None:
        """Close the database."""
        with self._lock:
            self._rows.close()

    @contextmanager
    def _translated(self, wanted_bytes: int = 0) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_FULL:
                raise NoSpaceError(wanted_bytes, 0, place=str(self._path)) from error
            raise StoreSystemError(f"{self._path}: {error}", errno.EIO) from error

    @contextmanager
    def changing(self, wanted_bytes: int = 0) -> Iterator[None]:
        """Do all changes of the block, or none."""
        with self._lock, self._translated(wanted_bytes):
            self._rows.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._rows.execute("COMMIT")
            except BaseException:
                if self._rows.in_transaction:
                    self._rows.execute("ROLLBACK")
                raise

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Read one state of the database."""
        with self._lock, self._translated():
            self._rows.execute("BEGIN")
            try:
                yield
            finally:
                self._rows.execute("ROLLBACK")

    def info(self, object_id: str) -> ObjectInfo | None:
        """Return an object's metadata; None if it is missing."""
        query = "SELECT size_bytes, checksum FROM objects WHERE id = ?"
        with self._lock, self._translated():
            row = self._rows.execute(query, (object_id,)).fetchone()
        return None if row is None else ObjectInfo(object_id, *row)

    def pieces(self, object_id: str) -> Iterator[bytes]:
        """Yield the content of an object; call it within `reading` or `changing`."""
        query = "SELECT content FROM pieces WHERE id = ? ORDER BY number"
        for (content,) in self._rows.execute(query, (object_id,)):
            yield content

    def digest(self, object_id: str) -> str:
        """Compute the checksum of an object; call it within `reading` or `changing`."""
        digest = xxhash.xxh3_64()
        for piece in self.pieces(object_id):
            digest.update(piece)
        return str(digest.hexdigest())

    def add(self, info: ObjectInfo, pieces: Iterable[bytes]) -> None:
        """Add an object; call it within `changing`."""
        row = (info.object_id, info.size_bytes, info.checksum)
        self._rows.execute("INSERT INTO objects VALUES (?, ?, ?)", row)
        numbered = ((info.object_id, number, piece) for number, piece in enumerate(pieces))
        self._rows.executemany("INSERT INTO pieces VALUES (?, ?, ?)", numbered)

    def set_checksum(self, object_id: str, checksum: str) -> None:
        """Record the checksum of an object."""
        query = "UPDATE objects SET checksum = ? WHERE id = ?"
        with self._lock, self._translated():
            self._rows.execute(query, (checksum, object_id))

    def remove(self, object_id: str) -> None:
        """Remove an object; call it within `changing`."""
        for table in ("objects", "pieces"):
            self._rows.execute(f"DELETE FROM {table} WHERE id = ?", (object_id,))

    def list_sizes(self) -> dict[str, int]:
        """Return the size of each object in bytes."""
        with self._lock, self._translated():
            return dict(self._rows.execute("SELECT id, size_bytes FROM objects"))

    def count(self) -> tuple[int, int]:
        """Return the bytes that all objects occupy, and their number."""
        sizes = self.list_sizes().values()
        return sum(map(occupied_bytes, sizes)), len(sizes)
