"""Reports the events of attempts to the worker's state machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from ciel.core.events import TaskFault, TaskPrinted
from ciel.core.ids import ObjectId
from ciel.core.refs import Reference, Sweetheart
from ciel.execution.executor import Child
from ciel.worker.attempts.workplace import Losses
from ciel.worker.checksums import Checksums
from ciel.worker.events import Events
from ciel.worker.fetch_reports import FetchReports
from ciel.worker.interactive.attached import AttachedProcess
from ciel.worker.master_session import MasterSession
from ciel.worker.service import WorkerService
from ciel.worker.state.orders import Key
from ciel.worker.store_reports import StoreReports
from ciel.worker.transfer.parts import Part

log = Logger(__name__)  # compiled code cannot determine its own module


class AttemptReports:
    """Implements `AttemptsOwner`: passes events of attempts to the worker's state machine."""

    def __init__(
        self,
        service: WorkerService,
        master: MasterSession,
        fetches: FetchReports,
        store_reports: StoreReports,
        checksums: Checksums,
        events: Events,
    ) -> None:
        self.ended_counts: dict[str, int] = {}
        self._service = service
        self._machine = service.machine
        self._master = master
        self._fetches = fetches
        self._store_reports = store_reports
        self._checksums = checksums
        self._events = events

    def attempt_ended(
        self,
        key: Key,
        published: tuple[Reference, ...],
        fault: TaskFault | None,
        run_s: float,
        exit_status: int | None = None,
    ) -> None:
        is_fault = fault is not None and fault.reason == "WORKER_FAULT"
        if is_fault and self._store_reports.has_lost_store():
            return  # the master assigns it to another worker, as this one leaves
        if fault is not None and fault.reason == "NO_SPACE":
            self._store_reports.report()  # before the fault: the master sends no more tasks here
        now_s = self._service.now_s()
        self._machine.ended(key, published, fault, run_s, now_s, exit_status)
        self._checksums.committed(published)
        how = "done" if fault is None else fault.reason
        self.ended_counts[how] = self.ended_counts.get(how, 0) + 1
        self._events.note("ended", *key, how, run_s)
        self._service.act()

    def inputs_gone(self, key: Key, losses: Losses, details: str) -> None:
        self._machine.inputs_gone(key, losses, details, self._service.now_s())
        self._service.act()

    def attempt_spawned(self, key: Key, child: Child, *, wanted: bool | None = None) -> None:
        now_s = self._service.now_s()
        self._machine.spawned(key, child.spec, child.known, now_s, wanted=wanted)
        self._service.act_soon()

    def child_started_inline(self, key: Key, child: Child) -> None:
        now_s = self._service.now_s()
        self._machine.child_started_inline(key, child.spec, child.known, now_s)
        self._service.act_soon()

    def inline_child_ended(
        self, key: Key, published: tuple[Reference, ...], fault: TaskFault | None, run_s: float
    ) -> None:
        self._machine.ended(key, published, fault, run_s, self._service.now_s())
        self._checksums.committed(published)
        self._service.act_soon()

    def attached_process_left(self, attached: AttachedProcess, details: str) -> None:
        """Ask the master to fail the job of an attached process that left between attempts.

        If a process leaves during an attempt, the failure of the attempt fails the job.
        """
        self._machine.process_left(attached.id)
        if self._master.is_open:
            failed = self._master.request("fail", {"job": attached.job, "reason": details})
            failed.addErrback(lambda failure: log.info("{why}", why=failure.getErrorMessage()))

    def recent(self, object_id: ObjectId) -> Reference | None:
        return self._machine.recent_value(object_id)

    def room(self) -> int | None:
        return self._machine.idle_slots()

    def streams_opened(self, key: Key, objects: tuple[ObjectId, ...]) -> None:
        self._machine.streams_opened(key, objects, self._service.now_s())
        self._service.act_soon()

    def stream_broken(self, object_id: ObjectId, details: str) -> None:
        self._machine.stream_broken(object_id, details, self._service.now_s())
        self._service.act_soon()

    def outputs_discarded(self, objects: tuple[ObjectId, ...]) -> None:
        self._machine.outputs_discarded(objects)
        self._service.act_soon()

    def preferred(self, ref: Sweetheart) -> None:
        self._machine.preferred(ref)
        self._service.act_soon()

    def printed(self, printed: TaskPrinted) -> None:
        self._machine.printed(printed)
        self._service.act_soon()

    def waits(self, key: Key) -> None:
        self._machine.waits(key)
        self._service.act_soon()

    def fetch(self, ref: Reference, then: Callable[[Losses | None, str], None]) -> None:
        self._fetches.request(ref, then)

    def copy_parts(self, ref: Reference, parts: Sequence[Part], fd: int) -> Deferred[bool]:
        return self._service.copy_parts(ref, parts, fd)
