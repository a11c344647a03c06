"""A worker without a master: real programs, launcher, store and reactor. A test assigns tasks, and
receives the reports.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import ciel.executors.sdk
from ciel.core.admission import Policy
from ciel.core.events import (
    AssignTask,
    CancelTask,
    InputsLost,
    Message,
    SpawnTask,
    StreamsOpened,
    TaskFault,
    TaskReported,
)
from ciel.core.ids import JobId, ObjectId
from ciel.core.offers.resources import Offer
from ciel.core.refs import Concrete, Reference, Value
from ciel.core.tasks import DEFAULT_NEEDS, Needs, TaskSpec
from ciel.execution.environment import Callers
from ciel.execution.executor import Executor
from ciel.execution.kept import KeptAttempts
from ciel.net.ticks import Ticks
from ciel.storage.interface import ObjectStore, Verify
from ciel.testing.builders import JOB, stored
from ciel.testing.homes import wait_for
from ciel.wire.descriptors import make_task
from ciel.worker.attempt_reports import AttemptReports
from ciel.worker.attempts.attempts import Attempts
from ciel.worker.attempts.batch import BatchPrograms
from ciel.worker.attempts.launching import Launching
from ciel.worker.attempts.lifecycle import Lifecycle
from ciel.worker.attempts.scratch import ScratchPool
from ciel.worker.attempts.workplace import Workplace
from ciel.worker.checksums import Checksums
from ciel.worker.disk_jobs import DiskJobs
from ciel.worker.disk_permits import DiskPermits
from ciel.worker.events import Events
from ciel.worker.fetch_reports import FetchReports
from ciel.worker.interactive.process import USUAL_PATIENCE, Patience
from ciel.worker.interactive.programs import InteractivePrograms
from ciel.worker.logs import JobLogs
from ciel.worker.master_session import MasterSession
from ciel.worker.operations import Operations
from ciel.worker.retention import Retention
from ciel.worker.service import WorkerService
from ciel.worker.state.machine import WorkerMachine
from ciel.worker.state.orders import FetchObject, Key
from ciel.worker.state_boards import StateBoards
from ciel.worker.store_reports import StoreReports
from ciel.worker.streams.growing import Streams

SDK = Path(next(iter(ciel.executors.sdk.__path__)))
HERE = "127.0.0.1:8001"
WAIT_S = 20.0


class _NoFetcher:
    """Fails every fetch, since the worker under test is the only one."""

    fetches: FetchReports

    def fetch(self, order: FetchObject) -> None:
        self.fetches.fetch_failed(order.ref.id, (), "nobody has it")


class OneWorker:
    """A worker, and its reports."""

    address = "a test"
    is_congested = False
    failure: Any = None

    def __init__(
        self,
        in_reactor: Any,
        store: ObjectStore,
        path: Path,
        executors: Mapping[str, Executor],
        *,
        slots: int = 2,
        patience: Patience = USUAL_PATIENCE,
        starts_locally: frozenset[str] = frozenset(),
        disk_jobs: DiskJobs | None = None,
        resources: Iterable[Offer] = (),
    ) -> None:
        self.in_reactor, self.store, self.path = in_reactor, store, path
        self.reports: list[Any] = []
        self._changed = threading.Condition()
        self._number = 0
        reactor = in_reactor.reactor
        ticks = Ticks(reactor)
        interactive = frozenset(name for name, executor in executors.items() if executor.talks)
        self.machine = WorkerMachine(
            HERE, "host", slots, interactive=interactive, starts_locally=starts_locally,
            resources=resources,
        )  # fmt: skip
        environ = {"PATH": os.environ["PATH"]}
        self.launching = in_reactor(Launching, reactor, ticks, environ)
        self.streams = in_reactor(Streams, reactor)
        events, callers = Events(reactor), Callers(environ)
        self.master = MasterSession(events)
        disk_jobs = disk_jobs or DiskJobs(reactor, Policy.from_text("off"))
        permits = self.permits = DiskPermits(disk_jobs, path)
        checksums = Checksums(reactor, store, Verify.FIRST)
        retention = Retention(reactor, store, self.machine, disk_jobs.turn, checksums)
        boards = StateBoards("0" * 16, self.master.send)
        self.store_reports = StoreReports(
            reactor,
            ticks,
            self.master,
            store,
            disk_jobs,
            lambda: (0, 0.0),
            permits,
            lambda reason: None,
            str(path),
        )
        self.service = WorkerService(
            reactor, ticks, self.machine, self.master, self.store_reports, permits, retention,
            callers, events, lambda: None, lambda error: None,
        )  # fmt: skip
        self.fetches = FetchReports(self.service, self.master, retention, events)
        checksums.damaged = self.service.damaged
        owner = AttemptReports(
            self.service, self.master, self.fetches, self.store_reports, checksums, events
        )
        place = Workplace(
            reactor=reactor, ticks=ticks, owner=owner, launching=self.launching,
            store=store, streams=self.streams, executors=executors, worker="w1", netloc=HERE,
            scratch=ScratchPool(path / "spool"), kept=KeptAttempts(path / "kept"),
            logs=JobLogs(reactor, path), channels=None, checksums=checksums,
            boards=boards, cluster_id="test",
        )  # fmt: skip
        lifecycle = Lifecycle(place)
        self.interactive = InteractivePrograms(lifecycle, patience)
        batch = BatchPrograms(lifecycle, self.interactive.idle_count)
        self.attempts = Attempts(lifecycle, batch, self.interactive, callers)
        self.operations = Operations(self.service, self.master, self.interactive, events)
        fetcher: Any = _NoFetcher()
        fetcher.fetches = self.fetches
        self.service.set_components(self.attempts, self.interactive, fetcher, boards)
        in_reactor(self.service.peer_opened, self)

    # --- as the master's connection ---------------------------------------------------------------

    def flush(self) -> None:
        pass

    def send(self, report: Any) -> None:
        """Take a report."""
        with self._changed:
            self.reports.append(report)
            self._changed.notify_all()

    def close(self) -> None:
        """Called when the service closes."""

    # --- as the master ----------------------------------------------------------------------------

    def say(self, *messages: Message) -> None:
        """Send messages to the worker, all in one batch."""
        self.in_reactor(self.service.peer_said, self, list(messages))

    def task(
        self, executor: str, arguments: dict[str, Any], *, n_outputs: int = 1,
        needs: Needs = DEFAULT_NEEDS, name: str = "",
    ) -> TaskSpec:  # fmt: skip
        """Make a task that differs from all earlier ones."""
        self._number += 1
        spec, _ = make_task(
            job=JobId(JOB), parent=JOB, ordinal=self._number, executor=executor,
            arguments=arguments, n_outputs=n_outputs, needs=needs, name=name,
        )  # fmt: skip
        return spec

    def assign(self, spec: TaskSpec, *inputs: Reference, attempt: int = 1) -> Key:
        """Assign a task."""
        self.say(AssignTask(spec, attempt, inputs))
        return (spec.id, attempt)

    def cancel(self, key: Key) -> None:
        """Cancel an attempt."""
        self.say(CancelTask(*key))

    def put(self, object_id: str, content: bytes) -> Concrete:
        """Put an object into the worker's store."""
        self.store.put(object_id, content)
        self.in_reactor(self.operations.uploaded, ObjectId(object_id))
        return stored(object_id, HERE, size_bytes=len(content))

    # --- results ----------------------------------------------------------------------------------

    def expect(self, what: Callable[[Any], bool], timeout_s: float = WAIT_S) -> Any:
        """Wait for a report that matches, and return the first one."""
        found: list[Any] = []

        def is_there() -> bool:
            found[:] = [report for report in self.reports if what(report)]
            return bool(found)

        with self._changed:
            assert self._changed.wait_for(is_there, timeout_s), self.reports
        return found[0]

    def end(self, key: Key, timeout_s: float = WAIT_S) -> TaskReported | InputsLost:
        """Wait for the end of an attempt."""

        def is_end(report: Any) -> bool:
            return (
                isinstance(report, TaskReported | InputsLost)
                and (report.task, report.attempt) == key
            )

        ended: TaskReported | InputsLost = self.expect(is_end, timeout_s)
        return ended

    def good(self, key: Key) -> tuple[Reference, ...]:
        """Wait until an attempt succeeds; return its published references."""
        ended = self.end(key)
        assert isinstance(ended, TaskReported), ended
        assert ended.fault is None, ended.fault.details
        return ended.published

    def content(self, key: Key, number: int = 0) -> bytes:
        """Wait until an attempt succeeds; return the content of an output."""
        return self.read(self.good(key)[number])

    def read(self, ref: Reference) -> bytes:
        """Return the content of an object."""
        return ref.content if isinstance(ref, Value) else self.store.get(ref.id)

    def fault(self, key: Key) -> TaskFault:
        """Wait for an attempt to fail; return why."""
        ended = self.end(key)
        assert isinstance(ended, TaskReported), ended
        assert ended.fault is not None, ended
        return ended.fault

    def child(self, key: Key) -> SpawnTask:
        """Wait for a task that an attempt created; return the first."""
        spawned: SpawnTask = self.expect(
            lambda report: isinstance(report, SpawnTask) and report.spec.parent == key[0]
        )
        return spawned

    def stream(self, key: Key) -> StreamsOpened:
        """Wait until outputs of an attempt can be read."""
        opened: StreamsOpened = self.expect(
            lambda report: isinstance(report, StreamsOpened) and report.task == key[0]
        )
        return opened

    def slots_free(self) -> int:
        """Return how many slots are free now."""
        free: int = self.in_reactor(lambda: self.machine.slots_free)
        return free

    def programs(self) -> list[int]:
        """Return the ids of all processes below this worker's launcher."""
        launcher: int = self.launching._launcher.pid
        tasks = Path(f"/proc/{launcher}/task/{launcher}/children").read_text()
        return [int(pid) for pid in tasks.split()]

    def left(self) -> list[str]:
        """Return the files that attempts left, without objects and files of failed tasks."""
        scratch = self.path.glob("spool/scratch/*/*")
        temporaries = self.path.glob("store/incoming/*/*")
        used = [path for path in (*scratch, *temporaries) if _is_used(path)]
        return [str(path) for path in used if path.name != "lock"]

    def stop(self) -> None:
        """End everything."""
        parts = (self.store_reports, self.service, self.attempts, self.streams, self.permits)
        for part in parts:
            self.in_reactor(part.close)
        self.in_reactor(self.launching.close)


class Talker(OneWorker):
    """A worker with interactive programs: in Python, or puppets
    (tests/worker/programs/puppet.c).
    """

    puppet_path = ""

    def puppet(self, *actions: str, needs: Needs = DEFAULT_NEEDS, **arguments: Any) -> Key:
        """Assign a task whose program executes these actions."""
        command = [self.puppet_path, *actions]
        return self.assign(self.task("proc", {"command": command, **arguments}, needs=needs))

    def python(
        self, script: str, *pargs: Any, n_outputs: int = 1, inputs: Iterable[Reference] = (),
        needs: Needs = DEFAULT_NEEDS,
    ) -> Key:  # fmt: skip
        """Assign a task of a program that serves with `run(task)`."""
        head = f"import sys; sys.path.insert(0, {str(SDK)!r}); import ciel_task as c, os, time\n"
        arguments = {
            "command": [sys.executable, "-IS", "-c", f"{head}{script}\nc.serve(run)"],
            "proc_pargs": list(pargs),
        }
        spec = self.task("proc", arguments, n_outputs=n_outputs, needs=needs)
        return self.assign(spec, *inputs)

    def expect_nothing_runs(self, timeout_s: float = 5.0) -> None:
        """Wait until no program is left."""
        wait_for(lambda: not self.programs(), "the end of all programs", timeout_s)

    def wait_until_free(self) -> None:
        """Wait until all slots are free."""
        wait_for(lambda: self.slots_free() == self.machine.slots, "free slots")

    def expect_free(self) -> None:
        """Expect that no slot is held."""
        assert self.slots_free() == self.machine.slots


def _is_used(path: Path) -> bool:
    """Whether a file or directory is not empty; empty ones are for later attempts."""
    try:
        return any(path.iterdir()) if path.is_dir() else path.stat().st_size > 0
    except FileNotFoundError:  # just removed
        return False
