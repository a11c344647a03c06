"""Reports to the master what the store holds, how long jobs wait for its disk, and a full disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from twisted.internet.task import LoopingCall
from twisted.logger import Logger

from ciel.core.admission import level_of
from ciel.core.events import DiskQueued, StoresReported
from ciel.execution.report import device_text
from ciel.net.ticks import Ticks
from ciel.storage.interface import ObjectStore
from ciel.storage.space import lacks_room
from ciel.worker.disk_jobs import DiskJobs
from ciel.worker.disk_permits import DiskPermits
from ciel.worker.master_session import MasterSession

log = Logger(__name__)  # compiled code cannot determine its own module

INTERVAL_S: Final = 1.0
"""Between two checks, and reports of what the store holds. People read the reports; the master
decides only by whether the disk is full.
"""

Queue = Callable[[], tuple[int, float]]
"""Returns the length of the queue for the store's disk, in bytes and in seconds."""


class StoreReports:
    """Sends a report when something has changed since the last one.

    It also notices when another program removes the store: then the worker is of no use, and `lost`
    is called with the reason.
    """

    def __init__(
        self,
        reactor: Any,
        ticks: Ticks,
        master: MasterSession,
        store: ObjectStore,
        disk_jobs: DiskJobs,
        queue: Queue,
        permits: DiskPermits,
        lost: Callable[[str], object],
        spool: str,
    ) -> None:
        """`spool`: the work directory."""
        self._spool = spool
        self._is_full = False
        self._ticks = ticks
        self._master = master
        self._store = store
        self._disk_jobs = disk_jobs
        self._queue = queue
        self._permits = permits
        permits.on_new_name = lambda: ticks.at_end(self.report)
        self._lost = lost
        self._disk_level = 0  # the last one reported
        self._latest: StoresReported | None = None
        self._loop = LoopingCall(self._check)
        self._loop.clock = reactor
        self._loop.start(INTERVAL_S, now=False)
        disk_jobs.on_change(self._disk_changed)

    def joined(self) -> None:
        """Report everything: a new master knows nothing."""
        self._disk_level = 0
        self._latest = None
        self._disk_changed()
        self.report()  # at once, for people who ask at once

    def has_lost_store(self) -> bool:
        """Check whether the store was removed; if so, have the worker leave."""
        path = self._store.gone()
        if path:
            self.close()
            self._lost(f"{path}, where this worker stores its objects, was removed or replaced")
        return bool(path)

    def _check(self) -> None:
        self._master.confirm()
        if not self.has_lost_store():
            self.report()

    def report(self) -> None:
        """Report the changes since the last report."""
        is_full = lacks_room(self._spool)
        if is_full != self._is_full:
            self._is_full = is_full
            what = "is full, so tasks run here only if no other worker can run them"
            what = what if is_full else "has room again"
            log.warn("{device} {what}", device=device_text(self._spool), what=what)
        if not self._master.is_connected:
            return
        disks = self._permits.limits()
        levels = tuple([level._asdict() for level in self._store.levels()])
        report = StoresReported(levels, self._disk_jobs.waiting_count, is_full, disks)
        if report != self._latest:
            self._latest = report
            self._master.send(report)

    def _disk_changed(self) -> None:
        self._ticks.at_end(self._report_disk)

    def _report_disk(self) -> None:
        pending_bytes, wait_s = self._queue()
        level = level_of(wait_s)
        if level != self._disk_level and self._master.is_connected:
            self._disk_level = level
            self._master.send(DiskQueued(pending_bytes, wait_s) if level else DiskQueued(0, 0.0))

    def close(self) -> None:
        if self._loop.running:
            self._loop.stop()
