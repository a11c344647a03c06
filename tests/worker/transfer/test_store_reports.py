"""Tests a worker's reports about its store, and which objects it allows the store to drop."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.task import Clock

from ciel.core.events import CopyTimed, MeetWorkers, Neighbour, StoresReported
from ciel.core.ids import ObjectId
from ciel.core.placement import MEASURED_FROM_BYTES
from ciel.net.ticks import Ticks
from ciel.storage.files import FileStore
from ciel.storage.interface import Verify
from ciel.storage.shelf import ShelfOptions
from ciel.worker.checksums import Checksums
from ciel.worker.disk_jobs import DiskJobs as RealDiskJobs
from ciel.worker.disk_permits import DiskPermits
from ciel.worker.events import Events
from ciel.worker.fetch_reports import FetchReports
from ciel.worker.master_session import MasterSession
from ciel.worker.retention import Retention
from ciel.worker.service import WorkerService
from ciel.worker.state.machine import WorkerMachine
from ciel.worker.state_boards import StateBoards
from ciel.worker.store_reports import INTERVAL_S, StoreReports

A, B = ObjectId("a"), ObjectId("b")


class Advised(FileStore):
    """A store that records the callbacks it receives."""

    def advise(self, can_be_had_again: Any, dropped: Any, turn: Any) -> None:
        self.can_be_had_again, self.dropped, self.turn = can_be_had_again, dropped, turn


class Peer:
    address = "the master"
    failure = None
    is_congested = False

    def __init__(self) -> None:
        self.sent: list[StoresReported] = []
        self.timed: list[CopyTimed] = []

    def send(self, message: object) -> None:
        if isinstance(message, StoresReported):
            self.sent.append(message)
        elif isinstance(message, CopyTimed):
            self.timed.append(message)

    def close(self) -> None:
        pass


class DiskJobs(RealDiskJobs):
    waiting_count = 3

    def __init__(self) -> None:
        """Initialize nothing of the real class."""

    def on_change(self, notify: object) -> None:
        """Ignore the callback, because nothing ever changes."""

    def turn(self, path: Any, size_bytes: int) -> Any:
        return nullcontext()


class Reactor(Clock):
    def callFromThread(self, call: Any, *arguments: Any) -> None:  # noqa: N802  # Twisted's name
        self.callLater(0, call, *arguments)


class Scene:
    """A worker with a store, a clock and a connection that collects messages."""

    def __init__(self, store: Advised) -> None:
        self.clock, self.peer = Reactor(), Peer()
        self.machine = WorkerMachine("here:1", "host", 1)
        ticks, events, jobs = Ticks(self.clock), Events(self.clock), DiskJobs()
        master = MasterSession(events)
        retention = Retention(
            self.clock, store, self.machine, jobs.turn, Checksums(self.clock, store, Verify.FIRST)
        )
        permits: Any = DiskPermits(jobs, Path("/"))
        self.reports = StoreReports(
            self.clock, ticks, master, store, jobs, lambda: (0, 0.0), permits, pytest.fail, "/"
        )
        service: Any = WorkerService
        self.service = service(
            self.clock, ticks, self.machine, master, self.reports, permits, retention, {}, events,
            lambda: None, lambda error: None,
        )  # fmt: skip
        self.service.set_components(None, None, None, StateBoards("0" * 16, master.send))
        self.fetches = FetchReports(self.service, master, retention, events)

    def close(self) -> None:
        self.reports.close()
        self.service.close()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Advised]:
    with Advised(tmp_path / "store", ShelfOptions()) as store:
        yield store


def test_the_master_is_told_of_the_store_once_it_has_changed(store: Advised) -> None:
    scene = Scene(store)
    scene.clock.advance(INTERVAL_S)
    scene.service.peer_opened(scene.peer)
    assert len(scene.peer.sent) == 1  # at once
    scene.clock.pump([INTERVAL_S] * 3)
    store.put("a", b"content")
    scene.clock.pump([INTERVAL_S] * 3)
    first, second = scene.peer.sent
    assert (first.disk_waiting, first.levels[0]["name"], first.levels[0]["objects"]) == (
        3, "disk", 0,
    )  # fmt: skip
    assert second.levels[0]["objects"] == 1
    scene.service.leave_master()
    scene.service.peer_opened(scene.peer)  # a new master knows nothing about the store
    assert scene.peer.sent[2] == second
    scene.close()


def test_the_master_is_told_how_long_large_copies_took(store: Advised) -> None:
    scene = Scene(store)
    scene.service.peer_opened(scene.peer)
    scene.fetches.copied("there:1", MEASURED_FROM_BYTES - 1, 0.5)
    scene.fetches.fetched(A, MEASURED_FROM_BYTES - 1)
    scene.fetches.copied("there:1", MEASURED_FROM_BYTES, 0.25)
    scene.fetches.fetched(B, MEASURED_FROM_BYTES)
    assert scene.peer.timed == [CopyTimed("there:1", MEASURED_FROM_BYTES, 0.25)]
    scene.close()


def test_only_what_came_from_others_who_are_there_may_be_dropped(store: Advised) -> None:
    scene = Scene(store)
    scene.machine.add_retained({ObjectId("made"): 5})
    scene.fetches.fetched(A, 5)
    assert not store.can_be_had_again("a")  # no other worker is known
    scene.machine.master_message(MeetWorkers((Neighbour("there:1", "other"),)), 0)
    assert store.can_be_had_again("a")
    assert not store.can_be_had_again("made")
    store.dropped("a")
    scene.clock.advance(0)
    assert A not in scene.machine.stored
    assert not store.can_be_had_again("a")
    scene.close()
