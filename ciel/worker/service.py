"""Passes the master's messages to the worker's state machine, and carries out its orders.

It carries out one order at a time until none is left. Reports leave at the end of the tick.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from ciel.core.events import DescribeJob, Message, StateChanged
from ciel.core.ids import ObjectId
from ciel.core.refs import Reference
from ciel.execution.environment import Callers
from ciel.net.control import Peer
from ciel.net.ticks import DelayedCall, Ticks
from ciel.wire.errors import RefusedError
from ciel.worker.attempts.attempts import Attempts
from ciel.worker.disk_permits import DiskPermits
from ciel.worker.events import Events
from ciel.worker.interactive.programs import InteractivePrograms
from ciel.worker.master_session import MasterSession
from ciel.worker.retention import Retention
from ciel.worker.state.machine import WorkerMachine
from ciel.worker.state.orders import (
    AbandonFetch,
    AskForDisk,
    CompareContents,
    DeleteObjects,
    EndProcesses,
    FetchObject,
    Key,
    KillAttempt,
    LeaveDisk,
    LeaveMaster,
    Order,
    RecallAttempt,
    StartAttempt,
)
from ciel.worker.state_boards import StateBoards
from ciel.worker.store_reports import StoreReports
from ciel.worker.transfer.fetching import Fetcher
from ciel.worker.transfer.parts import Part

log = Logger(__name__)  # compiled code cannot determine its own module


class WorkerService:
    """Connects the state machine to the master, the clock and the components that carry out orders.

    A component that reports an event to the state machine then calls `act`. If it still works with
    an attempt or a fetch, which an order may end, it calls `act_soon` instead.
    """

    _attempts: Attempts
    _interactive: InteractivePrograms
    _fetcher: Fetcher

    def __init__(
        self,
        reactor: Any,
        ticks: Ticks,
        machine: WorkerMachine,
        master: MasterSession,
        store_reports: StoreReports,
        permits: DiskPermits,
        retention: Retention,
        callers: Callers,
        events: Events,
        joined: Callable[[], object],
        refused: Callable[[RefusedError], object],
    ) -> None:
        self.machine = machine
        self._reactor = reactor
        self._ticks = ticks
        self._master = master
        self._store_reports = store_reports
        self._permits = permits
        permits.admitted = self._disk_admitted
        self._retention = retention
        self._callers = callers
        self._events = events
        self._joined = joined
        self._refused = refused
        self.objection: Callable[[Peer], str] = lambda peer: ""
        """Returns why this worker does not obey a master that it has reached, or ""."""
        self._due: DelayedCall | None = None
        self._due_s = 0.0
        self._is_acting = False
        master.on_start_over = self._start_over
        self._on_all_ended: Callable[[], object] | None = None
        self.on_dismissed: Callable[[], object] = lambda: None
        """Called when the master has drained this worker, which then ends."""

    def set_components(
        self,
        attempts: Attempts,
        interactive: InteractivePrograms,
        fetcher: Fetcher,
        boards: StateBoards,
    ) -> None:
        """Set the components that carry out orders. They report the outcomes to this service."""
        self._attempts = attempts
        self._interactive = interactive
        self._fetcher = fetcher
        self._boards = boards

    # --- the master -------------------------------------------------------------------------------

    def peer_opened(self, peer: Peer) -> None:
        if reason := self.objection(peer):
            log.warn("does not obey the master at {at}: {why}", at=peer.address, why=reason)
            peer.turn_away()
            return
        if self._master.opened(peer):
            self.machine.master_reached()
            self._joined()
            self.act()
            self._store_reports.joined()

    def peer_said(self, peer: Peer, messages: list[Message]) -> None:
        now_s = self.now_s()
        for message in self._master.received(peer, messages, now_s):
            if isinstance(message, DescribeJob):
                self._callers.describe(message.job, message.context)
                if message.context is None:
                    self._boards.job_ended(message.job)
            elif isinstance(message, StateChanged):
                self._boards.changed(message)
            else:
                self.machine.master_message(message, now_s)
        self.act()

    def _start_over(self, unconfirmed: list[Message]) -> None:
        """Report running attempts, streams and unconfirmed messages to a master that has restarted.

        The master adopts the attempts that it needs.
        """
        for message in self.machine.master_restarted(unconfirmed):
            self._master.send(message)
        self.machine.master_reached()
        self._boards.report_all()
        self.act_soon()
        self._store_reports.joined()

    def peer_drained(self, peer: Peer) -> None:
        """The connection has sent its queue."""
        self._master.drained(peer)

    def peer_closed(self, peer: Peer, reason: str) -> None:
        if self._master.closed(peer, reason):
            self._end_session()

    def connection_refused(self, error: RefusedError) -> bool:
        """Treat a refusal as final: another try would have the same wrong key or version."""
        self._refused(error)
        return False

    def _end_session(self) -> None:
        """End all attempts, since the master does not know them any more."""
        self.machine.master_lost(self.now_s())
        self._callers.clear()
        self._boards.clear()
        self._master.end()
        self.act()

    def leave_within(self, grace_s: float) -> bool:
        """Drain this worker, which ends after this time at the latest; False without a master."""
        if not self._master.is_open:
            return False
        self.machine.leave_within(grace_s, self.now_s())
        self.act()
        return True

    def leave_master(self) -> None:
        """Leave the master for good. A reconnector may then join another one."""
        if self._master.is_open:
            self._master.say_farewell()
            self._end_session()

    def cancel_all(self, done: Callable[[], object]) -> None:
        """Leave the master, and end all attempts as if it had cancelled them; then call `done`."""
        self.leave_master()
        self._on_all_ended = done
        self.act()

    def close(self) -> None:
        if self._due is not None and self._due.active():
            self._due.cancel()
        self._master.say_farewell()

    def damaged(self, object_id: ObjectId) -> None:
        """Report that an object was deleted, since it was damaged."""
        self._events.note("damaged", object_id)
        self.machine.damaged(object_id)
        self.act_soon()

    # --- acting -----------------------------------------------------------------------------------

    def now_s(self) -> float:
        """Return the current time, which the state machine gets with events."""
        now_s: float = self._reactor.seconds()
        return now_s

    def act_soon(self) -> None:
        """Act at the end of the tick."""
        self._ticks.at_end(self.act)

    def act(self) -> None:
        """Carry out orders until there are none. Carrying one out may cause others."""
        if self._is_acting:
            return
        self._is_acting = True
        try:
            self._report()  # ends are reported before other attempts start
            if self.machine.reports_first:
                self._master.flush()
            while self.machine.orders:
                for order in self.machine.take_orders():
                    self._carry_out(order)
        finally:
            self._is_acting = False
        self._report()
        self._schedule()
        if self._on_all_ended is not None and not self.machine.attempts:
            self._on_all_ended()
            self._on_all_ended = None

    def _carry_out(self, order: Order) -> None:
        match order:
            case StartAttempt(spec, attempt):
                self._events.note("began", spec.job, spec.id, attempt)
                self._attempts.start(order)
            case AskForDisk():
                self._permits.ask(order)
            case LeaveDisk(task, attempt):
                self._permits.leave((task, attempt))
            case FetchObject():
                self._fetcher.fetch(order)
            case AbandonFetch(object_id):
                self._fetcher.abandon(object_id)
            case KillAttempt(task, attempt, force):
                self._attempts.kill((task, attempt), force=force)
            case RecallAttempt(task, attempt):
                self._attempts.recall((task, attempt))
            case DeleteObjects(objects):
                self._retention.delete(objects)
            case CompareContents(refs):
                self._fetcher.comparisons.compare(refs)
            case EndProcesses(objects):
                self._interactive.end_waiting(objects)
            case LeaveMaster():
                self.on_dismissed()

    def _disk_admitted(self, key: Key) -> None:
        self.machine.disk_admitted(key, self.now_s())
        self.act_soon()

    def copy_parts(self, ref: Reference, parts: Sequence[Part], fd: int) -> Deferred[bool]:
        """Copy parts of an object for a running attempt; see `PartCopies.copy`."""
        copied: Deferred[bool] = self._fetcher.parts.copy(
            ref, self.machine.plans_for(ref), parts, fd
        )
        return copied

    def _report(self) -> None:
        for report in self.machine.take_reports(self.now_s()):
            self._master.send(report)

    def _schedule(self) -> None:
        due_s = self.machine.due_s()
        if self._due is not None and self._due.active():
            if due_s is not None and self._due_s <= due_s:
                return
            self._due.cancel()
        if due_s is not None:
            self._due_s = due_s
            delay_s = max(due_s - self.now_s(), 0.0)
            self._due = self._reactor.callLater(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self.machine.tick(self.now_s())
        self.act()
