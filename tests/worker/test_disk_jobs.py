"""Tests that disk jobs wait for their device, by the policy of their process and for the jobs of
other processes.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from twisted.internet.defer import CancelledError, Deferred

from ciel.access.tickets import make_ticket
from ciel.core.admission import Policy
from ciel.core.events import DiskQueued, MeetWorkers, Neighbour
from ciel.executors.stdinout import StdinoutExecutor
from ciel.net.ticks import Ticks
from ciel.storage.device_semaphores import DeviceQueueError, QueueEntry
from ciel.storage.devices import Device, Kind
from ciel.storage.files import FileStore, open_disk
from ciel.storage.interface import Verify
from ciel.testing.data_worker import KEY, DataWorker
from ciel.testing.homes import wait_for
from ciel.worker import disk_jobs
from ciel.worker.checksums import Checksums
from ciel.worker.disk_jobs import SMALL_BYTES, DiskJobs, Permit
from ciel.worker.resources import uploads
from ciel.worker.state_boards import StateBoards
from ciel.worker.store_reports import StoreReports
from ciel.worker.transfer.fetching import Fetcher
from ciel_tests.scenes.one_worker import OneWorker

MIB = 1 << 20
WITHIN_S = 20.0


class Jobs:
    """Disk jobs on two devices, `here` and `there`, that no other test uses."""

    here, there = "/tmp", "/proc"  # with invented devices

    def __init__(self, in_reactor: Any, policy: str, kind: Kind) -> None:
        self.run = in_reactor
        self.devices = {
            path: Device(0, secrets.randbits(60), kind) for path in (self.here, self.there)
        }
        self.changes = 0
        self.jobs = DiskJobs(
            in_reactor.reactor, Policy.from_text(policy),
            find=lambda path: self.devices[os.fspath(path)],
        )  # fmt: skip
        self.jobs.on_change(self._changed)

    def _changed(self) -> None:
        self.changes += 1

    def claim(self, limit: int = 1) -> QueueEntry:
        """Join the queue of the device `here` as another process does."""
        return QueueEntry(self.devices[self.here].name, limit)

    def enter(self, size_bytes: int = MIB, **options: Any) -> Entered:
        entered = Entered(self.run)
        self.run(entered.begin, lambda: self.jobs.enter(self.here, size_bytes, **options))
        return entered

    def leave(self) -> None:
        self.run(self.jobs.close)
        for device in self.devices.values():
            wait_for(lambda name=device.name: not places(name), "an empty line")  # type: ignore[misc]  # a default binds it


class Entered:
    """A job that has joined the queue, and its permit once it is admitted."""

    def __init__(self, run: Any) -> None:
        self._run = run
        self.result: Any = None
        self.admitted = threading.Event()
        self.deferred: Deferred[Permit]

    def begin(self, enter: Callable[[], Deferred[Permit]]) -> None:
        self.deferred = enter()
        self.deferred.addBoth(self._told)

    def _told(self, result: Any) -> None:
        self.result = result
        self.admitted.set()

    def wait(self) -> Permit:
        assert self.admitted.wait(WITHIN_S)
        assert isinstance(self.result, Permit)
        return self.result

    def leave(self) -> None:
        self._run(self.wait().release)


def places(device: str) -> int:
    try:
        return len(os.listdir(f"/dev/shm/ciel-io-{os.geteuid()}/{device}"))
    except FileNotFoundError:
        return 0


Make = Callable[..., Jobs]


@pytest.fixture
def make(in_reactor: Any) -> Iterator[Make]:
    made: list[Jobs] = []

    def make(policy: str = "1", kind: Kind = Kind.ROTATING) -> Jobs:
        made.append(Jobs(in_reactor, policy, kind))
        return made[-1]

    yield make
    for jobs in made:
        jobs.leave()


@pytest.mark.requirement("CIB-40")
def test_a_job_begins_when_the_one_before_it_has_left(make: Make) -> None:
    jobs = make()
    first, second = jobs.enter(), jobs.enter()
    first.wait()
    assert (second.admitted.is_set(), jobs.jobs.waiting_count) == (False, 1)
    assert jobs.jobs.pending_bytes == 2 * MIB
    first.leave()
    second.leave()
    assert (jobs.jobs.waiting_count, jobs.jobs.pending_bytes) == (0, 0)
    assert jobs.changes == 4


def test_a_job_waits_for_other_processes_of_the_host(make: Make) -> None:
    jobs = make()
    with jobs.claim() as other:
        job = jobs.enter()
        wait_for(lambda: places(jobs.devices[jobs.here].name) == 2, "a place in the line")
        assert not job.admitted.is_set()
        other.release()
        job.leave()


def test_other_processes_wait_for_a_job(make: Make) -> None:
    jobs = make()
    job = jobs.enter()
    job.wait()
    with jobs.claim() as other:
        assert not other.check()
        job.leave()
        assert other.wait(WITHIN_S)


@pytest.mark.parametrize("policy, size_bytes", [("off", MIB), ("1", SMALL_BYTES)])
def test_what_is_not_limited_begins_at_once_and_takes_no_permit(
    make: Make, policy: str, size_bytes: int
) -> None:
    jobs = make(policy)
    with jobs.claim():
        entered = [jobs.enter(size_bytes) for _ in range(5)]
        assert all(job.admitted.is_set() for job in entered)
        assert places(jobs.devices[jobs.here].name) == 1
    for job in entered:
        job.leave()


def test_in_memory_nothing_is_limited(make: Make) -> None:
    jobs = make(kind=Kind.MEMORY)
    assert all(jobs.enter().admitted.is_set() for _ in range(5))


def test_a_job_that_is_given_up_holds_up_nobody(make: Make) -> None:
    jobs = make("2")
    with jobs.claim() as other, jobs.claim() as another:
        waiting, begun = jobs.enter(), jobs.enter()
        wait_for(lambda: places(jobs.devices[jobs.here].name) == 4, "places in the line")
        jobs.run(waiting.deferred.cancel)
        assert waiting.admitted.is_set()
        waiting.result.trap(CancelledError)
        other.release()
        another.release()
        begun.leave()


def test_a_job_that_cannot_wait_for_long_begins_without_a_permit(make: Make) -> None:
    jobs = make()
    with jobs.claim():
        jobs.enter(within_s=0.05).leave()


def test_a_slow_network_does_not_keep_a_permit(make: Make) -> None:
    jobs = make()
    with mock.patch.object(disk_jobs, "LAPSE_S", 0.0):
        slow, next_one = jobs.enter(by_network=True), jobs.enter()
    slow.wait()
    next_one.leave()
    slow.leave()


def test_a_job_runs_in_a_thread_and_leaves_with_its_result(make: Make) -> None:
    jobs = make()
    path = jobs.here
    assert jobs.run(jobs.jobs.run, path, MIB, lambda a, b: a + b, 1, 2) == 3
    with pytest.raises(ZeroDivisionError):
        jobs.run(jobs.jobs.run, path, MIB, lambda: 1 // 0)
    assert jobs.jobs.pending_bytes == 0


def test_threads_take_turns(make: Make) -> None:
    jobs = make()
    held, most = 0, 0

    def work() -> None:
        nonlocal held, most
        with jobs.jobs.turn(jobs.here, MIB):
            held += 1
            most = max(most, held)
            held -= 1

    threads = [threading.Thread(target=work) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WITHIN_S)
    assert most == 1
    wait_for(lambda: jobs.jobs.pending_bytes == 0, "the end of all turns")


def test_a_thread_that_waits_goes_on_when_the_jobs_are_closed(make: Make) -> None:
    jobs = make()

    def wait() -> None:
        with jobs.jobs.turn(jobs.here, MIB):
            pass

    with jobs.claim():
        thread = threading.Thread(target=wait)
        thread.start()
        wait_for(lambda: jobs.jobs.waiting_count, "a thread that waits")
        jobs.run(jobs.jobs.close)
        thread.join(WITHIN_S)
        assert not thread.is_alive()


def test_a_device_that_is_stuck_keeps_no_other_from_its_work(make: Make) -> None:
    jobs = make("4")
    stuck = threading.Event()
    try:
        for _ in range(30):  # more than the reactor has threads
            jobs.run(lambda: jobs.jobs.run(jobs.here, MIB, stuck.wait) and None)
        for number in range(10):
            assert jobs.run(jobs.jobs.run, jobs.there, MIB, lambda n=number: n) == number
        assert jobs.jobs.waiting_count >= 26
    finally:
        stuck.set()
        wait_for(lambda: not jobs.jobs.pending_bytes, "the end of all jobs")


def test_jobs_that_wait_fail_when_the_process_ends(make: Make) -> None:
    jobs = make()
    first, second = jobs.enter(), jobs.enter()
    first.wait()
    jobs.run(jobs.jobs.close)
    assert second.admitted.wait(WITHIN_S)
    second.result.trap(CancelledError)


def test_without_the_hosts_queue_the_policy_still_holds(make: Make) -> None:
    jobs = make()
    error = DeviceQueueError("here", OSError("no"))
    with mock.patch.object(disk_jobs, "QueueEntry", side_effect=error):
        first, second = jobs.enter(), jobs.enter()
        first.wait()
    assert not second.admitted.is_set()
    first.leave()
    second.leave()


def test_people_are_told_what_each_device_does(make: Make) -> None:
    jobs = make("adaptive")
    first = jobs.enter()
    first.wait()
    second = jobs.enter()
    assert jobs.jobs.rows() == [
        {
            "device": jobs.devices[jobs.here].name, "kind": "rotating", "policy": "adaptive",
            "at_a_time": 1, "running": 1, "waiting": 1, "pending_bytes": 2 * MIB,
            "bytes_per_s": 100_000_000,
        }
    ]  # fmt: skip
    first.leave()
    second.leave()


# --- in a worker ----------------------------------------------------------------------------------


@pytest.fixture
def worker(in_reactor: Any, store: FileStore, tmp_path: Path) -> Iterator[OneWorker]:
    """A worker with one slot."""
    worker = OneWorker(in_reactor, store, tmp_path, {"stdinout": StdinoutExecutor()}, slots=1)
    yield worker
    worker.stop()


@pytest.fixture
def holder(in_reactor: Any, tmp_path: Path) -> Iterator[DataWorker]:
    """Another worker, which holds an object."""
    with open_disk({}, tmp_path / "held") as held:
        held.put("far", bytes(20 * MIB))
        held.put("far-too", bytes(20 * MIB))
        holder = DataWorker(in_reactor, held)
        yield holder
        holder.leave()


@pytest.mark.requirement("CIB-42")
def test_while_a_task_waits_for_the_disk_another_has_the_slot(
    worker: OneWorker, store: FileStore, holder: DataWorker, make: Make
) -> None:
    jobs = make()
    at_here: Any = partial(jobs.jobs.enter, jobs.here)
    fetcher = Fetcher(
        worker.in_reactor.reactor, holder.transfers, store, worker.streams, KEY, worker.fetches,
        admit=at_here, checksums=Checksums(worker.in_reactor.reactor, store, Verify.FIRST),
    )  # fmt: skip
    worker.service.set_components(
        worker.attempts, worker.interactive, fetcher, StateBoards("0" * 16, worker.master.send)
    )
    queue = partial(jobs.jobs.queue_at, jobs.here)
    reactor, jobs_here = worker.in_reactor.reactor, jobs.jobs
    reports = worker.in_reactor(
        StoreReports, reactor, Ticks(reactor), worker.master, store, jobs_here, queue,
        worker.permits, print, "/",
    )  # fmt: skip
    worker.say(MeetWorkers((Neighbour(holder.netloc, "another"),)))

    def told(what: Callable[[Any], bool]) -> Any:
        return worker.expect(lambda report: isinstance(report, DiskQueued) and what(report))

    with jobs.claim() as other:  # another process has the disk
        ref = holder.has("far", 20 * MIB)
        reader = worker.assign(worker.task("stdinout", command("wc", "-c", inputs=[ref])), ref)
        wait_for(lambda: jobs.jobs.waiting_count, "a job that waits")
        loop = "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; echo $i"
        busy = worker.assign(worker.task("stdinout", command("sh", "-c", loop)))
        assert worker.content(busy) == b"20000\n"
        assert told(lambda report: True) == (20 * MIB, pytest.approx(0.21, rel=0.01))
        assert not [report for report in worker.reports if getattr(report, "task", "") == reader[0]]
        other.release()
        assert worker.content(reader) == b"20971520\n"
    told(lambda report: report == (0, 0.0))
    worker.in_reactor(reports.close)
    assert store.get("far") == bytes(20 * MIB)


def command(*line: str, inputs: list[Any] | None = None) -> dict[str, Any]:
    return {"args": {"command_line": list(line), "inputs": inputs or []}}


def test_an_upload_is_not_read_until_it_may_be_written(
    in_reactor: Any, store: FileStore, make: Make
) -> None:
    jobs = make()
    at_here: Any = partial(jobs.jobs.enter, jobs.here)
    served = DataWorker(in_reactor, store, admit=at_here)
    content = bytes(8 * MIB)  # more than sockets hold
    target = "/control/data/x"
    ticket = make_ticket(KEY, "POST", served.netloc, target, time.time())
    connection = HTTPConnection(served.netloc, timeout=WITHIN_S)
    with jobs.claim() as other:
        headers = {"Authorization": ticket, "Connection": "close"}
        sending = threading.Thread(
            target=connection.request, args=("POST", target, content, headers)
        )
        sending.start()
        wait_for(lambda: jobs.jobs.waiting_count, "an upload that waits")
        assert sending.is_alive()
        other.release()
        sending.join(WITHIN_S)
    assert connection.getresponse().status == 201
    connection.close()
    assert store.get("x") == content
    served.leave()
    assert jobs.jobs.pending_bytes == 0


def test_an_upload_that_was_broken_off_while_it_waited_leaves_the_line(
    in_reactor: Any, store: FileStore, make: Make
) -> None:
    jobs = make()
    at_here: Any = partial(jobs.jobs.enter, jobs.here)
    served = DataWorker(in_reactor, store, admit=at_here)
    target = "/control/data/x"
    ticket = make_ticket(KEY, "POST", served.netloc, target, time.time())
    host, _, port = served.netloc.partition(":")
    head = f"POST {target} HTTP/1.1\r\nHost: {served.netloc}\r\nAuthorization: {ticket}\r\n"
    with jobs.claim(), mock.patch.object(uploads, "UPLOAD_WAITS_S", 0.2):
        with socket.create_connection((host, int(port))) as sending:
            sending.sendall(f"{head}Content-Length: {MIB}\r\n\r\n".encode())
            wait_for(lambda: jobs.jobs.waiting_count, "an upload that waits")
        wait_for(lambda: not served.site.site.channels, "the end of the connection")
    wait_for(lambda: not jobs.jobs.pending_bytes, "an empty line")
    assert store.stat("x") is None
    served.leave()
