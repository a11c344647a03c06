"""Imaginary time, connections, stores and programs, and a worker's service that lives on them.

A worker here is the real machine; what it orders is carried out on a timeline that somebody else
advances. Order within a connection is kept, as TCP keeps it; between connections nothing is.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import Any, NamedTuple

from ciel.core.events import (
    HEARTBEAT_INTERVAL_S,
    LOST_AFTER_S,
    Heartbeat,
    Message,
    TaskFault,
)
from ciel.core.ids import ObjectId
from ciel.core.refs import INLINE_MAX_BYTES, Concrete, Failure, Reference, Value, locations_of
from ciel.core.tasks import TaskSpec
from ciel.master.state.workers import WorkerFacts
from ciel.testing.invariants import Witness
from ciel.testing.options import Options
from ciel.testing.workloads import Outcome, run
from ciel.wire import codec, messages
from ciel.worker.state.machine import (
    DeleteObjects,
    FetchObject,
    Key,
    KillAttempt,
    StartAttempt,
    WorkerMachine,
)

BYTES_PER_S = 1e8
CONTENT_BYTES = 16  # what stands for the content of any object
FETCH_TIMEOUT_S = 2.0
OBEDIENT_SHARE = 0.7  # of programs: a polite signal ends them

MASTER, PEER = 0, 1  # the sides of a connection


class Timeline:
    """A clock that is advanced by hand, and what is to happen when."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._agenda: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._sequence = 0

    def at(self, due_s: float, act: Callable[..., None], *arguments: object) -> None:
        self._sequence += 1
        heappush(self._agenda, (due_s, self._sequence, act, arguments))

    def after(self, delay_s: float, act: Callable[..., None], *arguments: object) -> None:
        self.at(self.now_s + delay_s, act, *arguments)

    def step(self) -> None:
        """Advance to the next thing that is to happen, and have it happen."""
        due_s, _, act, arguments = heappop(self._agenda)
        self.now_s = max(self.now_s, due_s)
        act(*arguments)


class World:
    """What all parties of one simulation share."""

    def __init__(self, options: Options, chance: Random, witness: Witness) -> None:
        self.options = options
        self.chance = chance
        self.witness = witness
        self.timeline = Timeline()
        self.serving: dict[str, FakeWorker] = {}  # by address
        self.log: list[tuple[float, str, object]] = []  # when, to whom or of whom, what

    def note(self, who: str, what: object) -> None:
        self.log.append((self.timeline.now_s, who, what))

    def has_fault(self, share: float) -> bool:
        """Draw whether something goes wrong now, at most until faults end."""
        return self.timeline.now_s < self.options.faults_end_s and self.chance.random() < share

    def mean(self, mean_s: float) -> float:
        return self.chance.expovariate(1 / mean_s)

    def latency_s(self) -> float:
        options = self.options
        if self.chance.random() < options.spike_share:
            return self.mean(options.spike_mean_s)
        return self.mean(options.latency_mean_s)


class Connection:
    """One imaginary TCP connection between a peer (`name`) and the master."""

    def __init__(self, world: World, name: str) -> None:
        self.name = name
        self.on_the_way = 0  # messages
        self._world = world
        self._receive: list[Callable[[Any], None]] = [lambda message: None] * 2
        self._hear_end: list[Callable[[], None]] = [lambda: None] * 2
        self._is_open = [True, True]
        self._arrives_at_s = [0.0, 0.0]
        self._is_cut = False

    def attach(
        self, side: int, receive: Callable[[Any], None], hear_end: Callable[[], None]
    ) -> None:
        """Have `side` told of what arrives there, in order, and once of the connection's end."""
        self._receive[side] = receive
        self._hear_end[side] = hear_end

    def send(self, side: int, message: Message | WorkerFacts) -> None:
        """Send from `side` to the other."""
        if self._is_open[side] and not self._is_cut:
            self.on_the_way += 1
            self._schedule(1 - side, self._arrive, message)

    def _schedule(self, side: int, act: Callable[..., None], *arguments: object) -> None:
        timeline = self._world.timeline
        arrives_at_s = max(self._arrives_at_s[side], timeline.now_s + self._world.latency_s())
        self._arrives_at_s[side] = arrives_at_s
        timeline.at(arrives_at_s, act, side, *arguments)

    def _arrive(self, side: int, message: Any) -> None:
        self.on_the_way -= 1
        if self._is_open[side] and not self._is_cut:
            self._world.note(f"{self.name} {'to' if side == PEER else 'says'}", message)
            self._receive[side](message)

    def end(self, side: int) -> None:
        """`side` hears that the connection is over."""
        if self._is_open[side]:
            self._is_open[side] = False
            self._hear_end[side]()

    def close(self, side: int) -> None:
        """`side` is gone; the other first gets what is on its way, then hears of the end."""
        if self._is_open[side]:
            self._is_open[side] = False
            if not self._is_cut:
                self._schedule(1 - side, self.end)

    def cut(self, *, silently: bool) -> None:
        """Lose all that is on its way; if silently, both sides have to find out by themselves."""
        if not self._is_cut:
            self._is_cut = True
            if not silently:
                self._schedule(MASTER, self.end)
                self._schedule(PEER, self.end)


def through_wire(message: Message, allowed: frozenset[type]) -> Message:
    """Return what the other side gets when this is sent; raises what coding raises."""
    fields, payload = messages.encode(message)
    return messages.decode((codec.decode(codec.encode(fields)), payload), allowed)


class Run(NamedTuple):
    """A program that runs."""

    order: StartAttempt
    started_at_s: float


class FakeWorker:
    """One life of a worker: the real machine, and a service for it without sockets and programs.

    `store` outlives it. While it is frozen, all that happens to it waits until it is thawed.
    """

    def __init__(
        self, world: World, facts: WorkerFacts, store: dict[ObjectId, bytes],
        dial: Callable[[FakeWorker], Connection],
    ) -> None:  # fmt: skip
        self.world = world
        self.facts = facts
        self.store = store
        self.machine = WorkerMachine(facts.netloc, facts.host, facts.slots)
        self.machine.stored = dict.fromkeys(store)
        self.connection: Connection | None = None
        self.running: dict[Key, Run] = {}
        self.is_dead = False
        self.is_frozen = False
        self.has_met_master = False
        self._dial = dial
        self._heard_at_s = 0.0
        self._backlog: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._tick_due_s: float | None = None
        world.serving[facts.netloc] = self
        self.connect()
        self._later(HEARTBEAT_INTERVAL_S, self._beat)

    # --- life and death ---------------------------------------------------------------------------

    def _live(self, act: Callable[..., None], *arguments: object) -> None:
        if self.is_frozen:
            self._backlog.append((act, arguments))
        elif not self.is_dead:
            act(*arguments)

    def _later(self, delay_s: float, act: Callable[..., None], *arguments: object) -> None:
        self.world.timeline.after(delay_s, self._live, act, *arguments)

    def die(self, *, silently: bool) -> None:
        """Stop for ever; `silently` as when the power fails, else the kernel ends connections."""
        self.is_dead = True
        del self.world.serving[self.facts.netloc]
        if self.connection is not None:
            if silently:
                self.connection.cut(silently=True)
            else:
                self.connection.close(PEER)

    def freeze(self) -> None:
        self.is_frozen = True

    def thaw(self) -> None:
        self.is_frozen = False
        backlog, self._backlog = self._backlog, []
        for act, arguments in backlog:
            self._live(act, *arguments)

    # --- the master -------------------------------------------------------------------------------

    def connect(self) -> None:
        if self.connection is None:
            self.connection = connection = self._dial(self)
            self._heard_at_s = self.world.timeline.now_s
            connection.attach(
                PEER,
                lambda message: self._live(self._said, connection, message),
                lambda: self._live(self._lost, connection),
            )
            connection.send(PEER, self.facts)
            self.machine.master_joined()
            self._flush()

    def _said(self, connection: Connection, message: Message) -> None:
        if connection is self.connection:
            self.has_met_master = True
            self._heard_at_s = self.world.timeline.now_s
            self.machine.master_said(message, self.world.timeline.now_s)
            self._flush()

    def _lost(self, connection: Connection) -> None:
        if connection is self.connection:
            connection.close(PEER)
            self.connection = None
            self.machine.master_lost(self.world.timeline.now_s)
            self._flush()
            self._later(self.world.mean(self.world.options.reconnect_mean_s), self.connect)

    def _beat(self) -> None:
        if self.connection is not None:
            if self.world.timeline.now_s - self._heard_at_s > LOST_AFTER_S:
                self._lost(self.connection)
            else:
                self._send(Heartbeat())
        self._later(HEARTBEAT_INTERVAL_S, self._beat)

    def _send(self, message: Message) -> None:
        assert self.connection is not None
        if self.world.options.through_wire:
            message = through_wire(message, messages.FROM_WORKER)
        self.connection.send(PEER, message)

    # --- carrying out orders ----------------------------------------------------------------------

    def _flush(self) -> None:
        machine = self.machine
        while machine.outbox:
            orders, machine.outbox = machine.outbox, []
            for order in orders:
                match order:
                    case FetchObject():
                        self._fetch(order)
                    case StartAttempt():
                        self._later(0.0, self._start, order)
                    case KillAttempt(task, attempt, force):
                        if force or self.world.chance.random() < OBEDIENT_SHARE:
                            self._later(0.01, self._end, (task, attempt), None)
                    case DeleteObjects(objects):
                        for object_id in objects:
                            self.store.pop(object_id, None)
        reports, machine.reports = machine.reports, []
        for report in reports if self.connection is not None else ():
            self._send(report)
        due_s = machine.due_s()
        if due_s is not None and due_s != self._tick_due_s:
            self._tick_due_s = due_s
            self._later(max(due_s - self.world.timeline.now_s, 0.0), self._tick)
        self.world.witness.check_worker(self)

    def _tick(self) -> None:
        self._tick_due_s = None
        self.machine.tick(self.world.timeline.now_s)
        self._flush()

    def _fetch(self, order: FetchObject) -> None:
        size_bytes = getattr(order.ref, "size_bytes", None) or 0
        self._later(self.world.latency_s() * 2 + size_bytes / BYTES_PER_S, self._try_plans, order)

    def _try_plans(self, order: FetchObject) -> None:
        object_id = order.ref.id
        is_slow = False
        for plan in order.plans:
            holder = self.world.serving.get(plan.netloc)
            if holder is None or object_id not in holder.store:
                continue
            if holder.is_frozen:
                is_slow = True
            elif not self.world.has_fault(self.world.options.fetch_failure_share):
                self.store[object_id] = holder.store[object_id]
                size_bytes = size_of(object_id, self.world.options)
                self.machine.fetched(object_id, self.world.timeline.now_s, size_bytes)
                self._flush()
                return
        self._later(FETCH_TIMEOUT_S if is_slow else 0.0, self._give_up, order.ref)

    def _give_up(self, ref: Reference) -> None:
        places = tuple(sorted(locations_of(ref)))
        now_s = self.world.timeline.now_s
        self.machine.fetch_failed(ref.id, places, f"not to be had at {places}", now_s)
        self._flush()

    # --- programs ---------------------------------------------------------------------------------

    def _start(self, order: StartAttempt) -> None:
        key = (order.spec.id, order.attempt)
        contents: list[bytes | None] = []
        gone = []
        for ref in order.inputs:
            if isinstance(ref, Value):
                contents.append(ref.content)
            elif isinstance(ref, Failure):
                contents.append(None)
            elif ref.id in self.store:
                contents.append(self.store[ref.id])
            else:
                gone.append(ref.id)
        now_s = self.world.timeline.now_s
        if gone:
            self.machine.inputs_gone(key, tuple(gone), "they are not in the store", now_s)
            self._flush()
            return
        self.running[key] = Run(order, now_s)
        failures = self.world.witness.started(self, key)
        outcome = run(order.spec, order.inputs, contents, failures)
        moments = sorted(self.world.chance.random() for _ in outcome.children)
        for moment, (child, known) in zip(moments, outcome.children, strict=True):
            self._later(outcome.duration_s * moment, self._spawn, key, child, known)
        if not outcome.hangs:
            self._later(outcome.duration_s, self._end, key, outcome)

    def _spawn(self, key: Key, child: TaskSpec, known: tuple[Reference, ...]) -> None:
        if key in self.running:
            self.machine.spawned(key, child, known)
            self._flush()

    def _end(self, key: Key, outcome: Outcome | None) -> None:
        """A program ended, by itself or (without outcome) by a signal."""
        found = self.running.pop(key, None)
        if found is None:
            return
        published: list[Reference] = []
        if outcome is None:
            outcome = Outcome(0.0, fault=TaskFault("SIGNAL", "it was killed"))
        elif outcome.fault is not None:
            self.world.witness.program_failed(key)
        for object_id, content in outcome.made:
            self.world.witness.made(object_id, content)
            size_bytes = size_of(object_id, self.world.options)
            if size_bytes <= INLINE_MAX_BYTES:
                published.append(Value.of(object_id, content))
            else:
                self.store[object_id] = content
                here = frozenset((self.facts.netloc,))
                published.append(Concrete(object_id, size_bytes, here))
        now_s = self.world.timeline.now_s
        self.machine.ended(key, tuple(published), outcome.fault, now_s - found.started_at_s, now_s)
        self._flush()


def size_of(object_id: str, options: Options) -> int:
    """Say how large an object is taken to be; it follows from its name."""
    chance = Random(object_id)
    if chance.random() < options.inline_share:
        return CONTENT_BYTES
    return INLINE_MAX_BYTES + 1 + int(chance.random() * 2 * options.object_mean_bytes)
