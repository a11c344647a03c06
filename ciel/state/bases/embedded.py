"""A base in a directory of this host, which the processes of one user share: LMDB (KVB-2).

LMDB is a B-tree in a mapped file. A writer copies the pages that it changes. So readers see one
moment, however long they read, and neither wait for a writer nor delay one. Writers take turns.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final
from urllib.parse import SplitResult, parse_qsl

import lmdb

from ciel.access.keys import Key
from ciel.state.bases.lmdb_tables import TableView, shared, translated
from ciel.state.bases.rows import value_of
from ciel.state.batches import Request, Result, Row, Step, carry_out_once, check, end_of_prefix
from ciel.state.errors import BaseClosedError, BaseUrlError, KvError
from ciel.state.interface import Base, Capabilities, Snapshot, Watch, end_of_scan

ALWAYS, OFF = "always", "off"
POLL_S: Final = 0.01
"""How often a watch looks for changes; other processes do not tell this one."""
ENDED_MAX: Final = 16
"""How many rows that have ended a batch removes, so that they do not accumulate."""
_SCAN_ROWS: Final = 256
"""How many rows a scan reads at one moment."""


class EmbeddedBase(Base):
    """LMDB in a directory.

    `sync`: `ALWAYS` makes each batch durable before `apply` returns. With `OFF` the operating
    system does it later: a batch survives the end of the process; but a power failure may damage
    the base.
    """

    capabilities = Capabilities()

    def __init__(
        self, path: Path, sync: str = ALWAYS, wall_clock: Callable[[], float] = time.time
    ) -> None:
        """Open or create a base; raises KvError."""
        self.name = f"lmdb:{path}"
        self._tables = shared.open(path, is_synced=sync == ALWAYS)
        self._wall_clock = wall_clock
        self._writing = threading.Lock()
        self._is_closed = False

    def close(self) -> None:
        with self._writing:
            if not self._is_closed:
                self._is_closed = True
                shared.release(self._tables)

    def get(self, key: bytes) -> bytes | None:
        try:
            txn = self._transaction(write=False)
            row = txn.get(key)
            txn.abort()
        except lmdb.Error as error:
            raise self._translated(error) from error
        return value_of(row, self._now_us())

    def read(self, keys: Sequence[bytes]) -> list[bytes | None]:
        with self.snapshot() as moment:
            return [moment.get(key) for key in keys]

    def apply(self, steps: Sequence[Step], request: Request | None = None) -> list[Result]:
        check(steps)
        try:
            with self._writing, self._transaction(write=True) as txn:
                view = TableView(self._tables, txn, self._now_us())
                results = carry_out_once(steps, view, request)
                for key in view.ended(ENDED_MAX)[0]:
                    view.write(key, None)
            return results
        except lmdb.Error as error:
            raise self._translated(error) from error

    def scan(self, first: bytes = b"", last: bytes | None = None) -> Iterator[Row]:
        while True:
            with self.snapshot() as moment:
                rows = list(islice(moment.rows(first, last), _SCAN_ROWS))
            yield from rows
            if len(rows) < _SCAN_ROWS:
                return
            first = rows[-1][0] + b"\0"

    def snapshot(self) -> Snapshot:
        try:
            return _Moment(TableView(self._tables, self._transaction(write=False), self._now_us()))
        except lmdb.Error as error:
            raise self._translated(error) from error

    def watch(self, prefix: bytes) -> Watch:
        return _Poll(self, prefix)

    def batches_so_far(self) -> int:
        """Return a number that each batch of any process increases."""
        try:
            return int(self._tables.env.info()["last_txnid"])
        except lmdb.Error as error:
            raise self._translated(error) from error

    def _transaction(self, *, write: bool) -> Any:
        if self._is_closed:
            raise BaseClosedError(self.name)
        return self._tables.begin(write=write)

    def _now_us(self) -> int:
        return int(self._wall_clock() * 1e6)

    def _translated(self, error: lmdb.Error) -> KvError:
        return BaseClosedError(self.name) if self._is_closed else translated(error, self.name)


def open_lmdb(url: SplitResult, key: Key | None) -> Base:
    """Open `lmdb:DIRECTORY`, or `lmdb:DIRECTORY?sync=off`; raises KvError."""
    sync = dict(parse_qsl(url.query)).get("sync", ALWAYS)
    if sync not in (ALWAYS, OFF) or not url.path:
        raise BaseUrlError(f"{url.geturl()} names no base: lmdb:DIRECTORY, or with ?sync=off")
    return EmbeddedBase(Path(url.path), sync)


class _Moment(Snapshot):
    def __init__(self, view: TableView) -> None:
        self._view: TableView | None = view

    def get(self, key: bytes) -> bytes | None:
        return self._open_view().get(key)

    def rows(self, first: bytes = b"", last: bytes | None = None) -> Iterator[Row]:
        return self._open_view().rows(first, end_of_scan(last))

    def close(self) -> None:
        view, self._view = self._view, None  # LMDB counts a reader as long as its object lives
        if view is not None:
            view.txn.abort()

    def _open_view(self) -> TableView:
        if self._view is None:
            raise KvError("the snapshot is closed")
        return self._view


class _Poll(Watch):
    """Compares the rows when a batch was carried out, so that it reports real changes only."""

    def __init__(self, base: EmbeddedBase, prefix: bytes) -> None:
        self._base = base
        self._prefix = prefix
        self._batches, self._seen = self._look()

    def wait(self, timeout_s: float | None = None) -> bool:
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            if self._base.batches_so_far() != self._batches:
                self._batches, seen = self._look()
                if seen != self._seen:
                    self._seen = seen
                    return True
            left_s = POLL_S if deadline_s is None else min(POLL_S, deadline_s - time.monotonic())
            if left_s <= 0:
                return False
            threading.Event().wait(left_s)

    def _look(self) -> tuple[int, Any]:
        batches = self._base.batches_so_far()
        with self._base.snapshot() as moment:
            return batches, list(moment.rows(self._prefix, end_of_prefix(self._prefix)))
