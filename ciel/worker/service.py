"""The worker's edge: the master on one side, programs and the store on the other, the machine
between.

Orders of the machine are carried out at once, in order, until there are none; reports leave at the
end of the turn.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred, DeferredLock
from twisted.internet.task import LoopingCall
from twisted.internet.threads import deferToThread
from twisted.logger import Logger
from twisted.python.failure import Failure

from ciel.core.admission import level_of
from ciel.core.errors import CielError
from ciel.core.events import (
    LEAVE,
    Answer,
    Change,
    CopyTimed,
    DescribeJob,
    DiskQueued,
    Message,
    ObjectsStored,
    Received,
    StoresReported,
    TaskFault,
    TaskPrinted,
)
from ciel.core.ids import ObjectId
from ciel.core.placement import MEASURED_FROM_BYTES
from ciel.core.plans import Plan, plans_for
from ciel.core.refs import Concrete, Reference, Sweetheart
from ciel.execution.executor import Child
from ciel.net.control import Peer
from ciel.net.sessions import PeerSession
from ciel.net.turns import DelayedCall, Turns
from ciel.storage.errors import StorageError
from ciel.storage.interface import ObjectStore
from ciel.wire.errors import ConnectionCutError, RefusedError
from ciel.wire.messages import kind_of
from ciel.worker.attempts.attempts import Attempts
from ciel.worker.attempts.workplace import Losses
from ciel.worker.disk_jobs import DiskJobs
from ciel.worker.events import Events
from ciel.worker.interactive.attached import AttachedProcess
from ciel.worker.interactive.channel import ProgramChannel
from ciel.worker.interactive.programs import InteractivePrograms
from ciel.worker.state.machine import WorkerMachine
from ciel.worker.state.orders import (
    AbandonFetch,
    DeleteObjects,
    EndProcesses,
    FetchObject,
    Key,
    KillAttempt,
    RecallAttempt,
    StartAttempt,
)
from ciel.worker.transfer.fetching import Fetcher

log = Logger(__name__)  # compiled, it cannot be found out

UNANSWERED_MAX_S = 10.0
"""So long a host is asked again that does not answer; the master soon knows whether it is there."""
STORE_LOOK_S = 1.0
"""Between two looks at what the store holds: people look on, and nothing is decided by it."""


class NoMasterError(CielError):
    """The master is not there to be asked."""

    def __init__(self) -> None:
        super().__init__("this worker has no master now; it is trying to reach one")


class WorkerService:
    """Carries out what the machine orders, and tells it what came of it."""

    def __init__(
        self,
        reactor: Any,
        turns: Turns,
        machine: WorkerMachine,
        store: ObjectStore,
        joined: Callable[[], None],
        refused: Callable[[RefusedError], None],
    ) -> None:
        self.machine = machine
        self._joined = joined
        self._refused = refused
        self._reactor = reactor
        self._turns = turns
        self._store = store
        self._session: PeerSession | None = None  # with the master; outlives its connections
        self._token = ""  # of the session, also before it is there
        self._returning: Peer | None = None  # over which it goes on, once the master says how
        self._deleting = DeferredLock()
        self._due: DelayedCall | None = None
        self._due_s = 0.0
        self._is_acting = False
        self._disk: Callable[[], tuple[int, float]] = lambda: (0, 0.0)
        self._disk_level = 0  # that the master knows of
        self._disk_jobs: DiskJobs | None = None
        self._copied: set[str] = set()  # what came from others, who may still have it
        self._told_of_store: StoresReported | None = None
        self._store_looks = LoopingCall(self._look_around)
        self._store_gone: Callable[[str], object] = lambda reason: None
        self._store_looks.clock = reactor
        self.events = Events(reactor)
        self.ended_counts: dict[str, int] = {}
        self._told_counts: dict[type, int] = {}
        self._asked: dict[int, Deferred[Any]] = {}  # of the master
        self._asked_count = 0
        self._drained: Callable[[], None] | None = None
        self._wanted: dict[ObjectId, list[Callable[[Losses | None, str], None]]] = {}
        self._forget_contexts: Callable[[], object] = lambda: None
        self._attempts: Attempts
        self._interactive: InteractivePrograms
        self._fetcher: Fetcher

    def equip(self, attempts: Attempts, interactive: InteractivePrograms, fetcher: Fetcher) -> None:
        """Give it what it acts through; all of these call back here."""
        self._attempts = attempts
        self._interactive = interactive
        self._forget_contexts = attempts.callers.clear
        self._fetcher = fetcher

    def watch_disk(self, queue: Callable[[], tuple[int, float]]) -> None:
        """Have the master know how much waits for the store's disk, in bytes and seconds, as
        `queue` tells; `disk_changed` is to be called when it may have changed.
        """
        self._disk = queue

    def disk_changed(self) -> None:
        self._turns.at_end(self._tell_disk)

    def _tell_disk(self) -> None:
        pending_bytes, wait_s = self._disk()
        level = level_of(wait_s)
        if level != self._disk_level and self.has_master:
            self._disk_level = level
            self._tell(DiskQueued(pending_bytes, wait_s) if level else DiskQueued(0, 0.0))

    def watch_store(
        self, disk_jobs: DiskJobs, gone: Callable[[str], object] = lambda reason: None
    ) -> None:
        """Have the master know what the store holds and does, and how many disk jobs wait. What it
        drops for want of room is known as gone from then on. `gone` is called with the reason
        when another program has removed the store: then this worker is of no use.
        """
        self._store_gone = gone
        machine = self.machine

        def can_be_had_again(object_id: str) -> bool:
            if object_id not in self._copied or not machine.hosts:
                return False
            return object_id not in machine.brought.pinned and not machine.is_read_next(object_id)

        def dropped(object_id: str) -> None:
            self._copied.discard(object_id)
            self._reactor.callFromThread(machine.stored.pop, ObjectId(object_id), None)

        self._store.advise(can_be_had_again, dropped, disk_jobs.turn)
        self._disk_jobs = disk_jobs
        self._store_looks.start(STORE_LOOK_S, now=False)

    def _look_around(self) -> None:
        if self._session is not None:
            self._session.confirm()
        if not self._has_lost_store():
            self._tell_of_store()

    def _has_lost_store(self) -> bool:
        """Return whether the store was removed; if so, have this worker leave."""
        path = self._store.gone()
        if path:
            if self._store_looks.running:
                self._store_looks.stop()
            self._store_gone(f"{path}, which this worker's objects lie in, was removed or replaced")
        return bool(path)

    def _tell_of_store(self) -> None:
        if not self.has_master or self._disk_jobs is None:
            return
        levels = tuple([level._asdict() for level in self._store.levels()])
        report = StoresReported(levels, self._disk_jobs.waiting_count)
        if report != self._told_of_store:
            self._told_of_store = report
            self._tell(report)

    def close(self) -> None:
        if self._store_looks.running:
            self._store_looks.stop()
        if self._due is not None and self._due.active():
            self._due.cancel()
        self._say_farewell()

    # --- the master -------------------------------------------------------------------------------

    def greeting(self) -> dict[str, Any]:
        """Return what the hello of the next connection says of the session."""
        if self._session is not None:
            return {"session": self._token, "received": self._session.received}
        self._token = secrets.token_hex(16)
        return {"session": self._token}

    def peer_opened(self, peer: Peer) -> None:
        if self._session is not None:
            self._returning = peer  # the master first says how much it has, or refuses
            return
        self._session = PeerSession("master", peer, self._token)
        self._disk_level = 0
        self._told_of_store = None
        log.info("joined the master at {address}", address=peer.address)
        self.events.note("joined", peer.address)
        self.machine.master_joined()
        self._joined()
        self._act()
        self.disk_changed()
        self._tell_of_store()  # who asks at once is to see it

    def peer_said(self, peer: Peer, messages: list[Message]) -> None:
        session = self._session
        if session is None or (peer is not session.peer and peer is not self._returning):
            return
        now_s = self._reactor.seconds()
        counted = len(messages)
        for message in messages:
            if type(message) is Received:
                counted -= 1
                if not session.take_confirmation(message.total):
                    peer.refuse("it confirms what was not said")
                    return
                if peer is self._returning:
                    self._returning = None
                    session.resume(peer)
                    session.back_at_s = now_s
                    log.info("is back at the master at {address}", address=peer.address)
                    self.events.note("joined", peer.address)
            elif type(message) is Answer:
                self._answered(message)
            elif type(message) is DescribeJob:
                self._attempts.callers.describe(message.job, message.context)
            else:
                self.machine.master_said(message, now_s)
        session.count(counted)
        self._act()

    def peer_drained(self, peer: Peer) -> None:
        """Give the master what waited until it had read what was sent before."""
        if self._session is not None and peer is self._session.peer:
            self._session.hand_on()

    def peer_closed(self, peer: Peer, reason: str) -> None:
        session = self._session
        if session is None or (peer is not session.peer and peer is not self._returning):
            return
        if peer is self._returning:
            self._returning = None
        else:
            session.peer = None
            log.warn("lost the master: {reason}; what runs here goes on", reason=reason)
            self.events.note("lost_master", reason)
        was_cut = peer.failure is None or isinstance(peer.failure, ConnectionCutError)
        if not was_cut or not session.can_resume:  # another try would meet the same
            log.warn("what runs here is ended: {reason}", reason=reason)
            self._end_session()

    def _end_session(self) -> None:
        """The master knows nothing more of what this worker runs: it ends."""
        self._session = None
        self.machine.master_lost(self._reactor.seconds())
        self._forget_contexts()
        asked, self._asked = self._asked, {}
        for waiting in asked.values():
            if not waiting.called:
                waiting.errback(NoMasterError())
        self._act()

    def _say_farewell(self) -> None:
        """Have the master know that this worker does not come back, and hang up."""
        if self._session is not None:
            peer = self._session.peer
            self._session.send(Change(0, LEAVE, None))
            if peer is not None:
                peer.close()

    def connection_refused(self, error: RefusedError) -> bool:
        """Take a refusal as final: a wrong key or version does not mend itself."""
        self._refused(error)
        return False

    def drain(self, done: Callable[[], None]) -> None:
        """End all attempts as if they were cancelled, with their grace; then call back."""
        self.leave_master()
        self._drained = done
        self._act()

    def leave_master(self) -> None:
        """Hang up; whoever connects then does so again, perhaps elsewhere."""
        if self._session is not None:
            self._say_farewell()
            self._end_session()

    # --- what people ask for ----------------------------------------------------------------------

    @property
    def has_master(self) -> bool:
        """Whether a master hears this worker now."""
        return self._session is not None and self._session.peer is not None

    def figures(self) -> dict[str, dict[str, int]]:
        """Return what was counted here, by what it is about."""
        told = {kind_of(message): count for message, count in self._told_counts.items()}
        return {**self._fetcher.figures(), "messages": told}

    def abort(self, job: str, task: str | None) -> int:
        """End the attempts that are here at a job's task, or at all of them; return how many."""
        fault = TaskFault("ABORTED", "somebody had it aborted on the worker where it was")
        doomed = [
            key
            for key, attempt in self.machine.attempts.items()
            if attempt.spec.job == job and task in (None, key[0])
        ]
        for key in doomed:
            self.machine.call_off(key, fault, self._reactor.seconds())
        self._act()
        return len(doomed)

    def attach(self, guest: AttachedProcess) -> Deferred[Any]:
        """Have a process of this host be the root task of a new job, which is there when this
        succeeds; fails with a CielError. Raises OSError.
        """
        self._interactive.attach(guest)
        self.machine.fixed[guest.id] = None

        def refused(failure: Failure) -> Failure:  # or nobody waits any more
            self.machine.fixed.pop(guest.id, None)
            self._interactive.end_waiting((guest.id,))
            return failure

        asked = self._have_changed("attach", {"job": guest.job, "name": guest.name})
        return asked.addErrback(refused)

    def attached(self) -> list[tuple[AttachedProcess, ProgramChannel]]:
        """List the processes that are attached."""
        return self._interactive.attached()

    def _have_changed(self, topic: str, argument: Any) -> Deferred[Any]:
        """Have the master change something; it answers with a value, or a CielError."""
        answered: Deferred[Any] = Deferred()
        if self._session is None:
            answered.errback(NoMasterError())
            return answered
        self._asked_count += 1
        self._asked[self._asked_count] = answered
        self._tell(Change(self._asked_count, topic, argument))
        return answered

    def _answered(self, answer: Answer) -> None:
        asked = self._asked.pop(answer.number, None)
        if asked is not None and not asked.called:
            if answer.error:
                asked.errback(CielError(answer.error))
            else:
                asked.callback(answer.value)

    def unnamed(self, older_than_s: float) -> list[ObjectId]:
        """List what was brought some time ago, and what no job may ever have named."""
        return self.machine.brought.unnamed(self._reactor.seconds(), older_than_s)

    def offer_brought(self, older_than_s: float) -> list[ObjectId]:
        """Offer that to the master, which has those deleted that it does not know."""
        offered, here = self.unnamed(older_than_s), frozenset((self.machine.netloc,))
        refs = tuple([Concrete(each, self.machine.stored.get(each), here) for each in offered])
        if refs:
            self.machine.reports.append(ObjectsStored(refs, kept=True, idle=True))
            self._act()
        return offered

    # --- what came of orders ----------------------------------------------------------------------

    def attempt_ended(
        self,
        key: Key,
        published: tuple[Reference, ...],
        fault: TaskFault | None,
        run_s: float,
        exit_status: int | None = None,
    ) -> None:
        if fault is not None and fault.reason == "WORKER_FAULT" and self._has_lost_store():
            return  # the master gives it to another, as this worker leaves
        self.machine.ended(key, published, fault, run_s, self._reactor.seconds(), exit_status)
        how = "done" if fault is None else fault.reason
        self.ended_counts[how] = self.ended_counts.get(how, 0) + 1
        self.events.note("ended", *key, how, run_s)
        self._act()

    def attempt_spawned(self, key: Key, child: Child, *, wanted: bool | None = None) -> None:
        now_s = self._reactor.seconds()
        self.machine.spawned(key, child.spec, child.known, now_s, wanted=wanted)
        self._act_soon()

    def child_started_inline(self, key: Key, child: Child) -> None:
        self.machine.child_started_inline(key, child.spec, child.known, self._reactor.seconds())
        self._act_soon()

    def inline_child_ended(
        self, key: Key, published: tuple[Reference, ...], fault: TaskFault | None, run_s: float
    ) -> None:
        self.machine.ended(key, published, fault, run_s, self._reactor.seconds())
        self._act_soon()

    def recent(self, object_id: ObjectId) -> Reference | None:
        return self.machine.recent.get(object_id)

    def room(self) -> int | None:
        machine = self.machine
        return None if machine.hosts else max(0, machine.slots_free - len(machine.queue))

    def streams_opened(self, key: Key, objects: tuple[ObjectId, ...]) -> None:
        self.machine.streams_opened(key, objects, self._reactor.seconds())
        self._act_soon()

    def stream_broken(self, object_id: ObjectId, details: str) -> None:
        self.machine.stream_broken(object_id, details, self._reactor.seconds())
        self._act_soon()

    def preferred(self, ref: Sweetheart) -> None:
        if ref.id in self.machine.stored:
            self.machine.reports.append(ObjectsStored((ref,)))
            self._act_soon()

    def printed(self, printed: TaskPrinted) -> None:
        self.machine.reports.append(printed)  # which can wait as long as the attempt's end
        self._act_soon()

    def outputs_discarded(self, objects: tuple[ObjectId, ...]) -> None:
        self.machine.outputs_discarded(objects)
        self._act_soon()

    def inputs_gone(self, key: Key, losses: Losses, details: str) -> None:
        self.machine.inputs_gone(key, losses, details, self._reactor.seconds())
        self._act()

    def attached_process_left(self, guest: AttachedProcess, details: str) -> None:
        """Have the job of a process fail that served no attempt when it left; others do anyway."""
        self.machine.fixed.pop(guest.id, None)
        if self._session is not None:
            told = self._have_changed("fail", {"job": guest.job, "reason": details})
            told.addErrback(lambda failure: log.info("{why}", why=failure.getErrorMessage()))

    def fetch(self, ref: Reference, then: Callable[[Losses | None, str], None]) -> None:
        """Get what a running attempt asks for."""
        self._wanted.setdefault(ref.id, []).append(then)
        self.machine.fetch(ref)
        self._act_soon()

    def _answer_wanted(self, object_id: ObjectId, losses: Losses | None, details: str) -> None:
        for then in self._wanted.pop(object_id, ()):
            then(losses, details)

    def fetched(self, object_id: ObjectId, size_bytes: int) -> None:
        self._copied.add(object_id)
        self.events.note("fetched", object_id, size_bytes)
        self.machine.fetched(object_id, self._reactor.seconds(), size_bytes)
        self._answer_wanted(object_id, None, "")
        self._act()

    def copy_timed(self, netloc: str, size_bytes: int, run_s: float) -> None:
        """Take note of how long a copy took; told to the master with the copy itself."""
        if size_bytes >= MEASURED_FROM_BYTES:
            self.machine.reports.append(CopyTimed(netloc, size_bytes, run_s))

    def stream_opened(self, object_id: ObjectId) -> None:
        self.machine.stream_opened(object_id, self._reactor.seconds())
        self._answer_wanted(object_id, None, "")
        self._act()

    def fetch_failed(
        self,
        object_id: ObjectId,
        losses: tuple[str, ...],
        details: str,
        *,
        lacks_room: bool = False,
    ) -> None:
        now_s = self._reactor.seconds()
        self.machine.fetch_failed(object_id, losses, details, now_s, lacks_room=lacks_room)
        lost = tuple([(object_id, place) for place in losses])
        self.events.note("fetch_failed", object_id, details)
        self._answer_wanted(object_id, lost, details)
        self._act()

    def plans_again(self, ref: Reference, since_s: float) -> tuple[Plan, ...]:
        """Try on while this worker itself is cut off, and for a while afterwards: to call an object
        lost has it made again.
        """
        session = self._session
        if session is None:
            return ()
        if session.peer is not None:
            waited_s = self._reactor.seconds() - max(since_s, session.back_at_s)
            if waited_s > UNANSWERED_MAX_S:
                return ()
        machine = self.machine
        return plans_for(ref, machine.netloc, machine.host, machine.hosts)

    def uploaded(self, object_id: ObjectId) -> None:
        """A client left an object in the store."""
        self.events.note("brought", object_id)
        self.machine.uploaded(object_id, self._reactor.seconds())
        self._act()

    # --- acting -----------------------------------------------------------------------------------

    def _act_soon(self) -> None:
        """Act at the end of the turn: whoever tells is in the middle of something."""
        self._turns.at_end(self._act)

    def _act(self) -> None:
        """Carry out orders until there are none; carrying one out may give rise to others."""
        if self._is_acting:
            return
        self._is_acting = True
        machine = self.machine
        try:
            self._report()  # what has ended is known before anything starts in its place
            while machine.outbox:
                orders, machine.outbox = machine.outbox, []
                for order in orders:
                    match order:
                        case StartAttempt(spec, attempt):
                            self.events.note("began", spec.job, spec.id, attempt)
                            self._attempts.start(order)
                        case FetchObject():
                            self._fetcher.fetch(order)
                        case AbandonFetch(object_id):
                            self._fetcher.abandon(object_id)
                        case KillAttempt(task, attempt, force):
                            self._attempts.kill((task, attempt), force=force)
                        case RecallAttempt(task, attempt):
                            self._attempts.recall((task, attempt))
                        case DeleteObjects(objects):
                            self._delete(objects)
                        case EndProcesses(objects):
                            self._interactive.end_waiting(objects)
        finally:
            self._is_acting = False
        self._report()
        self._schedule()
        if self._drained is not None and not self.machine.attempts:
            self._drained()
            self._drained = None

    def _report(self) -> None:
        for report in self.machine.take_reports(self._reactor.seconds()):
            self._tell(report)

    def _tell(self, message: Message) -> None:
        """Say something to the master: now, or when it is back."""
        if self._session is not None:
            kind = type(message)
            self._told_counts[kind] = self._told_counts.get(kind, 0) + 1
            self._session.send(message)

    def _delete(self, objects: tuple[ObjectId, ...]) -> None:
        """Delete in a thread: freeing a large file takes long enough to be felt. So do several
        threads that take turns with ours, hence one at a time. An object that came anew meanwhile,
        or is about to, stays: the store took the old file for it.
        """

        def delete() -> None:
            for object_id in objects:
                if self.machine.expects(object_id):
                    continue
                self._copied.discard(object_id)
                try:
                    self._store.delete(object_id)
                except StorageError as error:
                    log.warn("{id} could not be deleted: {error}", id=object_id, error=error)

        deleted = self._deleting.run(deferToThread, delete)
        deleted.addErrback(lambda failure: log.failure("deletion failed", failure))

    def _schedule(self) -> None:
        due_s = self.machine.due_s()
        if self._due is not None and self._due.active():
            if due_s is not None and self._due_s <= due_s:
                return
            self._due.cancel()
        if due_s is not None:
            self._due_s = due_s
            delay_s = max(due_s - self._reactor.seconds(), 0.0)
            self._due = self._reactor.callLater(delay_s, self._tick)

    def _tick(self) -> None:
        self.machine.tick(self._reactor.seconds())
        self._act()
