"""The worker's state machine: turns events into orders for the service and reports for the master.

An attempt fetches its inputs, waits for slots, runs, and is reported. It is in exactly one phase at
a time. After each batch of events the service takes the orders, and then the reports.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heappush

from ciel.core.events import (
    KILL_GRACE_S,
    RECALLED,
    AssignTask,
    AttemptsKept,
    CancelTask,
    CompareObjects,
    ContentDiffers,
    CopyObjects,
    CopyTimed,
    DismissWorker,
    DrainWorker,
    DropObjects,
    FromWorker,
    InputsLost,
    MeetWorkers,
    Message,
    NotCopied,
    ObjectsStored,
    RecallTasks,
    SpawnTask,
    StoreListed,
    StreamsOpened,
    TaskFault,
    TaskPrinted,
    TaskReported,
    WorkersUnreached,
)
from ciel.core.graph.waiting import Waiting
from ciel.core.ids import ObjectId
from ciel.core.offers.resources import Given, Offer
from ciel.core.placement import MEASURED_FROM_BYTES
from ciel.core.plans import HttpPlan, Plan, plans_for
from ciel.core.refs import (
    Concrete,
    Failure,
    Fixed,
    Future,
    Reference,
    Stream,
    Sweetheart,
    Tombstone,
    Value,
    locations_of,
)
from ciel.core.tasks import PRIORITY_MAX, TaskSpec
from ciel.worker.state.local_starts import LocalStarts
from ciel.worker.state.orders import (
    ABORTED,
    ABORTED_HERE,
    BEFORE_START,
    CANCELLED,
    AbandonFetch,
    AskForDisk,
    Attempt,
    CompareContents,
    DeleteObjects,
    Disk,
    EndProcesses,
    FetchObject,
    Key,
    KillAttempt,
    LeaveDisk,
    LeaveMaster,
    Order,
    Phase,
    RecallAttempt,
    StartAttempt,
    ending_of,
    returned,
)
from ciel.worker.state.recent import Recent
from ciel.worker.state.resource_pool import ResourcePool
from ciel.worker.state.slots import BRIEF_S, Slots
from ciel.worker.state.uploads import Uploads

FETCHES_PER_TICK = 500
"""The maximum number of fetches that all attempts together start in one tick. Each takes about
15 us."""
REPORTED_AT_ONCE = 1000
"""The maximum number of stored objects in one report to a new master. Such a report takes the
worker and the master about 5 ms each."""

APART_FROM_BYTES = 256 << 10
"""Smaller inputs are copied as a whole: that takes no longer than to request parts of them."""

PASSED_PER_SLOT = 4
"""The first task of a job that has no other task here overtakes this many queued tasks for each
slot. The number is limited because an endless sequence of new jobs could starve older ones.
"""

REPORT_EVERY_S = 0.01
SUCCESSOR_WAIT_S = 0.001
"""The shortest time between two reports of successes: REPORT_EVERY_S while the worker has tasks in
its queue, SUCCESSOR_WAIT_S after an end that let a waiting task start here. A report wakes the
master, which wakes the client; this costs as much as a small program. Ends that are at least
BRIEF_S apart are reported at once.
"""

PATIENCE_S = 0.05
"""How long an attempt keeps slots while it asks for its disk. A free disk admits it within some
milliseconds; a busy one does so later, and meanwhile other tasks use the slots.
"""
AHEAD_OF_ALL = -PRIORITY_MAX - 1
"""The key in the queue of an attempt with a permit, whose disk is idle until it starts."""

_STORED = Concrete | Sweetheart


def _stores_of(ref: Reference) -> frozenset[str]:
    """Return where an object is in a store; nothing for a stream, a value or a process."""
    return ref.locations if isinstance(ref, _STORED) else frozenset()


def _number_of(key: Key) -> int:
    return key[1]


def _is_cancelled(ending: TaskFault | InputsLost | None) -> bool:
    """Return whether an attempt ends because the master has cancelled it."""
    return isinstance(ending, TaskFault) and ending.reason == CANCELLED.reason


class WorkerMachine:
    """The state of a worker, and its decisions. The service reports events, with their time."""

    def __init__(
        self,
        netloc: str,
        host: str,
        slots: int,
        *,
        interactive: Collection[str] = (),
        starts_locally: Collection[str] = (),
        memory_bytes: int = 0,
        resources: Iterable[Offer] = (),
        kill_grace_s: float = KILL_GRACE_S,
    ) -> None:
        """Create the state of a worker without tasks.

        `interactive`: the executors of interactive programs, whose programs are not launched before
        a slot is free. `starts_locally`: the executors whose tasks this worker may start itself
        when a parent task here spawns them. `memory_bytes`: the memory for programs; 0 if it is
        unknown. `resources`: the named resources of this worker. `kill_grace_s`: the time between
        SIGTERM and SIGKILL, for tasks that do not specify it.
        """
        self.netloc = netloc
        self._here = frozenset((netloc,))
        self.host = host
        self.slots = slots
        self.memory_bytes = memory_bytes
        self._kill_grace_s = kill_grace_s
        self._slots = Slots(slots, frozenset(interactive), memory_bytes)
        self._resources = ResourcePool(resources)
        # The indices that processes had which wait in the middle of a task, by fixed object.
        self._given_before: dict[ObjectId, Given] = {}
        self._attempts: dict[Key, Attempt] = {}
        self._orders: list[Order] = []
        self._reports: list[FromWorker] = []
        self._reports_are_urgent = False
        # Whether the last attempt that ended let another one start here.
        self._has_started_waiter, self._reported_at_s = False, 0.0
        self._ended_at_s = 0.0  # when the last attempt ended
        self.reports_first = False
        """Whether reports should leave before other programs start. If this worker dies, then the
        tasks that have ended do not run again. Brief programs start first, since messages cost as
        much time as they take."""
        self._stored: dict[ObjectId, int | None] = {}  # in this store, with known sizes
        self._kept: set[ObjectId] = set()  # stored since before this master was reached
        self._to_report: deque[ObjectId] = deque()  # of `_kept`, not reported yet
        self._is_listing = False  # the master does not know yet that the list is complete
        self._growing: dict[ObjectId, None] = {}  # incomplete objects that may be read
        self._fixed: dict[ObjectId, None] = {}  # of waiting processes
        self._recent: Recent[ObjectId, Value] = Recent()  # small results
        self._cancelled_late: Recent[Key, None] = Recent()  # attempts that had ended before
        self._local_starts = LocalStarts(frozenset(starts_locally))
        self.uploads = Uploads()
        self._entrusted: set[ObjectId] = set()  # copied by order of the master
        self._to_copy: dict[ObjectId, None] = {}  # of them, those that are being fetched
        self.is_draining = False
        self._drain_until_s: float | None = None
        self._hosts: dict[str, str] = {}
        self._waiting: Waiting[Key] = Waiting()
        self._to_fetch: deque[Reference] = deque()  # awaited, and not ordered yet
        self._fetching: dict[ObjectId, Reference] = {}
        self._queue: list[tuple[int, int, Key]] = []  # by priority, then order of arrival
        self._sequence = 0
        self._has_dropped = False  # the store has dropped copies since this worker began
        self._deadlines: list[tuple[float, Key]] = []
        self._asking: dict[Key, Attempt] = {}  # for their disks
        self._patience: deque[tuple[float, Key]] = deque()  # of attempts in `_asking`
        self._has_freed = False  # such slots, and `tick` gives them to other attempts

    # --- views ------------------------------------------------------------------------------------

    @property
    def resources(self) -> Sequence[Offer]:
        """The named resources that this worker offers."""
        return self._resources.offers

    @property
    def attempts(self) -> Mapping[Key, Attempt]:
        """The attempts that are not reported yet."""
        return self._attempts

    @property
    def stored(self) -> Mapping[ObjectId, int | None]:
        """The objects in this worker's store, with their sizes, or None where a size is unknown."""
        return self._stored

    @property
    def fixed(self) -> Collection[ObjectId]:
        """The fixed objects, for each of which a process waits."""
        return self._fixed

    @property
    def orders(self) -> Sequence[Order]:
        """The orders that the service has not taken yet."""
        return self._orders

    @property
    def reports(self) -> Sequence[FromWorker]:
        """The reports that the service has not taken yet."""
        return self._reports

    @property
    def queue_length(self) -> int:
        return len(self._queue)

    @property
    def slots_free(self) -> int:
        """The number of free slots; negative while programs are launched before a slot is free."""
        return self._slots.free

    def idle_slots(self) -> int | None:
        """Return the number of slots without a task.

        Return None if there are other workers: they may have idle slots, too.
        """
        return None if self._hosts else max(0, self.slots_free - len(self._queue))

    def recent_value(self, object_id: ObjectId) -> Value | None:
        """Return a small result that was produced here recently."""
        return self._recent.get(object_id)

    def plans_for(self, ref: Reference) -> tuple[Plan, ...]:
        """Return the ways to fetch an object."""
        return plans_for(ref, self.netloc, self.host, self._hosts)

    def is_droppable(self, object_id: str) -> bool:
        """Return whether the store may drop an object. Any thread may call this.

        It may if other workers exist, which may have a copy, if neither a user nor the master wants
        it to stay, and if no attempt reads it soon.
        """
        if not self._hosts or object_id in self.uploads.pinned or object_id in self._entrusted:
            return False
        return not self.is_read_next(object_id)

    def expects(self, object_id: ObjectId) -> bool:
        """Return whether the store has an object, or a fetch of it is in progress.

        Any thread may call this.
        """
        return object_id in self._stored or object_id in self._fetching

    def add_retained(self, objects: Mapping[ObjectId, int | None]) -> None:
        """Add the objects that the store has from an earlier run.

        Called before a master is reached.
        """
        self._stored.update(objects)

    # --- the master -------------------------------------------------------------------------------

    def master_message(self, message: Message, now_s: float) -> None:
        """Process a message from the master."""
        match message:
            case AssignTask():
                self._assigned(message, now_s)
            case CancelTask(task, attempt, aborts):
                self.cancel((task, attempt), ABORTED if aborts else CANCELLED, now_s)
            case RecallTasks(attempts):
                for key in attempts:
                    self._recalled(key)
            case DropObjects(objects, unless_complete):
                self._drop(objects, now_s, unless_complete=unless_complete)
            case CompareObjects(refs):
                here = [r for r in refs if isinstance(r, Concrete) and r.id in self._stored]
                self._orders.append(CompareContents(tuple(here)))
                self._drop(tuple([ref.id for ref in refs]), now_s)
            case MeetWorkers():
                message.apply_to(self._hosts, self.netloc)
            case CopyObjects(refs):
                self._copy(refs)
            case DrainWorker(timeout_s):
                self._drain(timeout_s, now_s)
            case DismissWorker():
                self._orders.append(LeaveMaster())

    def _drop(
        self, objects: tuple[ObjectId, ...], now_s: float, *, unless_complete: bool = False
    ) -> None:
        held = () if unless_complete else tuple([o for o in objects if o in self._stored])
        held = self.uploads.without_pinned(held, self._kept, now_s)
        for object_id in held:
            del self._stored[object_id]
        self._entrusted.difference_update(held)
        if held:
            self._orders.append(DeleteObjects(held))
        self._abandon(objects)
        self._end_processes([o for o in objects if o in self._fixed] if self._fixed else ())

    def content_differs(self, object_id: ObjectId) -> None:
        """Report that a second result, which is deleted, had other content than the first."""
        self._report(ContentDiffers(object_id))

    def _copy(self, refs: Iterable[Reference]) -> None:
        """Copy objects that this worker is entrusted with."""
        held: list[Reference] = []
        for ref in refs:
            self._entrusted.add(ref.id)
            if self._has(ref):
                held.append(Concrete(ref.id, self._stored[ref.id], self._here))
            else:
                self._to_copy[ref.id] = None
                self.fetch(ref)
        if held:
            self._report(ObjectsStored(tuple(held)))

    def _drain(self, timeout_s: float | None, now_s: float) -> None:
        """Prepare to leave: report the uploads that no job may have named yet."""
        self.is_draining = True
        self._drain_until_s = None if timeout_s is None else now_s + timeout_s
        recent = self.uploads.recent(now_s)
        refs = [Concrete(o, self._stored.get(o), self._here) for o in recent]
        if refs:
            self._report(ObjectsStored(tuple(refs), kept=True))

    def drain_left_s(self, now_s: float) -> float | None:
        """Return the time left until other workers run the tasks of this one; None: no limit."""
        return None if self._drain_until_s is None else max(self._drain_until_s - now_s, 0.0)

    def master_reached(self) -> None:
        """Start to report the stored objects to a new master."""
        self._to_report = deque(self._stored)
        self._is_listing = True
        self._kept = set(self._stored)
        self._report_retained()

    def master_restarted(self, unconfirmed: Sequence[Message]) -> list[Message]:
        """Continue with a master that has restarted. Attempts that run stay; those that do not are
        forgotten, as the master assigns their tasks again. `unconfirmed`: the messages that the
        earlier master has not confirmed. Returns the messages to be sent first: the attempts that
        stay, and the unconfirmed messages that are still true.
        """
        for attempt in list(self._attempts.values()):
            if attempt.phase in BEFORE_START:
                self._waiting.forget(attempt.key, [ref.id for ref in attempt.inputs])
                self._leave_disk(attempt)
                del self._attempts[attempt.key]
                self._leave_resources(attempt)
        self._to_fetch.clear()
        again = [message for message in unconfirmed if self._is_still_true(message)]
        pending = [*again, *self._reports]
        ends = {(m.task, m.attempt): m for m in pending if isinstance(m, TaskReported | InputsLost)}
        again = [self._without_lost_start(message, ends) for message in again]
        pending = [*again, *self._reports]
        # The master learns of a child that was started here when it learns of the child.
        spawned = {(m.spec.id, 0) for m in pending if isinstance(m, SpawnTask) and m.started}
        known = dict.fromkeys((*self._attempts, *ends))
        keys = [key for key in known if key not in spawned]
        kept = self._attempts.values()
        cancelled = [a.key for a in kept if a.ending is not None and _is_cancelled(a.ending)]
        cancelled += [key for key, m in ends.items() if self._was_cancelled(key, m)]
        opened = {ref.id for m in pending if isinstance(m, StreamsOpened) for ref in m.refs}
        streams: list[FromWorker] = []
        for attempt in kept:
            growing = [o for o in attempt.streams if o in self._growing and o not in opened]
            if growing and attempt.key not in spawned:
                refs = tuple([Stream(object_id, self._here) for object_id in growing])
                streams.append(StreamsOpened(*attempt.key, refs))
        self._reports[:0] = streams
        self._reports_are_urgent = True
        within = dict.fromkeys([a.key[0] for a in kept if not a.slots])
        # A task may have several attempts. The master adopts the latest, unless it was cancelled.
        latest = dict(sorted(keys, key=_number_of))
        ended = dict.fromkeys([task for task, n in cancelled if latest.get(task) == n])
        return [AttemptsKept(tuple(keys), tuple(within), tuple(ended)), *again]

    def _without_lost_start(self, message: Message, ends: Container[Key]) -> Message:
        """Do not say of a child that it was started here if its end will not be reported."""
        if not isinstance(message, SpawnTask) or not message.started:
            return message
        key = (message.spec.id, 0)
        has_end = key in ends and key not in self._cancelled_late
        return message._replace(started=key in self._attempts or has_end)

    def _was_cancelled(self, key: Key, end: TaskReported | InputsLost) -> bool:
        """Whether the earlier master has cancelled an attempt, before or after its end.

        After the end it has ignored what the attempt had reported, or some of it: the next master
        must not continue this attempt.
        """
        return _is_cancelled(getattr(end, "fault", None)) or key in self._cancelled_late

    def _is_still_true(self, message: Message) -> bool:
        """Whether a message is to be sent again to a master that has restarted.

        New reports replace those about the whole worker. If an output is not stored any more, the
        earlier master has ordered its deletion: then it had recorded the report, or ignored it.
        """
        match message:
            case AttemptsKept() | StoreListed():
                return False
            case TaskReported(published=refs) | ObjectsStored(refs):
                return all(ref.id in self._stored for ref in refs if self.netloc in _stores_of(ref))
        return True

    def _report_retained(self) -> None:
        """Report some of the stored objects. Later ticks report the rest, so that each is short."""
        refs: list[Reference] = []
        while self._to_report and len(refs) < REPORTED_AT_ONCE:
            object_id = self._to_report.popleft()
            if object_id in self._stored:
                refs.append(Concrete(object_id, self._stored[object_id], self._here))
        if refs:
            self._report(ObjectsStored(tuple(refs), kept=True))
        if self._is_listing and not self._to_report:
            self._is_listing = False
            if self._fixed:  # a master that has restarted may have released them before
                waiting = tuple([Fixed(object_id, self.netloc) for object_id in self._fixed])
                self._report(ObjectsStored(waiting, kept=True))
            self._report(StoreListed())

    def master_lost(self, now_s: float) -> None:
        """End all attempts: a master that restarts does not know them."""
        for key in list(self._attempts):
            self.cancel(key, CANCELLED, now_s)
        self._abandon(tuple(self._growing))
        self._end_processes(self._fixed)
        self.discard_reports()
        self._to_report.clear()
        self._is_listing = False
        self._to_fetch.clear()

    def _abandon(self, objects: Iterable[ObjectId]) -> None:
        """Stop copying the objects that are incomplete.

        The workers from which they are copied will not complete them, even if the connection is
        still open.
        """
        for object_id in objects:
            if object_id in self._growing and object_id in self._fetching:
                self._orders.append(AbandonFetch(object_id))

    def _end_processes(self, objects: Iterable[ObjectId]) -> None:
        ended = tuple(objects)
        for object_id in ended:
            del self._fixed[object_id]
            self._given_before.pop(object_id, None)
        if ended:
            self._orders.append(EndProcesses(ended))

    def _assigned(self, message: AssignTask, now_s: float) -> None:
        attempt = Attempt(message)
        if attempt.key in self._attempts:
            return  # a duplicate
        if attempt.key in self._cancelled_late:  # a master that was restarted uses the number again
            self._cancelled_late.forget(attempt.key)
        self._attempts[attempt.key] = attempt
        if not self._resources.can_hold(attempt.spec.needs.resources):
            text = f"worker {self.netloc} does not offer all resources that the task needs"
            fault = TaskFault("WORKER_FAULT", text)  # the master assigns no such task
            self._give_up(attempt, TaskReported(*attempt.key, (), fault, 0.0))
            return
        missing = []
        for ref in attempt.inputs:
            if (
                isinstance(ref, Value | Failure | Fixed)
                or self._has(ref)
                or attempt.is_unneeded(ref)
                or self._may_stay(ref, attempt)
            ):
                continue
            if (value := self._recent.get(ref.id)) is not None:
                self._replace_input(attempt, value)
            elif not isinstance(ref, Stream | Future) or ref.id not in self._growing:
                missing.append(ref)
            elif isinstance(ref, Future):  # dispatched eagerly, after its producer started
                self._replace_input(attempt, Stream(ref.id, self._here))
        if not missing:
            self._enqueue(attempt, now_s)
            return
        for ref in missing:
            if isinstance(ref, Future) and not self._is_produced_here(ref.id):
                self._give_up(attempt, returned(attempt))
                return
        self._await(attempt, missing)

    def _await(self, attempt: Attempt, missing: Sequence[Reference]) -> None:
        """Fetch the missing inputs of an attempt before it may start."""
        self._waiting.wait(attempt.key, [ref.id for ref in missing])
        self._to_fetch.extend([ref for ref in missing if not isinstance(ref, Future)])
        self._fetch_some()

    def _may_stay(self, ref: Reference, attempt: Attempt) -> bool:
        """Return whether a program reads an input in parts, if at all, from another host."""
        if ref.id not in attempt.spec.apart or not isinstance(ref, _STORED):
            return False
        if (ref.size_bytes or 0) < APART_FROM_BYTES:
            return False
        plans = self.plans_for(ref)
        return bool(plans) and isinstance(plans[0], HttpPlan)

    def _fetch_some(self) -> None:
        """Order the next fetches, at most `FETCHES_PER_TICK`.

        An attempt may have 100,000 inputs: later ticks order the rest, so that the worker serves
        its other tasks meanwhile.
        """
        for _ in range(min(len(self._to_fetch), FETCHES_PER_TICK)):
            ref = self._to_fetch.popleft()
            if self._waiting.is_awaited(ref.id):  # else no attempt waits for it any more
                self.fetch(ref)

    def _is_produced_here(self, object_id: ObjectId) -> bool:
        return any(object_id in attempt.spec.outputs for attempt in self._attempts.values())

    def _replace_input(self, attempt: Attempt, new: Value | Stream | Concrete) -> None:
        """Replace an input of a waiting attempt by a newer reference to the same object."""
        attempt.inputs = tuple([new if ref.id == new.id else ref for ref in attempt.inputs])

    def _has(self, ref: Reference) -> bool:
        """Return whether the store has the object of a reference.

        A copy from an earlier run is stale if the object was recomputed elsewhere: then the
        reference does not list this worker, and the master will order the deletion of the copy.
        """
        if ref.id not in self._stored:
            return False
        locations = locations_of(ref)
        return not locations or self.netloc in locations or ref.id not in self._kept

    def _give_up(self, attempt: Attempt, report: FromWorker) -> None:
        """End an attempt that has not started, and the attempts that wait here for its outputs."""
        self._waiting.forget(attempt.key, [ref.id for ref in attempt.inputs])
        self._close(attempt, report)
        self._return_waiters(attempt.spec.outputs)

    def _return_waiters(self, outputs: Iterable[ObjectId]) -> None:
        """Return to the master the attempts that wait for outputs which no task here produces."""
        pending = list(outputs)
        while pending:
            object_id = pending.pop()
            if not self._waiting.is_awaited(object_id) or object_id in self._fetching:
                continue
            if self._is_produced_here(object_id):
                continue
            for key in self._waiting.waiters_of(object_id):
                waiter = self._attempts[key]
                self._waiting.forget(key, [ref.id for ref in waiter.inputs])
                self._close(waiter, returned(waiter))
                pending += waiter.spec.outputs

    def is_read_next(self, object_id: str) -> bool:
        """Return whether a running attempt, or one that runs soon, reads an object.

        Any thread may call this.
        """
        slots = self._slots
        keys = [key for _, _, key in self._queue[: 2 * slots.count]]
        asking = list(self._asking.values())
        keys += self._resources.waiting
        attempts = [*slots.running.values(), *asking, *map(self._attempts.get, keys)]
        return any(each.reads(ObjectId(object_id)) for each in attempts if each is not None)

    def fetch(self, ref: Reference) -> None:
        """Order the fetch of an object, unless one is in progress."""
        if ref.id not in self._fetching:
            self._fetching[ref.id] = ref
            self._orders.append(FetchObject(ref, self.plans_for(ref)))

    def cancel(self, key: Key, fault: TaskFault, now_s: float) -> None:
        """End an attempt in any phase; report it as failed with `fault`."""
        attempt = self._attempts.get(key)
        if attempt is None:  # its report crossed the cancellation
            self._cancelled_late.put(key, None)
            return
        if attempt.phase is Phase.RUNNING:
            self._kill(attempt, fault, now_s)
        elif attempt.phase is not Phase.ENDING:
            self._give_up(attempt, TaskReported(*key, (), fault, 0.0))

    def abort(self, job: str, task: str | None, now_s: float) -> int:
        """End the attempts at one task of a job, or at all its tasks; return their number."""
        keys = [
            key
            for key, attempt in self._attempts.items()
            if attempt.spec.job == job and task in (None, key[0])
        ]
        for key in keys:
            self.cancel(key, ABORTED_HERE, now_s)
        return len(keys)

    def _recalled(self, key: Key) -> None:
        attempt = self._attempts.get(key)
        if attempt is None:
            return  # its report crossed the recall
        if attempt.phase in BEFORE_START:
            fault = TaskFault(RECALLED, "it was returned to the master before it started")
            self._give_up(attempt, TaskReported(*key, (), fault, 0.0))
        elif attempt.phase is Phase.RUNNING:
            self._orders.append(RecallAttempt(*key))

    # --- inputs -----------------------------------------------------------------------------------

    def fetched(self, object_id: ObjectId, now_s: float, size_bytes: int) -> None:
        """Add an object that a fetch has stored; report the copy."""
        self._fetching.pop(object_id, None)
        self._growing.pop(object_id, None)
        is_ordered = self._to_copy.pop(object_id, 0) is None
        if object_id not in self._stored or is_ordered:
            self._report(ObjectsStored((Concrete(object_id, size_bytes, self._here),)))
        self._add_stored(object_id, now_s, size_bytes)

    def _add_stored(self, object_id: ObjectId, now_s: float, size_bytes: int | None = None) -> None:
        """Add a stored object, and release the attempts that waited for it."""
        self._stored[object_id] = size_bytes
        self._kept.discard(object_id)
        self._release(object_id, now_s)

    def _release(self, object_id: ObjectId, now_s: float) -> None:
        for key in self._waiting.release(object_id):
            self._has_started_waiter = True
            self._enqueue(self._attempts[key], now_s)

    def fetch_failed(
        self,
        object_id: ObjectId,
        losses: tuple[str, ...],
        details: str,
        now_s: float,
        *,
        unreached: tuple[str, ...] = (),
        lacks_room: bool = False,
    ) -> None:
        """Give up the attempts that wait for an object which could not be fetched.

        Reports the locations that do not have the object (`losses`), and before that the locations
        of them that did not answer (`unreached`): these may have it.
        """
        self._fetching.pop(object_id, None)
        if unreached:
            self._report(WorkersUnreached(unreached))
        lost = tuple([(object_id, netloc) for netloc in losses])
        if self._to_copy.pop(object_id, 0) is None:
            self._entrusted.discard(object_id)
            missing_at = tuple([netloc for netloc in losses if netloc not in unreached])
            self._report(NotCopied(object_id, missing_at, details, lacks_room))
        for key in self._waiting.waiters_of(object_id):
            if (
                key in self._attempts
            ):  # else it was given up with another one, whose outputs it needed
                report = InputsLost(*key, lost, details, lacks_room)
                self._give_up(self._attempts[key], report)
        self._break_off(object_id, lost, details, now_s)

    def stream_opened(self, object_id: ObjectId, now_s: float) -> None:
        """Note that attempts here may read the copy of an object that another worker writes."""
        self._growing[object_id] = None
        self._release(object_id, now_s)

    def streams_opened(self, key: Key, objects: tuple[ObjectId, ...], now_s: float) -> None:
        """Note that outputs of a running attempt may be read while it writes them."""
        attempt = self._attempts.get(key)
        if attempt is None or attempt.phase is not Phase.RUNNING:
            return
        attempt.streams += objects
        self._growing.update(dict.fromkeys(objects))
        refs = [Stream(object_id, self._here) for object_id in objects]
        self._report(StreamsOpened(*key, tuple(refs)))
        for ref in refs:
            for waiter in self._waiting.waiters_of(ref.id):
                reader = self._attempts[waiter]
                if not reader.knows(ref.id):
                    self._replace_input(reader, ref)
                    if self._waiting.release_one(waiter, ref.id):
                        self._has_started_waiter = True
                        self._enqueue(reader, now_s)

    def stream_broken(self, object_id: ObjectId, details: str, now_s: float) -> None:
        """Note that a local output which may be read while it grows will never be complete."""
        self._break_off(object_id, ((object_id, self.netloc),), details, now_s)

    def _break_off(
        self,
        object_id: ObjectId,
        losses: tuple[tuple[ObjectId, str], ...],
        details: str,
        now_s: float,
    ) -> None:
        """End the readers of a growing object that will never be complete."""
        if self._growing.pop(object_id, 0) == 0:
            return
        for attempt in list(self._attempts.values()):
            if not attempt.reads(object_id):
                continue
            lost = InputsLost(*attempt.key, losses, details)
            if attempt.phase is Phase.RUNNING:
                self._kill(attempt, lost, now_s)
            elif attempt.phase is not Phase.ENDING and attempt.key in self._attempts:
                self._give_up(attempt, lost)

    def uploaded(self, object_id: ObjectId, now_s: float) -> None:
        """Note that a client has uploaded an object to this worker's store."""
        self.uploads.add(object_id, now_s)
        self._add_stored(object_id, now_s)
        if self.is_draining:
            self._report(ObjectsStored((Concrete(object_id, None, self._here),), kept=True))

    def offer_uploads(self, older_than_s: float, now_s: float) -> list[ObjectId]:
        """Report old uploads to the master; return their ids.

        The master orders the deletion of uploads that it does not know.
        """
        offered = self.uploads.old(now_s, older_than_s)
        refs = tuple([Concrete(each, self._stored.get(each), self._here) for each in offered])
        if refs:
            self._reports.append(ObjectsStored(refs, kept=True, idle=True))
        return offered

    def dropped(self, object_id: ObjectId) -> None:
        """Note that the store has deleted an object because it was full."""
        self._stored.pop(object_id, None)
        self._has_dropped = True

    def damaged(self, object_id: ObjectId) -> None:
        """Report that an object was deleted, since it was damaged."""
        if object_id in self._stored:
            del self._stored[object_id]
            self._report(ObjectsStored((Tombstone(object_id, self._here),)))

    def preferred(self, ref: Sweetheart) -> None:
        """Report that readers of an object should run here (a `Sweetheart` reference)."""
        if ref.id in self._stored:
            self._reports.append(ObjectsStored((ref,)))

    def copied(self, netloc: str, size_bytes: int, run_s: float) -> None:
        """Note how long a copy from another worker took, which is reported with the copy."""
        if size_bytes >= MEASURED_FROM_BYTES:
            self._reports.append(CopyTimed(netloc, size_bytes, run_s))

    def printed(self, printed: TaskPrinted) -> None:
        """Report text that an attempt has printed. This report is not urgent."""
        self._reports.append(printed)

    def process_attached(self, fixed: ObjectId) -> None:
        """Note that a process on this host waits for the root task of a new job."""
        self._fixed[fixed] = None

    def process_left(self, fixed: ObjectId) -> None:
        """Note that an attached process does not wait any more."""
        self._fixed.pop(fixed, None)

    # --- running ----------------------------------------------------------------------------------

    def _enqueue(self, attempt: Attempt, now_s: float) -> None:
        if attempt.spec.needs.resources and not self._has_resources(attempt):
            attempt.phase = Phase.SHORT
            return
        if not self._queue and self._slots.fit(attempt):
            self._start(attempt, now_s)
            return
        self._push(attempt)
        self._start_next(now_s)

    def _push(self, attempt: Attempt) -> None:
        attempt.phase = Phase.QUEUED
        if attempt.position is None:
            attempt.position = self._position_of(attempt)
        heappush(self._queue, (-attempt.spec.needs.priority, attempt.position, attempt.key))

    def _has_resources(self, attempt: Attempt) -> bool:
        """Whether an attempt has its resources; if not, it waits for them.

        An attempt that continues in a process gets the indices that the process had: a library that
        has opened a device cannot change to another one.
        """
        needs = attempt.spec.needs
        again: Given = ()
        for ref in attempt.inputs if self._given_before else ():
            again = self._given_before.get(ref.id, again)
        key = attempt.key
        return self._resources.has(key) or self._resources.ask(
            key, needs.resources, needs.priority, again
        )

    def _leave_resources(self, attempt: Attempt) -> None:
        """Take an attempt's resources back, and queue the attempts that have theirs now."""
        if not attempt.spec.needs.resources:
            return
        for key in self._resources.leave(attempt.key):
            self._push(self._attempts[key])
            self._has_freed = True

    def _position_of(self, attempt: Attempt) -> int:
        """Return the position of an attempt in the queue: the last, or earlier if it is the only
        one of its job.
        """
        self._sequence += 1
        job = attempt.spec.job
        if all(other.spec.job != job or other is attempt for other in self._attempts.values()):
            return self._sequence - PASSED_PER_SLOT * self._slots.count
        return self._sequence

    def _start_next(self, now_s: float) -> None:
        """Start queued tasks in order, up to the first one that does not fit.

        So smaller tasks do not overtake a task that needs many slots.
        """
        while self._queue and self._slots.has_room:
            key = self._queue[0][2]
            attempt = self._attempts.get(key)
            if attempt is None or attempt.phase is not Phase.QUEUED:
                heappop(self._queue)
                continue
            if not self._slots.fit(attempt):
                return
            heappop(self._queue)
            self._start(attempt, now_s)

    def _start(self, attempt: Attempt, now_s: float) -> None:
        if self._has_dropped and (dropped := self._dropped_inputs(attempt)):
            self._leave_disk(attempt)  # which the fetches may need
            attempt.phase = Phase.FETCHING
            self._leave_resources(attempt)
            self._await(attempt, dropped)
            return
        if attempt.spec.needs.io and attempt.disk is not Disk.PERMIT:
            self._ask_for_disk(attempt, now_s)
            return
        attempt.phase = Phase.RUNNING
        for ref in attempt.inputs:
            if isinstance(ref, Stream) and (value := self._recent.get(ref.id)) is not None:
                self._replace_input(attempt, value)
            elif (
                isinstance(ref, Future) and ref.id in self._stored and not attempt.is_unneeded(ref)
            ):
                # The attempt was dispatched before the object existed.
                self._replace_input(attempt, Concrete(ref.id, self._stored[ref.id], self._here))
        has_slots = attempt.key in self._slots.running
        at_most = 0 if has_slots else self._slots.take(attempt)
        if attempt.key[1] > 1:  # a retry: if it kills this worker, the master must know that it ran
            self._reports_are_urgent = True
        timeout_s = attempt.spec.needs.timeout_s
        if timeout_s:
            heappush(self._deadlines, (now_s + timeout_s, attempt.key))
        may_run_children = self._local_starts.may_run_children(attempt.spec, attempt.key[1])
        number, inputs, taken = attempt.key[1], attempt.inputs, attempt.taken
        given = self._resources.given(attempt.key) if attempt.spec.needs.resources else ()
        self._orders.append(
            StartAttempt(attempt.spec, number, inputs, at_most, may_run_children, taken, given)
        )

    def _dropped_inputs(self, attempt: Attempt) -> list[Reference]:
        """Return the inputs that the store has dropped since the attempt was assigned."""
        return [
            ref
            for ref in attempt.inputs
            if isinstance(ref, _STORED)
            and ref.id not in self._stored
            and not self._may_stay(ref, attempt)
        ]

    def _ask_for_disk(self, attempt: Attempt, now_s: float) -> None:
        """Ask for a permit of an attempt's disk. Keep slots meanwhile, unless the disk is busy."""
        io = attempt.spec.needs.io
        is_busy = self._next_for(io) is not None
        attempt.phase, attempt.disk = Phase.ASKING, Disk.ASKED
        self._asking[attempt.key] = attempt
        self._orders.append(AskForDisk(*attempt.key, io, attempt.input_bytes))
        if not is_busy:
            self._keep_slots(attempt, now_s)

    def _next_for(self, io: str) -> Attempt | None:
        """Return the first attempt that asks for a disk, and keeps no slots meanwhile."""
        for attempt in self._asking.values():
            if attempt.spec.needs.io == io and attempt.key not in self._slots.running:
                return attempt
        return None

    def _keep_slots(self, attempt: Attempt, now_s: float) -> None:
        self._slots.take(attempt)
        self._patience.append((now_s + PATIENCE_S, attempt.key))

    def disk_admitted(self, key: Key, now_s: float) -> None:
        """Start an attempt that has a permit of its disk now, or queue it ahead of all others."""
        attempt = self._asking.pop(key, None)
        if attempt is None:
            return  # it has ended; the order to give the permit back follows
        attempt.disk = Disk.PERMIT
        if key in self._slots.running or self._slots.fit(attempt):
            self._start(attempt, now_s)
            return
        attempt.phase = Phase.QUEUED
        if attempt.position is None:
            attempt.position = self._position_of(attempt)
        heappush(self._queue, (AHEAD_OF_ALL, attempt.position, key))

    def waits(self, key: Key) -> None:
        """Note that a running attempt waits for an object or a task, which may need its disk."""
        attempt = self._attempts.get(key)
        if attempt is not None:
            self._leave_disk(attempt)

    def _leave_disk(self, attempt: Attempt) -> None:
        """Give back the permit of an attempt, or stop asking for it."""
        if attempt.disk is Disk.NONE:
            return
        attempt.disk = Disk.NONE
        self._orders.append(LeaveDisk(*attempt.key))
        self._asking.pop(attempt.key, None)
        if attempt.phase is Phase.ASKING and attempt.key in self._slots.running:
            self._slots.give_back(attempt)
            self._has_freed = True

    def _refill(self, ended: Attempt, now_s: float) -> None:
        """Give the slots of an ended attempt first to the next attempt that asks for its disk."""
        following = self._next_for(ended.spec.needs.io) if ended.spec.needs.io else None
        if following is not None and self._slots.fit(following):
            self._keep_slots(following, now_s)
        self._start_next(now_s)

    def spawned(
        self, key: Key, spec: TaskSpec, known: tuple[Reference, ...], now_s: float,
        *, wanted: bool | None = None,
    ) -> None:  # fmt: skip
        """Report a task that a running attempt has created.

        Start it here at once if a result is not wanted elsewhere first, its inputs are here, and it
        does not overtake queued tasks. The report says whether it starts, and precedes the reports
        of its outputs.
        """
        if not self._may_create(key, known, now_s):
            return
        if wanted:
            self.waits(key)
        inputs = None
        if wanted is None:
            inputs = self._local_starts.inputs_at_hand(
                spec, known, self._recent, self._stored, self.netloc
            )
        starts_now = inputs is not None and not self._queue and spec.needs.slots <= self.slots_free
        starts_now = starts_now and self._slots.has_memory(spec.needs.memory_bytes)
        starts_now = starts_now and not self.is_draining
        self._report(SpawnTask(spec, known, key[1], starts_now, bool(wanted)))
        if starts_now and inputs is not None:
            self._local_starts.note(spec.id)
            child = Attempt(AssignTask(spec, 0, inputs))
            self._attempts[child.key] = child
            self._start(child, now_s)

    def child_started_inline(
        self, key: Key, spec: TaskSpec, known: tuple[Reference, ...], now_s: float
    ) -> None:
        """Report a task that the program of a running attempt has created and runs inline.

        Such a task shares the slots of the running attempt.
        """
        self._local_starts.note(spec.id)  # even if the task is not reported
        if self._may_create(key, known, now_s):
            self._report(SpawnTask(spec, known, key[1], True, True))
            child = Attempt(AssignTask(spec, 0, known))
            child.slots, child.memory_bytes, child.phase = 0, 0, Phase.RUNNING
            self._slots.take(child)
            self._attempts[child.key] = child

    def _may_create(self, key: Key, known: tuple[Reference, ...], now_s: float) -> bool:
        """Return whether an attempt may create tasks.

        If so, add those of its published outputs that the tasks know as inputs: other workers may
        fetch them from here.
        """
        attempt = self._attempts.get(key)
        if attempt is None or attempt.phase is not Phase.RUNNING:
            return False
        for ref in known:
            is_own = ref.id in attempt.spec.outputs or ref.id.startswith(key[0])
            if is_own and self.netloc in locations_of(ref):
                self._add_published((ref,), now_s)
        return True

    def ended(
        self,
        key: Key,
        published: tuple[Reference, ...],
        fault: TaskFault | None,
        run_s: float,
        now_s: float,
        exit_status: int | None = None,
    ) -> None:
        """Report an attempt whose processes have all ended."""
        attempt = self._attempts.get(key)
        if attempt is None or attempt.phase not in (Phase.RUNNING, Phase.ENDING):
            self.outputs_discarded(tuple([r.id for r in published if isinstance(r, _STORED)]))
            return
        self._has_started_waiter = False
        self.reports_first = now_s >= self._ended_at_s + BRIEF_S
        if self.reports_first:
            self._reports_are_urgent = True
        self._ended_at_s = now_s
        self._slots.give_back(attempt)
        if fault is None:
            self._slots.learn(attempt, run_s)
        ending = attempt.ending
        if ending is not None:
            self.outputs_discarded(tuple([r.id for r in published if isinstance(r, _STORED)]))
            self._end_processes_of(published)
            published = ()
        if isinstance(ending, InputsLost):
            self._close(attempt, ending)
        else:
            fault = fault if ending is None else ending_of(ending, fault)
            if attempt.spec.needs.resources:
                self._note_given(attempt, published)
            self._close(attempt, TaskReported(*key, published, fault, run_s, exit_status))
        self._add_published(published, now_s)
        self._settle(attempt, published, now_s)
        self._refill(attempt, now_s)

    def _note_given(self, attempt: Attempt, published: Iterable[Reference]) -> None:
        """Note the indices of a process that waits in the middle of its task from now on."""
        given = self._resources.given(attempt.key)
        for ref in published if given else ():
            if isinstance(ref, Fixed):
                self._given_before[ref.id] = given

    def _settle(self, attempt: Attempt, published: tuple[Reference, ...], now_s: float) -> None:
        """Release the attempts that waited for published outputs of an attempt.

        The attempts that waited for its other outputs are returned to the master.
        """
        for ref in published:
            self._growing.pop(ref.id, None)
            if isinstance(ref, Value):
                self._recent.put(ref.id, ref)
                if self._waiting.is_awaited(ref.id):
                    for key in self._waiting.waiters_of(ref.id):
                        self._replace_input(self._attempts[key], ref)
                    self._release(ref.id, now_s)
            elif isinstance(ref, Fixed):
                self._fixed[ref.id] = None
        self._return_waiters(attempt.spec.outputs)
        for object_id in attempt.streams:
            lost = ((object_id, self.netloc),)
            self._break_off(object_id, lost, f"{object_id}: its producer has failed", now_s)

    def _add_published(self, published: tuple[Reference, ...], now_s: float) -> None:
        for ref in published:
            if isinstance(ref, _STORED) and ref.id not in self._stored:
                self._add_stored(ref.id, now_s, ref.size_bytes)

    def outputs_discarded(self, objects: tuple[ObjectId, ...]) -> None:
        """Delete outputs from this worker's store, except for those that were reported."""
        unknown = tuple([object_id for object_id in objects if object_id not in self._stored])
        if unknown:
            self._orders.append(DeleteObjects(unknown))

    def _end_processes_of(self, published: tuple[Reference, ...]) -> None:
        fixed = tuple([ref.id for ref in published if isinstance(ref, Fixed)])
        if fixed:
            self._orders.append(EndProcesses(fixed))

    def inputs_gone(
        self, key: Key, losses: tuple[tuple[ObjectId, str], ...], details: str, now_s: float
    ) -> None:
        """Report that inputs of a started attempt were missing; no process of the attempt runs."""
        attempt = self._attempts.get(key)
        if attempt is None:
            return
        self._slots.give_back(attempt)
        for object_id, netloc in losses:
            if netloc == self.netloc:
                self._stored.pop(object_id, None)
                self._fixed.pop(object_id, None)
                self._given_before.pop(object_id, None)
        ending = attempt.ending or InputsLost(*key, losses, details)
        if isinstance(ending, TaskFault):
            self._close(attempt, TaskReported(*key, (), ending, 0.0))
        else:
            self._close(attempt, ending)
        self._settle(attempt, (), now_s)
        self._refill(attempt, now_s)

    def _close(self, attempt: Attempt, report: FromWorker) -> None:
        self._leave_disk(attempt)
        del self._attempts[attempt.key]
        self._leave_resources(attempt)
        self._report(report)

    def _report(self, report: FromWorker) -> None:
        self._reports.append(report)
        if type(report) is not TaskReported or report.fault is not None:
            self._reports_are_urgent = True

    def take_orders(self) -> list[Order]:
        """Remove and return the orders for the service."""
        orders, self._orders = self._orders, []
        return orders

    def discard_reports(self) -> None:
        """Drop all reports: the master that they were meant for is gone."""
        self._reports.clear()

    def take_reports(self, now_s: float) -> list[FromWorker]:
        """Remove and return the reports to send now.

        Returns none while they can wait for further reports; `due_s` is the end of that wait.
        """
        if not self._reports:
            return []
        if not self._reports_are_urgent and now_s < self._reports_due_s:
            return []
        self._reported_at_s = now_s
        self._reports_are_urgent = False
        reports, self._reports = self._reports, []
        if self._to_report:
            self._report_retained()
        return reports

    @property
    def _reports_due_s(self) -> float:
        """The time at which successes are reported at the latest."""
        # Tasks on other workers may wait for the result, so without a queue the wait is short.
        short_s = SUCCESSOR_WAIT_S if self._has_started_waiter else 0.0
        return self._reported_at_s + (REPORT_EVERY_S if self._queue else short_s)

    # --- time -------------------------------------------------------------------------------------

    def _kill(self, attempt: Attempt, ending: TaskFault | InputsLost, now_s: float) -> None:
        attempt.phase = Phase.ENDING
        attempt.ending = ending
        self._orders.append(KillAttempt(*attempt.key, force=False))
        asked_s = attempt.spec.needs.kill_grace_s
        grace_s = self._kill_grace_s if asked_s < 0 else asked_s
        heappush(self._deadlines, (now_s + grace_s, attempt.key))
        streams, attempt.streams = attempt.streams, ()
        for object_id in streams:  # another attempt here may produce it before this one has ended
            lost = ((object_id, self.netloc),)
            self._break_off(object_id, lost, f"{object_id}: its producer is being ended", now_s)

    def tick(self, now_s: float) -> None:
        """Act on the time limits that have passed, and order further fetches."""
        self._fetch_some()
        while self._patience and self._patience[0][0] <= now_s:
            asking = self._asking.get(self._patience.popleft()[1])
            if asking is not None and asking.key in self._slots.running:
                self._slots.give_back(asking)
                self._has_freed = True
        if self._has_freed:
            self._has_freed = False
            self._start_next(now_s)
        while self._deadlines and self._deadlines[0][0] <= now_s:
            key = heappop(self._deadlines)[1]
            attempt = self._attempts.get(key)
            if attempt is None:
                continue
            if attempt.phase is Phase.ENDING:
                self._orders.append(KillAttempt(*key, force=True))
            elif attempt.phase is Phase.RUNNING:
                limit_s = attempt.spec.needs.timeout_s
                details = f"it ran longer than its limit of {limit_s:g} s"
                self._kill(attempt, TaskFault("TIMED_OUT", details), now_s)

    def due_s(self) -> float | None:
        """Return the time at which to call `tick`, then `take_reports`; None if not needed."""
        if self._to_fetch or self._has_freed:
            return 0.0
        while self._deadlines and self._deadlines[0][1] not in self._attempts:
            heappop(self._deadlines)
        due_s = self._deadlines[0][0] if self._deadlines else None
        if self._patience:
            due_s = self._patience[0][0] if due_s is None else min(due_s, self._patience[0][0])
        if self._reports:
            return self._reports_due_s if due_s is None else min(due_s, self._reports_due_s)
        return due_s

    # --- invariants -------------------------------------------------------------------------------

    def problems(self) -> Iterator[str]:
        """Yield the broken invariants, each with its code. All hold after each event."""
        slots, waiting = self._slots, self._waiting
        attempts = self._attempts.values()
        yield from self._resources.problems()
        short = [attempt.key for attempt in attempts if attempt.phase is Phase.SHORT]
        if sorted(short) != sorted(self._resources.waiting):
            yield f"W8 {short} are short of resources, but {self._resources.waiting} wait"
        for attempt in attempts:
            is_held = attempt.phase in (Phase.QUEUED, Phase.ASKING, Phase.RUNNING, Phase.ENDING)
            needs = attempt.spec.needs.resources
            if self._resources.has(attempt.key) != (is_held and bool(needs)):
                yield f"W8 {attempt.key} is {attempt.phase.value}, the resource pool disagrees"
        running = list(slots.running.values())
        for attempt in attempts:
            has_slots, phase = attempt.key in slots.running, attempt.phase
            if has_slots != (phase in (Phase.RUNNING, Phase.ENDING)) and phase is not Phase.ASKING:
                yield f"W5 {attempt.key} is {phase.value}, the table of slots disagrees"
            if (phase is Phase.ASKING) != (attempt.key in self._asking):
                yield f"W6 {attempt.key} is {phase.value}, the table of disks disagrees"
        if slots.free + sum([a.slots for a in running]) != self.slots:
            yield f"W1 {slots.free} slots are free of {self.slots}, {len(running)} run"
        for key, attempt in self._attempts.items():
            if (attempt.phase is Phase.FETCHING) != (key in waiting):
                yield f"W2 {key} is {attempt.phase.value}, the waiting table disagrees"
        for object_id in self._stored:
            if object_id not in self._kept and waiting.is_awaited(object_id):
                yield f"W3 {object_id} is awaited, but stored"
        taken = sum([min(a.memory_bytes, self.memory_bytes) for a in running])
        if slots.memory_free + taken != self.memory_bytes or slots.memory_free < 0:
            free, of = slots.memory_free, self.memory_bytes
            yield f"W4 {free} bytes of memory are free of {of}, {taken} are taken"
