"""The data plane of a worker: a real store, HTTP server and fetcher, but no master and no tasks."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ciel.access.keys import Key
from ciel.core.ids import ObjectId
from ciel.core.plans import Plan
from ciel.core.refs import Concrete, Reference, Stream
from ciel.net.transfers import Transfers
from ciel.net.transports import FrontDoorFactory, listen
from ciel.shm.daemon import Daemon, neighbour
from ciel.storage.interface import ObjectStore, ObjectWriter, Verify
from ciel.testing.homes import wait_for
from ciel.worker.checksums import Checksums
from ciel.worker.disk_jobs import Admit, at_once
from ciel.worker.resources.root import WorkerSite
from ciel.worker.resources.uploads import IncomingUploads
from ciel.worker.state.orders import FetchObject
from ciel.worker.streams.growing import Growing, Streams
from ciel.worker.transfer.fetching import Fetcher

KEY = Key(bytes(range(32)))
GROUP = f"data-workers-{os.getpid()}"
WITHIN_S = 20


class DataWorker:
    """Serves stored and growing objects, fetches objects, and records the reports of its fetcher.

    `run` makes calls in the reactor's thread, and has the attribute `reactor`. If there is a
    `spool`, the store has a daemon in that directory, which finds peer stores.
    """

    def __init__(
        self, run: Any, store: ObjectStore, spool: Path | None = None, *, admit: Admit = at_once
    ) -> None:
        self.run = run
        self.store = store
        reactor = run.reactor
        self.kept: list[str] = []
        self.streams = run(Streams, reactor)
        self.site = WorkerSite(reactor, KEY)
        house = FrontDoorFactory(reactor, lambda: None, self.site.site)  # type: ignore[arg-type, return-value]  # no frames come
        self.listener = run(listen, reactor, "127.0.0.1:0", house)
        self.netloc = str(self.listener.address)
        self.site.serve_as(self.netloc)
        uploads = IncomingUploads(reactor, store, self.netloc, lambda _: None, admit)
        checksums = Checksums(reactor, store, Verify.FIRST)
        self.site.serve_objects(store, self.streams, uploads, checksums)
        self.transfers = run(Transfers, reactor)
        self.neighbours: Daemon | None = None
        if spool is not None:
            self.serve_neighbours(spool)
        self.fetcher = Fetcher(
            reactor, self.transfers, store, self.streams, KEY, self, peer_stores=self.neighbours,
            admit=admit, checksums=checksums,
        )  # fmt: skip
        self.timed: list[tuple[str, int, float]] = []
        self.opened: list[ObjectId] = []
        self.differing: list[ObjectId] = []
        self.unreached: tuple[str, ...] = ()  # by the last fetch
        self.received: list[tuple[Any, ...]] = []
        self._changed = threading.Event()

    def serve_neighbours(self, spool: Path) -> None:
        """Open the daemon of the store."""
        self.neighbours = self.run(
            neighbour, self.run.reactor, self.store, spool, cluster_id=GROUP, netloc=self.netloc,
            kept=self.kept.append,
        )  # fmt: skip

    def copied(self, netloc: str, size_bytes: int, run_s: float) -> None:
        self.timed.append((netloc, size_bytes, run_s))

    def content_differs(self, object_id: ObjectId) -> None:
        self.differing.append(object_id)

    def stream_opened(self, object_id: ObjectId) -> None:
        self.opened.append(object_id)

    def fetched(self, object_id: ObjectId, size_bytes: int) -> None:
        self._record(object_id, size_bytes)

    def plans_again(self, ref: Reference, since_s: float) -> tuple[Plan, ...]:
        return ()

    def fetch_failed(
        self,
        object_id: ObjectId,
        losses: tuple[str, ...],
        details: str,
        *,
        unreached: tuple[str, ...] = (),
        lacks_room: bool = False,
    ) -> None:
        self.unreached = unreached
        self._record(object_id, losses, details)

    def _record(self, *words: Any) -> None:
        self.received.append(words)
        self._changed.set()

    def begin_fetch(self, ref: Reference, *plans: Plan) -> None:
        self.received.clear()
        self.opened.clear()
        self._changed.clear()
        self.run(self.fetcher.fetch, FetchObject(ref, plans))

    def end_of_fetch(self) -> tuple[Any, ...]:
        """Wait for the end of a fetch; return the only report of the fetcher."""
        assert self._changed.wait(WITHIN_S)
        (only,) = self.received
        return only

    def fetch(self, ref: Reference, *plans: Plan) -> tuple[Any, ...]:
        self.begin_fetch(ref, *plans)
        return self.end_of_fetch()

    def has(self, object_id: str, size_bytes: int | None = None) -> Concrete:
        return Concrete(ObjectId(object_id), size_bytes, frozenset((self.netloc,)))

    def makes(self, object_id: str) -> Stream:
        return Stream(ObjectId(object_id), frozenset((self.netloc,)))

    def open_stream(self, object_id: str) -> tuple[ObjectWriter, Growing]:
        """Start to write an object that readers can read while it grows."""
        writer = self.store.begin(object_id)
        growing: Growing = self.run(self.streams.open, object_id, writer.fileno())
        return writer, growing

    def await_opened(self, what: str = "the stream to be read") -> None:
        wait_for(lambda: bool(self.opened), what)

    def when(self, growing: Growing, at_least_bytes: float) -> threading.Event:
        """Return an event that is set once that many bytes exist, or the object is complete."""
        happened = threading.Event()
        call: Callable[[Growing], None] = lambda _: happened.set()  # noqa: E731
        self.run(self.streams.when, growing, at_least_bytes, call)
        return happened

    def leave(self) -> None:
        if self.neighbours is not None:
            self.run(self.neighbours.close)
        self.run(self.transfers.close)
        self.run(self.listener.close)
        wait_for(lambda: not self.site.site.channels, "the end of connections")
        self.run(self.streams.close)
