"""The metrics of a worker, for Prometheus: counters in memory, and numbers quick to compute."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from ciel.net.exposition import Family, counter, gauge
from ciel.storage.interface import ObjectStore
from ciel.worker.attempt_reports import AttemptReports
from ciel.worker.disk_jobs import DiskJobs
from ciel.worker.events import Events
from ciel.worker.master_session import MasterSession
from ciel.worker.state.machine import WorkerMachine
from ciel.worker.state.orders import Phase
from ciel.worker.transfer.fetching import Fetcher

Counts = Callable[[], dict[str, dict[str, int]]]
"""Returns counters, by subject."""

_LEVEL_GAUGES = {
    "used_bytes": "Bytes of committed objects.",
    "reserved_bytes": "Bytes promised to writers.",
    "objects": "Objects in the level.",
    "readers": "Readers that are open.",
    "writers": "Writers that are open.",
}
_LEVEL_COUNTERS = {
    "evicted": "Objects moved down to the next level.",
    "dropped": "Objects deleted to free space, since they can be fetched again.",
    "promoted": "Objects moved up to this level.",
    "spilled": "Objects started in this level because the upper one was full.",
    "waited": "Writer steps that waited because the level was full.",
}

_HELP_TEXTS = {
    "fetches": "Fetches of inputs, by method.",
    "shmd": "Counters of the daemon of the store.",
    "messages": "Messages sent to the master, by kind.",
}
_OPEN_NOW = frozenset(("connections", "requests_under_way", "open_writes"))


class WorkerMetrics:
    """Collects metrics from the parts of a worker."""

    def __init__(
        self,
        machine: WorkerMachine,
        master: MasterSession,
        events: Events,
        reports: AttemptReports,
        fetcher: Fetcher,
        store: ObjectStore,
        disk_jobs: DiskJobs,
    ) -> None:
        self._machine = machine
        self._master = master
        self._events = events
        self._reports = reports
        self._fetcher = fetcher
        self._store = store
        self._disk_jobs = disk_jobs

    def counts(self) -> dict[str, dict[str, int]]:
        """Return the counters of fetches and messages, by subject."""
        return {**self._fetcher.counted(), "messages": self._master.sent_counts()}

    def families(self) -> list[Family]:
        machine, is_connected = self._machine, self._master.is_connected
        ended = sorted(self._reports.ended_counts.items())
        phases = Counter(attempt.phase for attempt in machine.attempts.values())
        return [
            gauge("ciel_worker_connected", "Whether it is connected to its master.", is_connected),
            gauge("ciel_worker_slots", "Slots of the worker.", machine.slots),
            gauge("ciel_worker_slots_free", "Slots that are free.", max(0, machine.slots_free)),
            Family(
                "ciel_worker_attempts", "gauge", "Attempts on the worker, by phase.",
                [({"phase": phase.value}, phases[phase]) for phase in Phase],
            ),
            Family(
                "ciel_worker_attempts_ended_total", "counter", "Attempts that have ended.",
                [({"how": how}, count) for how, count in ended],
            ),
            counter(
                "ciel_worker_events_total", "Events in the log of this worker.",
                self._events.count,
            ),
            gauge("ciel_worker_pinned_objects", "Objects pinned.", len(machine.uploads.pinned)),
            gauge("ciel_disk_jobs_waiting", "Disk jobs that wait.", self._disk_jobs.waiting_count),
            gauge(
                "ciel_disk_pending_bytes", "Bytes of disk jobs that wait or run.",
                self._disk_jobs.pending_bytes,
            ),
            *self._store_families(),
            *self._fetch_families(),
        ]  # fmt: skip

    def _store_families(self) -> list[Family]:
        levels = self._store.levels()

        def samples(field: str) -> list[tuple[dict[str, str], float]]:
            return [({"level": level.name}, getattr(level, field)) for level in levels]

        bounded = [level for level in levels if level.capacity_bytes is not None]
        capacity = [({"level": level.name}, level.capacity_bytes or 0) for level in bounded]
        return [
            Family(
                "ciel_store_capacity_bytes", "gauge", "Capacity of the level in bytes.", capacity
            ),
            *[
                Family(f"ciel_store_{field}", "gauge", text, samples(field))
                for field, text in _LEVEL_GAUGES.items()
            ],
            *[
                Family(f"ciel_store_{field}_total", "counter", text, samples(field))
                for field, text in _LEVEL_COUNTERS.items()
            ],
        ]

    def _fetch_families(self) -> list[Family]:
        families = []
        for about, counts in self.counts().items():
            now = [({"what": what}, count) for what, count in counts.items() if what in _OPEN_NOW]
            ever = [({"what": w}, count) for w, count in counts.items() if w not in _OPEN_NOW]
            text = _HELP_TEXTS.get(about, "")
            families.append(Family(f"ciel_{about}_total", "counter", text, ever))
            if now:
                families.append(Family(f"ciel_{about}_open", "gauge", text, now))
        return families
