"""The rows of the daemon: LMDB, and the changes since its last commit.

A commit of LMDB waits for the disk, so a thread does it. Meanwhile the daemon goes on with the
changed rows in memory, which a log makes survive the end of the process. Rows are looked up in
three layers: recent changes, changes that the thread commits, and LMDB.
"""

from __future__ import annotations

import heapq
import struct
import threading
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import lmdb

from ciel.state.bases.lmdb_tables import Tables, TableView, translated
from ciel.state.bases.rows import end_of
from ciel.state.errors import KvError
from ciel.state.server.log import Log, Writes, pack_record

CHECKPOINT_ROWS: Final = 10_000
CHECKPOINT_BYTES: Final = 16 << 20
"""With more changed rows, or a longer log, a commit begins."""
WAIT_ROWS: Final = 20 * CHECKPOINT_ROWS
WAIT_BYTES: Final = 20 * CHECKPOINT_BYTES
"""With more, the daemon waits for the commit under way: the disk is slower than the clients."""
_MANY_KEYS: Final = 64
"""More new keys are sorted together; fewer are inserted singly."""
_APPLIED: Final = b"applied"
_NUMBER: Final = struct.Struct(">Q")


class Layer:
    """Changed rows, ordered by key. None: the row was deleted."""

    def __init__(self) -> None:
        self.rows: dict[bytes, bytes | None] = {}
        self._keys: list[bytes] = []

    def update(self, writes: Writes) -> None:
        new = [key for key in writes if key not in self.rows]
        self.rows.update(writes)
        if len(new) > _MANY_KEYS:
            self._keys += new
            self._keys.sort()
        else:
            for key in new:
                insort(self._keys, key)

    def keys(self, first: bytes, last: bytes | None) -> list[bytes]:
        """Return the keys from `first` to before `last`."""
        keys = self._keys
        return keys[bisect_left(keys, first) : None if last is None else bisect_left(keys, last)]

    def copy(self) -> Layer:
        copy = Layer()
        copy.rows, copy._keys = self.rows.copy(), self._keys.copy()
        return copy


class Layers:
    """All rows at one moment: layers of changes, the latest first, above a transaction of LMDB."""

    def __init__(self, layers: list[Layer], txn: Any) -> None:
        self.layers = layers
        self.txn = txn

    def row(self, key: bytes) -> bytes | None:
        """Return a row as it is stored, whether or not it has ended."""
        for layer in self.layers:
            if key in layer.rows:
                return layer.rows[key]
        row: bytes | None = self.txn.get(key)
        return row

    def range(self, first: bytes, last: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """Yield rows in the order of their keys. Nothing may change meanwhile."""
        changed: dict[bytes, bytes | None] = {}
        for layer in reversed(self.layers):
            changed.update([(key, layer.rows[key]) for key in layer.keys(first, last)])
        keys = iter(sorted(changed))
        ahead = next(keys, None)
        for key, row in self._stored(first, last):
            while ahead is not None and ahead < key:
                if (new := changed[ahead]) is not None:
                    yield ahead, new
                ahead = next(keys, None)
            if ahead == key:
                continue  # the loop above yields it before the next stored key
            yield key, row
        while ahead is not None:
            if (new := changed[ahead]) is not None:
                yield ahead, new
            ahead = next(keys, None)

    def _stored(self, first: bytes, last: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        cursor = self.txn.cursor()
        if cursor.set_range(first):
            for key, row in cursor:
                if last is not None and key >= last:
                    return
                yield key, row


class BufferedRows:
    """The rows in a directory that no other process uses meanwhile.

    `call` runs a function soon in the caller's thread. There `on_failed` is called with a reason,
    once, when LMDB or the log cannot be written; then this process must end.
    """

    def __init__(
        self, directory: Path, now_us: Callable[[], int],
        call: Callable[[Callable[[], object]], object],
    ) -> None:  # fmt: skip
        """Open the rows, and repeat what the log has. Raises KvError and OSError."""
        self.name = f"the base at {directory}"
        self.on_failed: Callable[[str], object] = lambda reason: None
        self._now_us = now_us
        self._call = call
        self._tables = Tables(directory, is_synced=True, is_alone=True)
        self._recent = Layer()
        self._committing: Layer | None = None
        self._thread: threading.Thread | None = None
        self._ends: list[tuple[int, bytes]] = []  # of recent rows; some are outdated
        with self._tables.env.begin(db=self._tables.about) as txn:
            found = txn.get(_APPLIED)
        self.number = _NUMBER.unpack(found)[0] if found else 0
        """The number of the last record that was written."""
        self.lost = 0
        """How many records follow a record that a power failure has lost, and were dropped."""
        self._logs = [Log(path) for path in sorted(directory.glob("*.log"))]
        self._repeat()
        self._log = self._new_log(directory)
        self.layers = Layers([self._recent], self._tables.begin(write=False))

    def _repeat(self) -> None:
        """Commit what the logs have, which an earlier process has left."""
        left, is_whole = Layer(), True
        for log in self._logs:
            for number, writes in log.records():
                if number <= self.number:
                    continue  # LMDB has it
                is_whole = is_whole and number == self.number + 1
                if not is_whole:
                    self.lost += 1
                else:
                    left.update(writes)
                    self.number = number
        self._commit(left, self.number)
        for log in self._logs:
            log.remove()
        self._logs.clear()

    def write(self, writes: Writes) -> None:
        """Replace rows, together, and log that; `flush` must follow before anybody learns of it.

        Raises OSError, and then this process must end.
        """
        self.number += 1
        self._log.append(pack_record(self.number, writes))
        recent = self._recent
        recent.update(writes)
        for key, row in writes.items():
            if (end_us := end_of(row)) is not None:
                heapq.heappush(self._ends, (end_us, key))
        if len(recent.rows) > CHECKPOINT_ROWS or self._log.size_bytes > CHECKPOINT_BYTES:
            if self._committing is None:
                self.checkpoint()
            elif len(recent.rows) > WAIT_ROWS or self._log.size_bytes > WAIT_BYTES:
                self._wait()

    def flush(self) -> None:
        """Let all that was written survive the end of this process; raises OSError."""
        self._log.flush()

    def sync(self) -> None:
        """Make all that was flushed durable; another thread may call it. Raises OSError."""
        current = self._log  # read first: a commit that begins now makes it one of the older logs
        for log in (*self._logs, current):
            log.sync()

    def snapshot(self) -> Layers:
        """Return the rows as of now. The caller aborts the transaction. Raises KvError."""
        try:
            txn = self._tables.begin(write=False)
        except lmdb.Error as error:
            raise translated(error, self.name) from error
        return Layers([layer.copy() for layer in self.layers.layers], txn)

    def ended(self, keys_max: int) -> list[bytes]:
        """Return keys whose rows have ended, the earliest first."""
        now_us = self._now_us()
        found = TableView(self._tables, self.layers.txn, now_us).ended(keys_max)
        while self._ends and self._ends[0][0] <= now_us and len(found) < keys_max:
            found.append(heapq.heappop(self._ends)[1])
        is_over = [(key, end_of(self.layers.row(key))) for key in found]
        return [key for key, end_us in is_over if end_us is not None and end_us <= now_us]

    def size_bytes(self) -> int:
        """Return the size of the file of LMDB."""
        info: Any = self._tables.env.info()
        return int(info["last_pgno"] + 1) * int(self._tables.env.stat()["psize"])

    def close(self) -> None:
        """Commit, and close the files. Raises KvError."""
        self._wait()
        self.layers.txn.abort()
        if self._recent.rows:
            self._commit(self._recent, self.number)
        self._log.remove()
        self._tables.close()

    # --- commits ----------------------------------------------------------------------------------

    def checkpoint(self) -> None:
        """Let a thread commit all changes so far, unless a commit is under way."""
        if self._committing is not None:
            return
        self._log.flush()
        self._committing, self._recent = self._recent, Layer()
        self.layers.layers = [self._recent, self._committing]
        self._logs = [self._log]
        self._log = self._new_log(self._tables.path)
        self._thread = threading.Thread(
            target=self._commit_beside, args=(self._committing, self.number), name="ciel-kv-commit"
        )
        self._thread.start()

    def _commit_beside(self, layer: Layer, number: int) -> None:
        try:
            self._commit(layer, number)
        except (KvError, OSError) as error:
            reason = str(error)
            self._call(lambda: self.on_failed(reason))
        else:
            self._call(lambda: self._committed(layer))

    def _commit(self, layer: Layer, number: int) -> None:
        try:
            with self._tables.begin(write=True) as txn:
                view = TableView(self._tables, txn, 0)
                view.write_all(sorted(layer.rows.items()))
                txn.put(_APPLIED, _NUMBER.pack(number), db=self._tables.about)
        except lmdb.Error as error:
            raise translated(error, self.name) from error

    def _committed(self, layer: Layer) -> None:
        """Look into LMDB for a layer that the thread has committed, from now on."""
        if self._committing is not layer:
            return  # `_wait` was faster
        self._committing = None
        self.layers.txn.abort()
        self.layers.txn = self._tables.begin(write=False)
        self.layers.layers = [self._recent]
        for log in self._logs:
            log.remove()
        self._logs.clear()

    def _wait(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            if self._committing is not None:
                self._committed(self._committing)

    def _new_log(self, directory: Path) -> Log:
        return Log(directory / f"{self.number:020}.log", is_new=True)
