"""The worker's machine: assignments and results go in, orders for its service come out.

An attempt fetches its inputs, waits for slots, runs, and is reported. It is in exactly one phase;
what is true only in one phase lies in that phase's collection. Orders pile up in `outbox`, which
the service empties after each batch of events; then it asks for the messages to the master.
"""

from __future__ import annotations

from enum import Enum
from heapq import heappop, heappush
from typing import NamedTuple

from ciel.core.events import (
    RECALLED,
    AssignTask,
    CancelTask,
    DropObjects,
    FromWorker,
    InputsLost,
    MeetWorkers,
    Message,
    ObjectsStored,
    RecallTasks,
    SpawnTask,
    TaskFault,
    TaskReported,
)
from ciel.core.ids import ObjectId, TaskId
from ciel.core.refs import Concrete, Failure, Reference, Value
from ciel.core.tasks import TaskSpec
from ciel.core.waiting import Waiting
from ciel.worker.state.plans import Plan, plans_for

KILL_GRACE_S = 0.25
"""Between the polite signal and the one that cannot be ignored, when a time limit has passed."""


REPORT_EVERY_S = 0.01
"""A worker that has work waiting reports successes no more often: each report wakes the master, and
that its client, which together costs as much as a small program.
"""


BRIEF_S = 0.005
"""Of programs that take less than this, some are prepared ahead of a free slot, ..."""
AHEAD_S = 0.01
"""...as many as run in this time, so that one follows the other without a word from us."""
AHEAD_MAX = 16


class Phase(Enum):
    """What an attempt on this worker is doing."""

    FETCHING = "fetching"
    QUEUED = "queued"
    RUNNING = "running"
    ENDING = "ending"  # called off or out of time; its program is being killed

    __hash__ = object.__hash__


# --- orders for the service -----------------------------------------------------------------------


class FetchObject(NamedTuple):
    """Get an object into the own store by the first plan that works; answer with `fetched`."""

    ref: Reference
    plans: tuple[Plan, ...]


class StartAttempt(NamedTuple):
    """Run a task; answer with `ended`, exactly once, whatever happens. `at_most`: its program is to
    wait until fewer than that run here; 0: it is not to wait.
    """

    spec: TaskSpec
    attempt: int
    inputs: tuple[Reference, ...]
    at_most: int


class KillAttempt(NamedTuple):
    """End a running program: politely, or at once."""

    task: TaskId
    attempt: int
    force: bool


class RecallAttempt(NamedTuple):
    """End an attempt whose program still waits, with the fault `RECALLED`; else let it be."""

    task: TaskId
    attempt: int


class DeleteObjects(NamedTuple):
    """Delete objects from the own store."""

    objects: tuple[ObjectId, ...]


Order = FetchObject | StartAttempt | KillAttempt | RecallAttempt | DeleteObjects
Key = tuple[TaskId, int]


class Attempt:
    """One attempt at a task on this worker."""

    __slots__ = ("ending", "inputs", "key", "phase", "slots", "spec")

    def __init__(self, message: AssignTask) -> None:
        self.spec = message.spec
        self.key: Key = (message.spec.id, message.attempt)
        self.inputs = message.inputs
        self.slots = message.spec.needs.slots
        self.phase = Phase.FETCHING
        self.ending: TaskFault | None = None  # why it is being killed


class WorkerMachine:
    """All that a worker knows and decides."""

    def __init__(self, netloc: str, host: str, slots: int) -> None:
        self.netloc = netloc
        self.host = host
        self.slots = slots
        self.slots_free = slots
        self.attempts: dict[Key, Attempt] = {}
        self.outbox: list[Order] = []
        self._reports: list[FromWorker] = []
        self._reports_are_urgent = False
        self._reports_due_s = 0.0  # so long successes may wait
        self.stored: dict[ObjectId, None] = {}  # what the own store holds
        self._hosts: dict[str, str] = {}
        self._waiting: Waiting[Key] = Waiting()
        self._fetching: dict[ObjectId, Reference] = {}
        self._queue: list[tuple[int, int, Key]] = []  # by priority, then order of arrival
        self._sequence = 0
        self._deadlines: list[tuple[float, Key]] = []
        self._run_s = 2 * BRIEF_S  # what programs take here, about
        self._ahead = 0  # how many may be prepared
        self._wide: list[int] = []  # the slots of those that run and have more than one

    # --- the master -------------------------------------------------------------------------------

    def master_said(self, message: Message, now_s: float) -> None:
        """Take one message of the master."""
        match message:
            case AssignTask():
                self._assigned(message, now_s)
            case CancelTask(task, attempt):
                self._cancelled((task, attempt), now_s)
            case RecallTasks(attempts):
                for key in attempts:
                    self._recalled(key)
            case DropObjects(objects):
                held = tuple([object_id for object_id in objects if object_id in self.stored])
                for object_id in held:
                    del self.stored[object_id]
                if held:
                    self.outbox.append(DeleteObjects(held))
            case MeetWorkers(neighbours):
                self._hosts = {neighbour.netloc: neighbour.host for neighbour in neighbours}

    def master_joined(self) -> None:
        """A master was reached: it is told what the store holds."""
        if self.stored:
            here = frozenset((self.netloc,))
            refs = tuple([Concrete(object_id, None, here) for object_id in self.stored])
            for start in range(0, len(refs), 1000):
                self._report(ObjectsStored(refs[start : start + 1000]))

    def master_lost(self, now_s: float) -> None:
        """The master is gone and will not know these attempts when it is back: they are ended."""
        for key in list(self.attempts):
            self._cancelled(key, now_s)
        self._reports.clear()

    def _assigned(self, message: AssignTask, now_s: float) -> None:
        attempt = Attempt(message)
        if attempt.key in self.attempts:
            return  # said twice
        self.attempts[attempt.key] = attempt
        missing = []
        for ref in attempt.inputs:
            if isinstance(ref, Value | Failure) or ref.id in self.stored:
                continue
            missing.append(ref)
        if not missing:
            self._enqueue(attempt, now_s)
            return
        self._waiting.wait(attempt.key, [ref.id for ref in missing])
        for ref in missing:
            if ref.id not in self._fetching:
                self._fetching[ref.id] = ref
                plans = plans_for(ref, self.netloc, self.host, self._hosts)
                self.outbox.append(FetchObject(ref, plans))

    def _cancelled(self, key: Key, now_s: float) -> None:
        attempt = self.attempts.get(key)
        if attempt is None:
            return  # its report crossed the cancellation
        fault = TaskFault("CANCELLED", "it was called off")
        if attempt.phase is Phase.RUNNING:
            self._kill(attempt, fault, now_s)
        elif attempt.phase is not Phase.ENDING:
            self._waiting.forget(key, [ref.id for ref in attempt.inputs])
            self._close(attempt, TaskReported(*key, (), fault, 0.0))

    def _recalled(self, key: Key) -> None:
        attempt = self.attempts.get(key)
        if attempt is None:
            return  # its report crossed the recall
        if attempt.phase is Phase.FETCHING or attempt.phase is Phase.QUEUED:
            self._waiting.forget(key, [ref.id for ref in attempt.inputs])
            fault = TaskFault(RECALLED, "it was given back before it began")
            self._close(attempt, TaskReported(*key, (), fault, 0.0))
        elif attempt.phase is Phase.RUNNING:
            self.outbox.append(RecallAttempt(*key))

    # --- inputs -----------------------------------------------------------------------------------

    def fetched(self, object_id: ObjectId, now_s: float, size_bytes: int) -> None:
        """An object is in the own store now; the master learns of the copy."""
        self._fetching.pop(object_id, None)
        if object_id not in self.stored:
            here = frozenset((self.netloc,))
            self._report(ObjectsStored((Concrete(object_id, size_bytes, here),)))
        self._hold(object_id, now_s)

    def _hold(self, object_id: ObjectId, now_s: float) -> None:
        """Note that the own store has an object, whichever way it came; who awaited it goes on."""
        self.stored[object_id] = None
        for key in self._waiting.release(object_id):
            self._enqueue(self.attempts[key], now_s)

    def fetch_failed(
        self, object_id: ObjectId, losses: tuple[str, ...], details: str, now_s: float
    ) -> None:
        """No plan worked: whoever waits for the object comes to nothing, and the master hears where
        not.
        """
        self._fetching.pop(object_id, None)
        for key in self._waiting.waiters_of(object_id):
            attempt = self.attempts[key]
            self._waiting.forget(key, [ref.id for ref in attempt.inputs])
            lost = tuple([(object_id, place) for place in losses])
            self._close(attempt, InputsLost(*key, lost, details))

    def uploaded(self, object_id: ObjectId, now_s: float) -> None:
        """A client left an object in the own store."""
        self._hold(object_id, now_s)

    # --- running ----------------------------------------------------------------------------------

    def _enqueue(self, attempt: Attempt, now_s: float) -> None:
        if not self._queue and self._fits(attempt):
            self._start(attempt, now_s)
            return
        attempt.phase = Phase.QUEUED
        self._sequence += 1
        heappush(self._queue, (-attempt.spec.needs.priority, self._sequence, attempt.key))
        self._start_next(now_s)

    def _start_next(self, now_s: float) -> None:
        """Start what fits, in order; a task of many slots is not overtaken by smaller ones."""
        while self._queue and self.slots_free > -self._ahead:
            key = self._queue[0][2]
            attempt = self.attempts.get(key)
            if attempt is None or attempt.phase is not Phase.QUEUED:
                heappop(self._queue)
                continue
            if not self._fits(attempt):
                return
            heappop(self._queue)
            self._start(attempt, now_s)

    def _fits(self, attempt: Attempt) -> bool:
        """Whether there are slots for an attempt, or it may be prepared ahead: then nothing of it
        is on the way in, and no time limit runs.
        """
        if attempt.slots <= self.slots_free:
            return True
        spec = attempt.spec
        is_plain = attempt.slots == 1 and not spec.inputs and not spec.needs.timeout_s
        return is_plain and self.slots_free > -self._ahead

    def _start(self, attempt: Attempt, now_s: float) -> None:
        attempt.phase = Phase.RUNNING
        at_most = 0
        if attempt.slots > self.slots_free:  # all slots but those of wide ones run one program each
            at_most = self.slots - sum(self._wide) + len(self._wide)
        if attempt.slots > 1:
            self._wide.append(attempt.slots)
        self.slots_free -= attempt.slots
        timeout_s = attempt.spec.needs.timeout_s
        if timeout_s:
            heappush(self._deadlines, (now_s + timeout_s, attempt.key))
        self.outbox.append(StartAttempt(attempt.spec, attempt.key[1], attempt.inputs, at_most))

    def _free_slots(self, attempt: Attempt) -> None:
        self.slots_free += attempt.slots
        if attempt.slots > 1:
            self._wide.remove(attempt.slots)

    def _learn(self, run_s: float) -> None:
        """Note how long a program took."""
        self._run_s += 0.2 * (run_s - self._run_s)
        ahead = int(AHEAD_S / self._run_s * self.slots) if self._run_s < BRIEF_S else 0
        self._ahead = min(ahead, max(AHEAD_MAX, self.slots))

    def spawned(self, key: Key, spec: TaskSpec, known: tuple[Reference, ...]) -> None:
        """A running attempt created a task."""
        attempt = self.attempts.get(key)
        if attempt is not None and attempt.phase is Phase.RUNNING:
            self._report(SpawnTask(spec, known, key[1]))

    def ended(
        self,
        key: Key,
        published: tuple[Reference, ...],
        fault: TaskFault | None,
        run_s: float,
        now_s: float,
    ) -> None:
        """An attempt is over and nothing of it runs any more."""
        attempt = self.attempts.get(key)
        if attempt is None or attempt.phase not in (Phase.RUNNING, Phase.ENDING):
            return
        self._free_slots(attempt)
        if run_s and fault is None:
            self._learn(run_s)
        made = tuple(
            [r.id for r in published if isinstance(r, Concrete) and r.id not in self.stored]
        )
        if attempt.ending is not None:
            if made:
                self.outbox.append(DeleteObjects(made))
            published, fault = (), _ending(attempt.ending, fault)
            made = ()
        self._close(attempt, TaskReported(*key, published, fault, run_s))
        for object_id in made:
            self._hold(object_id, now_s)
        self._start_next(now_s)

    def inputs_gone(
        self, key: Key, objects: tuple[ObjectId, ...], details: str, now_s: float
    ) -> None:
        """An attempt that was started found inputs missing from the own store; nothing ran."""
        attempt = self.attempts.get(key)
        if attempt is None:
            return
        self._free_slots(attempt)
        for object_id in objects:
            self.stored.pop(object_id, None)
        losses = tuple([(object_id, self.netloc) for object_id in objects])
        if attempt.ending is not None:
            self._close(attempt, TaskReported(*key, (), attempt.ending, 0.0))
        else:
            self._close(attempt, InputsLost(*key, losses, details))
        self._start_next(now_s)

    def _close(self, attempt: Attempt, report: FromWorker) -> None:
        del self.attempts[attempt.key]
        self._report(report)

    def _report(self, report: FromWorker) -> None:
        self._reports.append(report)
        if type(report) is not TaskReported or report.fault is not None:
            self._reports_are_urgent = True

    def take_reports(self, now_s: float) -> list[FromWorker]:
        """Take what the master is to be told now; nothing if it can wait for more, until `due_s`
        at the latest.
        """
        if not self._reports:
            return []
        if self._reports_can_wait and now_s < self._reports_due_s:
            return []
        self._reports_due_s = now_s + REPORT_EVERY_S
        self._reports_are_urgent = False
        reports, self._reports = self._reports, []
        return reports

    @property
    def _reports_can_wait(self) -> bool:
        return bool(self._queue) and not self._reports_are_urgent

    # --- time -------------------------------------------------------------------------------------

    def _kill(self, attempt: Attempt, fault: TaskFault, now_s: float) -> None:
        attempt.phase = Phase.ENDING
        attempt.ending = fault
        self.outbox.append(KillAttempt(*attempt.key, force=False))
        heappush(self._deadlines, (now_s + KILL_GRACE_S, attempt.key))

    def tick(self, now_s: float) -> None:
        """Act on the time limits that have passed."""
        while self._deadlines and self._deadlines[0][0] <= now_s:
            key = heappop(self._deadlines)[1]
            attempt = self.attempts.get(key)
            if attempt is None:
                continue
            if attempt.phase is Phase.ENDING:
                self.outbox.append(KillAttempt(*key, force=True))
            elif attempt.phase is Phase.RUNNING:
                limit_s = attempt.spec.needs.timeout_s
                details = f"it ran longer than its limit of {limit_s:g} s and was killed"
                self._kill(attempt, TaskFault("TIMED_OUT", details), now_s)

    def due_s(self) -> float | None:
        """When `tick`, and then `take_reports`, has to be called next; None if there is no such
        time.
        """
        while self._deadlines and self._deadlines[0][1] not in self.attempts:
            heappop(self._deadlines)
        due_s = self._deadlines[0][0] if self._deadlines else None
        if self._reports:
            return self._reports_due_s if due_s is None else min(due_s, self._reports_due_s)
        return due_s

    def problems(self) -> list[str]:
        """Name every broken invariant; for tests, after each step."""
        found = []
        running = [a for a in self.attempts.values() if a.phase in (Phase.RUNNING, Phase.ENDING)]
        if self.slots_free + sum(a.slots for a in running) != self.slots:
            found.append(f"W1 {self.slots_free} slots are free of {self.slots}, {len(running)} run")
        for key, attempt in self.attempts.items():
            if (attempt.phase is Phase.FETCHING) != (key in self._waiting):
                found.append(f"W2 {key} is {attempt.phase.value}, its waiting disagrees")
        for object_id in self.stored:
            if self._waiting.is_awaited(object_id):
                found.append(f"W3 {object_id} is awaited and is there")
        return found


def _ending(cause: TaskFault, fault: TaskFault | None) -> TaskFault:
    """Say why an attempt was ended; of one that ran too long also what became of its program."""
    if cause.reason != "TIMED_OUT" or fault is None:
        return cause
    return TaskFault(cause.reason, f"{cause.details}\n{fault.details}")
