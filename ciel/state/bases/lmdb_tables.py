"""How a base lies in an environment of LMDB.

    rows     key -> row (`rows`)
    ends     when it ends (8 bytes, big-endian, microseconds since the epoch), key -> nothing
    about    b"format" -> b"1"; and more, if a daemon owns the environment

A row that has ended is missing for every reader, whether or not it has been removed.
"""

from __future__ import annotations

import fcntl
import os
import struct
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import lmdb

from ciel.state.bases.rows import end_of, garbage_of, pack_row, value_of
from ciel.state.batches import Row
from ciel.state.errors import BaseFullError, BaseUrlError, KvError, LimitError

FORMAT: Final = b"1"
MAP_BYTES: Final = 1 << 40
"""The largest size of a base. The file grows as rows are added."""
READERS_MAX: Final = 512
_END: Final = struct.Struct(">Q")


class Tables:
    """An open environment. `translated` is the border at which errors of LMDB become ours."""

    def __init__(
        self, path: Path, *, is_synced: bool, is_alone: bool = False, map_bytes: int = MAP_BYTES
    ) -> None:
        """Open or create a base in a directory; raises KvError.

        `is_synced`: commits wait for the disk. `is_alone`: no other process may use the base.
        `map_bytes`: the largest size of the file, unless it is larger already.
        """
        self.path = path
        self._lock_fd = -1
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock_fd = _lock(path, is_alone=is_alone)
            self.env = lmdb.open(
                str(path), map_size=map_bytes, max_dbs=3, max_readers=READERS_MAX, mode=0o600,
                sync=is_synced, metasync=is_synced, writemap=not is_synced,
                readahead=False,
            )  # fmt: skip
            self.env.reader_check()  # killed readers would keep old pages for ever
            self.rows = self.env.open_db(b"rows")
            self.ends = self.env.open_db(b"ends")
            self.about = self.env.open_db(b"about")
            with self.env.begin(write=True, db=self.about) as txn:
                found = txn.get(b"format")
                if found is None:
                    txn.put(b"format", FORMAT)
        except OSError as error:
            raise BaseUrlError(f"no base can be opened at {path}: {error.strerror}") from None
        except lmdb.Error as error:
            os.close(self._lock_fd)
            raise BaseUrlError(f"no base can be opened at {path}: {error}") from None
        if found not in (None, FORMAT):
            self.close()
            raise BaseUrlError(
                f"the base at {path} has format {found.decode(errors='replace')}, and this version "
                f"of ciel reads {FORMAT.decode()}"
            )

    def begin(self, *, write: bool) -> Any:
        """Begin a transaction; raises lmdb.Error."""
        try:
            return self.env.begin(write=write, db=self.rows)
        except lmdb.ReadersFullError:
            if not self.env.reader_check():
                raise
            return self.env.begin(write=write, db=self.rows)

    def close(self) -> None:
        self.env.close()
        os.close(self._lock_fd)


class SharedTables:
    """The environments that this process has open: LMDB allows one of each directory.

    A forked process must not use the environments of its parent, and opens new ones.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[tuple[int, Path], tuple[Tables, bool, int]] = {}

    def open(self, path: Path, *, is_synced: bool) -> Tables:
        """Return the tables of a directory; `release` must follow. Raises KvError."""
        place = os.getpid(), path.resolve()
        with self._lock:
            tables, was_synced, users = self._open.get(place, (None, is_synced, 0))
            if was_synced != is_synced:
                raise BaseUrlError(f"the base at {path} is open in this process with another sync")
            if tables is None:
                tables = Tables(path, is_synced=is_synced)
            self._open[place] = tables, is_synced, users + 1
            return tables

    def release(self, tables: Tables) -> None:
        """Close tables when all who opened them have released them."""
        with self._lock:
            for place, (found, is_synced, users) in list(self._open.items()):
                if found is tables and users > 1:
                    self._open[place] = tables, is_synced, users - 1
                elif found is tables:
                    del self._open[place]
                    tables.close()


shared = SharedTables()


def _lock(directory: Path, *, is_alone: bool) -> int:
    """Return a descriptor that holds a lock of the directory; raises OSError and BaseUrlError."""
    fd = os.open(directory / "users", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, (fcntl.LOCK_EX if is_alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        by = "other processes use" if is_alone else "a ciel-kv serves"
        raise BaseUrlError(f"{by} the base at {directory}") from None
    return fd


class TableView:
    """A transaction as a view (`batches.View`) at a time, in microseconds since the epoch."""

    def __init__(self, tables: Tables, txn: Any, now_us: int) -> None:
        self._tables = tables
        self.txn = txn
        self.now_us = now_us

    def get(self, key: bytes) -> bytes | None:
        return value_of(self.txn.get(key), self.now_us)

    def put(self, key: bytes, value: bytes, ttl_s: float | None) -> None:
        end_us = None if ttl_s is None else self.now_us + int(ttl_s * 1e6)
        self.write(key, pack_row(value, end_us))

    def replace(self, key: bytes, value: bytes) -> None:
        self.write(key, pack_row(value, end_of(self.txn.get(key))))

    def delete(self, key: bytes) -> None:
        self.write(key, None)

    def write(self, key: bytes, row: bytes | None) -> None:
        """Replace a row, or remove it."""
        txn, ends = self.txn, self._tables.ends
        before = txn.pop(key) if row is None else txn.replace(key, row)
        if (end_us := end_of(before)) is not None:
            txn.delete(_END.pack(end_us) + key, db=ends)
        if (end_us := end_of(row)) is not None:
            txn.put(_END.pack(end_us) + key, b"", db=ends)
        if (garbage := garbage_of(before, row)) is not None:
            txn.put(garbage, b"\0")

    def write_all(self, rows: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Replace or remove rows in the order of their keys; the callers have marked garbage."""
        txn, ends = self.txn, self._tables.ends
        if txn.stat(ends)["entries"]:
            for key, row in rows:
                self.write(key, row)
            return
        left = list(rows)  # without ends, replaced rows do not matter
        txn.cursor().putmulti([item for item in left if item[1] is not None])
        for key, row in left:
            if row is None:
                txn.delete(key)
            elif (end_us := end_of(row)) is not None:
                txn.put(_END.pack(end_us) + key, b"", db=ends)

    def clear(self, kept: bytes) -> None:
        """Remove all rows with keys before one."""
        left: list[tuple[bytes, bytes | None]] = []
        cursor = self.txn.cursor()
        if cursor.set_range(kept):
            left += cursor
        for table in (self._tables.rows, self._tables.ends):
            self.txn.drop(table, delete=False)
        self.write_all(left)

    def rows(self, first: bytes, last: bytes | None) -> Iterator[Row]:
        cursor = self.txn.cursor()
        if not cursor.set_range(first):
            return
        for key, row in cursor:
            if last is not None and key >= last:
                return
            if row[0] <= 1 and (value := value_of(row, self.now_us)) is not None:
                yield key, value

    def ended(self, keys_max: int, first: bytes = b"") -> tuple[list[bytes], bytes]:
        """Return keys whose rows have ended, the earliest first, and where to go on: `first` of the
        next call, which does not return them again.
        """
        found: list[bytes] = []
        cursor = self.txn.cursor(db=self._tables.ends)
        if cursor.set_range(first):
            for end in cursor.iternext(values=False):
                if _END.unpack_from(end)[0] > self.now_us or len(found) == keys_max:
                    break
                found.append(end[_END.size :])
                first = end + b"\0"
        return found, first


def translated(error: lmdb.Error, base: str) -> KvError:
    """Return an error of LMDB as one of ours."""
    if isinstance(error, lmdb.MapFullError | lmdb.DiskError):
        return BaseFullError(base, str(error))
    if isinstance(error, lmdb.ReadersFullError):
        return LimitError(f"{base} has {READERS_MAX} readers already; close what is not used")
    return KvError(f"{base}: {error}")
