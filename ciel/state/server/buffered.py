"""The rows of the daemon: LMDB, and the changes since its last commit.

A commit of LMDB waits for the disk, so a thread does it. Meanwhile the daemon goes on with the
changed rows in memory, which a log makes survive the end of the process. Rows are looked up in
three layers: recent changes, changes that the thread commits, and LMDB.

A base with more rows than its capacity is full, and so is one whose last commit found no place.
Then it refuses what would make it larger. The changes of such a commit stay in memory and in the
log, and the next commit has them.
"""

from __future__ import annotations

import heapq
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import lmdb

from ciel.state.bases.lmdb_tables import Tables, TableView, translated
from ciel.state.bases.rows import KEPT, end_of
from ciel.state.errors import BaseFullError, KvError, LimitError
from ciel.state.server.layers import Layer, Layers, Size, measured
from ciel.state.server.log import Log, Writes, pack_record

CAPACITY_BYTES: Final = 256 << 30
FILE_FACTOR: Final = 4
"""The file of LMDB may have this many times the capacity: a page is at least a quarter full."""
FILE_SPARE_BYTES: Final = 4 << 30
"""And so many more bytes, for the pages that commits and snapshots need for a while."""
CHECKPOINT_ROWS: Final = 10_000
CHECKPOINT_BYTES: Final = 16 << 20
"""With more changed rows, or a longer log, a commit begins."""
WAIT_ROWS: Final = 20 * CHECKPOINT_ROWS
WAIT_BYTES: Final = 20 * CHECKPOINT_BYTES
"""With more, the daemon waits for the commit under way: the disk is slower than the clients."""
RETRY_S: Final = 1.0
"""The time after a commit that found no place until the next."""
SNAPSHOTS_MAX: Final = 256
"""Of all connections. LMDB has 512 readers; each keeps it from using pages again."""
_APPLIED: Final = b"applied"
_SIZE: Final = b"size"
_NUMBER: Final = struct.Struct(">Q")
_SIZES: Final = struct.Struct(">QQQQ")  # the number of a transaction of LMDB, and a size


class BufferedRows:
    """The rows in a directory that no other process uses meanwhile.

    `call` runs a function soon in the caller's thread. There `on_failed` is called with a reason,
    once, when LMDB or the log cannot be written; then this process must end.
    """

    def __init__(
        self, directory: Path, now_us: Callable[[], int],
        call: Callable[[Callable[[], object]], object], capacity_bytes: int = CAPACITY_BYTES,
    ) -> None:  # fmt: skip
        """Open the rows, and repeat what the log has. Raises KvError and OSError."""
        self.name = f"the base at {directory}"
        self.on_failed: Callable[[str], object] = lambda reason: None
        self.capacity_bytes = capacity_bytes
        self._now_us = now_us
        self._call = call
        file = directory / "data.mdb"
        self._tables = Tables(
            directory, is_synced=True, is_alone=True,
            map_bytes=FILE_SPARE_BYTES + max(
                FILE_FACTOR * capacity_bytes, file.stat().st_size if file.exists() else 0
            ),
        )  # fmt: skip
        self._recent = Layer()
        self._committing: Layer | None = None
        self._committer: threading.Thread | None = None
        self._error: KvError | OSError | None = None  # of the last commit
        self._has_failed = False
        self._retry_s = 0.0
        self._snapshots: set[Layers] = set()
        with self._tables.env.begin(db=self._tables.about) as txn:
            found = txn.get(_APPLIED)
        self.number = _NUMBER.unpack(found)[0] if found else 0
        """The number of the last record that was written."""
        self.committed = self.number
        """That of the last record that LMDB has."""
        self.lost = 0
        """How many records follow a record that a power failure has lost, and were dropped."""
        self.commits = 0
        self.commits_s = self.last_commit_s = 0.0
        """How long all commits took, and the last one."""
        size = self._repeat(directory)
        self.durable_us = self.committed_us = now_us()
        """When writes were made durable last, since the epoch, and when LMDB got them."""
        self._log = Log(directory / f"{self.number:020}.log", is_new=True)
        self._logs: tuple[Log, ...] = (self._log,)
        """All logs, the oldest first. Another thread reads it, so it is replaced as a whole."""
        self._ended_at = b""  # where `ended` goes on in the list of LMDB
        self.layers = Layers([self._recent], self._tables.begin(write=False), size)

    def _repeat(self, directory: Path) -> Size:
        """Commit what the logs have, which an earlier process has left; return the size."""
        left, is_whole = Layer(), True
        logs = [Log(path) for path in sorted(directory.glob("*.log"))]
        for log in logs:
            for number, writes in log.records():
                if number <= self.number:
                    continue  # LMDB has it
                is_whole = is_whole and number == self.number + 1
                if not is_whole:
                    self.lost += 1
                else:
                    left.update(writes)
                    self.number = number
        with self._tables.begin(write=False) as txn:
            size = Layers([], txn, self._size_in(txn)).size_with(left.rows, {})
        self._commit(left, self.number, size)
        for log in logs:
            log.remove()
        return size

    def _size_in(self, txn: Any) -> Size:
        """Return the size of the rows in LMDB. A change by an embedded client makes it unknown."""
        found = txn.get(_SIZE, db=self._tables.about)
        number, *size = _SIZES.unpack(found) if found else (0, 0, 0, 0)
        if number == txn.id():
            return Size(*size)
        return measured(txn.cursor())

    def write(self, writes: Writes, size: Size | None = None) -> None:
        """Replace rows, together, and log that; `flush` must follow before anybody learns of it.

        `size`: that of all rows afterwards, if the caller knows it. Raises OSError, and then this
        process must end.
        """
        self.layers.size = size or self.layers.size_with(writes, {})
        self.number += 1
        self._log.append(pack_record(self.number, writes))
        recent = self._recent
        recent.update(writes)
        if len(recent.rows) > CHECKPOINT_ROWS or self._log.size_bytes > CHECKPOINT_BYTES:
            if self._committing is None:
                self.checkpoint()
            elif len(recent.rows) > WAIT_ROWS or self._log.size_bytes > WAIT_BYTES:
                self._wait()

    def check_room(self, size: Size) -> None:
        """Raise BaseFullError if there is no room for rows that grow to a size."""
        if self._error is not None:
            why = getattr(self._error, "why", "the daemon ends")
            raise BaseFullError("the base", f"its changes could not be committed: {why}")
        if size.bytes > self.capacity_bytes:
            raise BaseFullError(
                "the base",
                f"its rows have {self.layers.size.bytes:,} bytes, and the limit is "
                f"{self.capacity_bytes:,}; reads and deletes go on",
            )

    def flush(self) -> None:
        """Let all that was written survive the end of this process; raises OSError."""
        self._log.flush()

    def sync(self) -> None:
        """Make all that was flushed durable; another thread may call it. Raises OSError."""
        for log in self._logs:
            log.sync()
        self.durable_us = self._now_us()

    def snapshot(self) -> Layers:
        """Return the rows as of now, until `drop` is called with them. Raises KvError."""
        if len(self._snapshots) >= SNAPSHOTS_MAX:
            raise LimitError(f"a base has at most {SNAPSHOTS_MAX} snapshots at a time")
        try:
            txn = self._tables.begin(write=False)
        except lmdb.Error as error:
            raise translated(error, self.name) from error
        _, *others = self.layers.layers  # these do not change
        snapshot = Layers([self._recent.copy(), *others], txn, self.layers.size)
        self._snapshots.add(snapshot)
        return snapshot

    def drop(self, snapshot: Layers) -> None:
        """End a snapshot; a second call does nothing."""
        self._snapshots.discard(snapshot)
        snapshot.txn.abort()

    @property
    def is_stuck(self) -> bool:
        """Whether the last commit has failed."""
        return self._error is not None

    @property
    def is_full(self) -> bool:
        return self.is_stuck or self.layers.size.bytes >= self.capacity_bytes

    @property
    def snapshots(self) -> int:
        """The number of snapshots that are open."""
        return len(self._snapshots)

    def ended(self, keys_max: int) -> list[bytes]:
        """Return keys whose rows have ended, for the caller to remove them. An entry of LMDB's list
        is returned once: later commits remove it from there.
        """
        now_us = self._now_us()
        view = TableView(self._tables, self.layers.txn, now_us)
        found, self._ended_at = view.ended(keys_max, self._ended_at)
        for layer in self.layers.layers:
            while layer.ends and layer.ends[0][0] <= now_us and len(found) < keys_max:
                found.append(heapq.heappop(layer.ends)[1])
        is_over = [(key, end_of(self.layers.row(key))) for key in found]
        return [key for key, end_us in is_over if end_us is not None and end_us <= now_us]

    def file_bytes(self) -> int:
        """Return the size of the file of LMDB."""
        info: Any = self._tables.env.info()
        return int(info["last_pgno"] + 1) * int(self._tables.env.stat()["psize"])

    def log_bytes(self) -> int:
        """Return the size of the logs."""
        return sum(log.size_bytes for log in self._logs)

    def close(self) -> None:
        """Commit, and close the files. Raises KvError, OSError; the logs have what LMDB lacks."""
        self._wait()
        self.layers.txn.abort()
        try:
            self._log.flush()
            if self._has_failed:
                return
            if self._recent.rows:
                self._commit(self._recent, self.number, self.layers.size)
            for log in self._logs:
                log.remove()
        finally:
            self._tables.close()

    # --- commits ----------------------------------------------------------------------------------

    @property
    def is_committing(self) -> bool:
        return self._committing is not None

    def retry(self) -> None:
        """Commit again what found no place."""
        if self.is_stuck:
            self.checkpoint()

    def checkpoint(self) -> None:
        """Let a thread commit all changes so far, unless a commit is under way, or it is too early
        to repeat one that found no place.
        """
        if self._committing is not None or time.monotonic() < self._retry_s:
            return
        self._log.flush()
        self._committing, self._recent = self._recent, Layer()
        self.layers.layers = [self._recent, self._committing]
        path = self._tables.path / f"{self.number:020}.log"
        if path != self._log.path:  # else the last log has no record yet
            self._log = Log(path, is_new=True)
            self._logs = (*self._logs, self._log)
        work = self._committing, self.number, self.layers.size
        self._committer = threading.Thread(
            target=self._commit_beside, args=work, name="ciel-kv-commit"
        )
        self._committer.start()

    def _commit_beside(self, layer: Layer, number: int, size: Size) -> None:
        started_s = time.monotonic()
        try:
            self._commit(layer, number, size)
            self._error, self.committed = None, number
            self.durable_us = self.committed_us = self._now_us()
        except (KvError, OSError) as error:
            self._error = error
        self.last_commit_s = time.monotonic() - started_s
        self._call(lambda: self._end_commit(layer))

    def _commit(self, layer: Layer, number: int, size: Size) -> None:
        try:
            with self._tables.begin(write=True) as txn:
                view = TableView(self._tables, txn, 0)
                rows = sorted(layer.rows.items())
                if layer.is_cleared:
                    view.clear(KEPT)
                    del rows[0]
                view.write_all(rows)
                txn.put(_APPLIED, _NUMBER.pack(number), db=self._tables.about)
                txn.put(_SIZE, _SIZES.pack(txn.id(), *size), db=self._tables.about)
        except lmdb.Error as error:
            raise translated(error, self.name) from error

    def _end_commit(self, layer: Layer) -> None:
        """Go on after the thread has committed a layer, or has failed."""
        if self._committing is not layer or self._has_failed:
            return  # `_wait` was faster
        if self._error is None:
            self.commits += 1
            self.commits_s += self.last_commit_s
            self._look_into_lmdb()
        elif isinstance(self._error, BaseFullError):
            self._put_back(layer)
        else:
            self._has_failed = True  # what was not committed is read from the layer, until the end
            self.on_failed(str(self._error))

    def _look_into_lmdb(self) -> None:
        """Look up there what was committed, from now on."""
        self._committing = None
        self.layers.txn.abort()
        self.layers.txn = self._tables.begin(write=False)
        self.layers.layers = [self._recent]
        self._ended_at = b""
        *done, self._log = self._logs
        self._logs = (self._log,)
        for log in done:
            log.remove()

    def _put_back(self, layer: Layer) -> None:
        """Keep changes for which there was no place, for the next commit."""
        merged = layer.copy()
        merged.ends = layer.ends
        merged.update(self._recent.rows)
        self._committing, self._recent = None, merged
        self.layers.layers = [merged]
        self._retry_s = time.monotonic() + RETRY_S

    def _wait(self) -> None:
        if self._committer is not None:
            self._committer.join()
            self._committer = None
            if self._committing is not None:
                self._end_commit(self._committing)
