"""A worker of a simulation: the real state machine, and a service without sockets or processes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from ciel.core.events import (
    HEARTBEAT_INTERVAL_S,
    LOST_AFTER_S,
    RECALLED,
    DiskLimit,
    Heartbeat,
    Message,
    Received,
    StartOver,
    StoresReported,
    TaskFault,
)
from ciel.core.ids import ObjectId
from ciel.core.masters import NO_BALLOT
from ciel.core.refs import (
    INLINE_MAX_BYTES,
    Concrete,
    Failure,
    Fixed,
    Future,
    Reference,
    Stream,
    Value,
    locations_of,
)
from ciel.core.tasks import TaskSpec
from ciel.master.state.workers import WorkerFacts
from ciel.net.control import Peer
from ciel.net.sessions import PeerSession
from ciel.testing.simulator.lots import Surroundings, run_lots
from ciel.testing.simulator.masters.voter import FakeVoter
from ciel.testing.simulator.workloads import PROCESS, Outcome, run
from ciel.testing.simulator.world import PEER, Connection, Hello, Line, Refusal, World, size_of
from ciel.wire import messages
from ciel.wire.descriptors import read_arguments
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
    Phase,
    RecallAttempt,
    StartAttempt,
)

BYTES_PER_S = 1e8
FETCH_TIMEOUT_S = 2.0
UNANSWERED_MAX_S = 10.0
OBEDIENT_SHARE = 0.7  # of programs: SIGTERM ends them
GIVEN_BACK = TaskFault(RECALLED, "the program that ran it ended")


class GrowingObject(NamedTuple):
    """An object that a program is writing. `ends_well`: the program will succeed unless a fault
    hits it.
    """

    content: bytes
    maker: Key
    ends_well: bool


@dataclass
class Run:
    """A running program, or an attempt that runs in the process of another attempt. `outer`: that
    attempt, which waits for this one. `within`: the attempt for which this one waits.
    """

    order: StartAttempt
    started_at_s: float
    outer: Key | None = None
    within: Key | None = None
    waits: bool = False  # for a task that it has created
    puts: dict[ObjectId, bytes] = field(default_factory=dict)


class FakeWorker:
    """A worker from its start to its end; its `store` outlives it.

    `dial` returns a connection, or None if the master cannot be reached.

    While it is frozen, all its events wait until it is thawed.
    """

    def __init__(
        self, world: World[FakeWorker], facts: WorkerFacts, store: dict[ObjectId, bytes],
        dial: Callable[[FakeWorker], Connection | None], voter: FakeVoter | None = None,
    ) -> None:  # fmt: skip
        """`voter`: its vote, if there are several masters."""
        self.world = world
        self.facts = facts
        self.store = store
        self.machine = WorkerMachine(
            facts.netloc,
            facts.host,
            facts.slots,
            starts_locally=facts.executors if world.options.delegates else frozenset(),
            memory_bytes=facts.memory_bytes,
            resources=facts.resources,
        )
        self.machine.add_retained(dict.fromkeys(store))
        self.connection: Connection | None = None
        self.session: PeerSession | None = None
        self._sessions = 0  # of the whole life
        self.running: dict[Key, Run] = {}
        self.waiting: deque[StartAttempt] = deque()
        self.growing: dict[ObjectId, GrowingObject] = {}
        self.processes: dict[
            ObjectId, tuple[int, ...]
        ] = {}  # waiting processes, with their memories
        self._named: dict[str, None] = {}  # the disks that tasks have named
        self._uses: dict[Key, str] = {}  # the disks that attempts use, or wait for
        self._followers: dict[ObjectId, list[tuple[FakeWorker, GrowingObject]]] = {}
        self.is_dead = False
        self.is_frozen = False
        self.has_met_master = False
        self._dial = dial
        self.voter = voter
        if voter is not None:
            voter.leave = self._leave
            voter.connection = self._session_connection
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
        """Stop for good: if `silently`, as in a power failure; else the kernel closes the
        connections.
        """
        self.is_dead = True
        if silently:
            self.world.powerless.add(self.facts.id)
        for object_id in list(self._followers):
            delay_s = FETCH_TIMEOUT_S if silently else self.world.latency_s()
            self._notify_followers(object_id, None, delay_s)
        for disk in self.world.disks.values():
            disk.leave_all(self.facts.id)
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
        if self.connection is not None:
            return
        self.connection = connection = self._dial(self)
        if connection is None:
            self._connect_later()
            return
        self._hear()
        connection.attach(
            PEER,
            lambda message: self._live(self._said, connection, message),
            lambda: self._live(self._lost, connection),
        )
        if self.session is not None:
            connection.send(PEER, self._hello(self.session.token, self.session.received))
            self._turn_away(connection)
            return
        self._sessions += 1
        token = f"{self.facts.id} {self._sessions}"
        connection.send(PEER, self._hello(token, None))
        if self._turn_away(connection):
            return
        self.session = PeerSession("master", self._line(connection), token)
        self.machine.master_reached()
        self._report_disks()
        self._flush()

    def _hello(self, token: str, received: int | None) -> Hello:
        promised = NO_BALLOT if self.voter is None else self.voter.state.promised
        return Hello(self.facts, token, received, promised)

    def _turn_away(self, connection: Connection) -> bool:
        """Close a new connection if this worker does not obey the master; that one may have
        admitted the worker already.
        """
        if self.voter is None:
            return False
        try:
            reason = self.voter.objection(connection.master)
        except OSError:
            reason = "its promise cannot be stored"
        if reason:
            self.world.note(self.facts.id, f"does not obey {connection.master}: {reason}")
            self._lost(connection)
        return bool(reason)

    def _leave(self) -> None:
        """Leave the master that this worker has: messages that were sent may still arrive."""
        if self.connection is not None:
            self._lost(self.connection)

    def _session_connection(self) -> Connection | None:
        """Return the connection that the session uses now."""
        line: Any = None if self.session is None else self.session.peer
        return None if line is None else line.connection

    def _hear(self) -> None:
        self._heard_at_s = self.world.timeline.now_s
        if self.voter is not None:
            self.voter.heard_at_s = self._heard_at_s

    def _line(self, connection: Connection) -> Peer:
        is_coded = self.world.options.through_wire
        return cast(Peer, Line(connection, PEER, messages.FROM_WORKER, is_coded))

    def _said(self, connection: Connection, message: Message | Refusal) -> None:
        session = self.session
        if connection is not self.connection or session is None:
            return
        self._hear()
        if self.voter is not None:
            self.world.chronicle.obeyed(self.voter.name, connection.master)
        if isinstance(message, Refusal):
            self.session = None
            self.machine.master_lost(self.world.timeline.now_s)
        elif isinstance(message, Received):
            assert session.take_confirmation(message.total)
            if session.peer is None:
                session.resume(self._line(connection))
        elif isinstance(message, StartOver):
            self._start_over(connection, session)
        elif not isinstance(message, Heartbeat):
            self.has_met_master = True
            session.count(1)
            self.machine.master_message(message, self.world.timeline.now_s)
        self._flush()

    def _start_over(self, connection: Connection, before: PeerSession) -> None:
        """Begin a new session with a master that does not know the earlier one."""
        session = PeerSession("master", self._line(connection), before.token)
        self.session = session
        session.count(1)
        for message in self.machine.master_restarted(before.unconfirmed()):
            session.send(message)
        self.machine.master_reached()
        self._report_disks()

    def _lost(self, connection: Connection) -> None:
        if connection is self.connection:
            connection.close(PEER)
            self.connection = None
            if self.session is not None:
                self.session.peer = None
            self._connect_later()

    def _connect_later(self) -> None:
        if self.voter is not None:
            self.voter.places.failed(self.world.timeline.now_s)
        self._later(self.world.mean(self.world.options.reconnect_mean_s), self.connect)

    def _beat(self) -> None:
        if self.connection is not None:
            if self.world.timeline.now_s - self._heard_at_s > LOST_AFTER_S:
                self._lost(self.connection)
            elif self.session is not None and self.session.peer is not None:
                self.session.confirm()
                self.session.peer.send(Heartbeat())
        self._later(HEARTBEAT_INTERVAL_S, self._beat)

    # --- carrying out orders ----------------------------------------------------------------------

    def _flush(self) -> None:
        machine = self.machine
        while machine.orders:
            for order in machine.take_orders():
                match order:
                    case FetchObject():
                        self._fetch(order)
                    case AbandonFetch(object_id):
                        self._stop_following(object_id)
                    case AskForDisk():
                        self._ask_for_disk(order)
                    case LeaveDisk(task, attempt):
                        self._leave_disk((task, attempt))
                    case StartAttempt():
                        self._later(0.0, self._start, order)
                    case KillAttempt(task, attempt, force):
                        if force or self.world.chance.random() < OBEDIENT_SHARE:
                            self._later(0.01, self._end, (task, attempt), None)
                    case RecallAttempt(task, attempt):
                        self._later(0.0, self._forget_waiting, (task, attempt), RECALLED)
                    case EndProcesses(objects):
                        for object_id in objects:
                            self.processes.pop(object_id, None)
                    case DeleteObjects(objects):
                        for object_id in objects:
                            self.store.pop(object_id, None)
                    case CompareContents(refs):
                        for ref in refs:
                            self._compare(ref, self.store.get(ref.id))
        for report in machine.take_reports(self.world.timeline.now_s):
            if self.session is not None:
                self.session.send(report)
        due_s = machine.due_s()
        if due_s is not None and due_s != self._tick_due_s:
            self._tick_due_s = due_s
            self._later(max(due_s - self.world.timeline.now_s, 0.0), self._tick)
        self.world.check_worker(self)

    def _ask_for_disk(self, order: AskForDisk) -> None:
        key = (order.task, order.attempt)
        if order.io not in self._named:
            self._named[order.io] = None
            self._report_disks()
        self._uses[key] = order.io
        disk = self.world.disk(self.facts.host, order.io)
        entry = (self.facts.id, key)
        disk.join(entry, lambda: self._later(self.world.latency_s(), self._disk_admitted, key))

    def _disk_admitted(self, key: Key) -> None:
        if key in self._uses:
            self.machine.disk_admitted(key, self.world.timeline.now_s)
            self._flush()

    def _leave_disk(self, key: Key) -> None:
        io = self._uses.pop(key)
        self.world.disk(self.facts.host, io).leave((self.facts.id, key))

    def users_of(self, io: str) -> int:
        """Count the programs that use a disk of this host, and do not wait for other tasks."""
        runs = [
            run
            for worker in self.world.serving.values()
            if worker.facts.host == self.facts.host
            for run in worker.running.values()
        ]
        return sum(run.order.spec.needs.io == io and not run.waits for run in runs)

    def _report_disks(self) -> None:
        limit = self.world.options.disk_at_a_time
        disks = tuple([DiskLimit(io, io, limit) for io in self._named])
        if disks and self.session is not None:
            self.session.send(StoresReported((), 0, disks=disks))

    def _compare(self, ref: Concrete, content: bytes | None) -> None:
        holders = [self.world.serving.get(netloc) for netloc in sorted(ref.locations)]
        others = [held.store.get(ref.id) for held in holders if held is not None]
        if content is not None and any(other not in (None, content) for other in others):
            self._later(self.world.latency_s(), self._differs, ref.id)

    def _differs(self, object_id: ObjectId) -> None:
        self.machine.content_differs(object_id)
        self._flush()

    def _tick(self) -> None:
        self._tick_due_s = None
        self.machine.tick(self.world.timeline.now_s)
        self._flush()

    def _fetch(self, order: FetchObject) -> None:
        size_bytes = getattr(order.ref, "size_bytes", None) or 0
        self._later(self.world.latency_s() * 2 + size_bytes / BYTES_PER_S, self._try_plans, order)

    def _try_plans(self, order: FetchObject, since_s: float | None = None) -> None:
        object_id = order.ref.id
        since_s = self.world.timeline.now_s if since_s is None else since_s
        unreached: list[str] = []
        for plan in order.plans:
            holder = self.world.serving.get(plan.netloc)
            if holder is None or not (object_id in holder.store or holder.is_making(object_id)):
                continue
            if holder.is_frozen or self._is_apart_from(holder):
                unreached.append(plan.netloc)
            elif not self.world.has_fault(
                self.world.options.fetch_failure_share, f"a fetch of {object_id} fails"
            ):
                if object_id not in holder.store:
                    if object_id in self.growing:  # a killed attempt still writes it here
                        self._later(FETCH_TIMEOUT_S, self._try_plans, order, since_s)
                    else:
                        self._follow(object_id, holder)
                    return
                self.store[object_id] = holder.store[object_id]
                size_bytes = size_of(object_id, self.world.options)
                self.machine.copied(plan.netloc, size_bytes, size_bytes / BYTES_PER_S)
                self.machine.fetched(object_id, self.world.timeline.now_s, size_bytes)
                self._flush()
                return
        if not unreached:
            self._later(0.0, self._give_up, order.ref)
            return
        is_cut_off = self.session is not None and self.session.peer is None
        if is_cut_off or self.world.timeline.now_s - since_s <= UNANSWERED_MAX_S:
            again = order._replace(plans=self.machine.plans_for(order.ref))
            self._later(FETCH_TIMEOUT_S, self._try_plans, again, since_s)
        else:
            self._later(FETCH_TIMEOUT_S, self._give_up, order.ref, tuple(unreached))

    def _is_apart_from(self, other: FakeWorker) -> bool:
        """Whether a partition or a wall keeps this worker from fetching from another."""
        partitioned = self.world.partitioned
        is_cut_off = (self.facts.id in partitioned) != (other.facts.id in partitioned)
        return is_cut_off or (self.place, other.place) in self.world.walls

    @property
    def place(self) -> str:
        """The place of this worker, which its replacement takes."""
        return self.facts.id.partition(".")[0]

    def _give_up(self, ref: Reference, unreached: tuple[str, ...] = ()) -> None:
        places = tuple(sorted(locations_of(ref)))
        now_s, why = self.world.timeline.now_s, f"no worker at {places} could send it"
        self.machine.fetch_failed(ref.id, places, why, now_s, unreached=unreached)
        self._flush()

    # --- growing objects --------------------------------------------------------------------------

    def is_making(self, object_id: ObjectId) -> bool:
        """Whether a program of this worker writes an object that others can read while it grows."""
        return object_id in self.growing and self.growing[object_id].maker in self.running

    def _open(self, key: Key, outcome: Outcome) -> None:
        """Handle a program that opens its outputs for readers."""
        if key not in self.running:
            return
        order = self.running[key].order
        made = dict(outcome.made) or dict.fromkeys(order.spec.outputs, b"")
        opened = [o for o in made if o not in self.store and o not in self.growing]
        for object_id in opened:
            self.growing[object_id] = GrowingObject(made[object_id], key, bool(outcome.made))
        if opened:
            self.machine.streams_opened(key, tuple(opened), self.world.timeline.now_s)
            self._flush()

    def _close(self, key: Key, outcome: Outcome) -> None:
        """Handle the end of a program: its growing outputs are complete, or broken."""
        attempt = self.machine.attempts.get(key)
        is_good = outcome.fault is None and attempt is not None and attempt.ending is None
        for object_id in [o for o, growing in self.growing.items() if growing.maker == key]:
            del self.growing[object_id]
            content = dict(outcome.made).get(object_id) if is_good else None
            if content is not None:
                self.world.witness.completed(key, object_id)
            self._notify_followers(object_id, content, self.world.latency_s())

    def _notify_followers(self, object_id: ObjectId, content: bytes | None, delay_s: float) -> None:
        for follower, growing in self._followers.pop(object_id, ()):
            self.world.timeline.after(
                delay_s, follower._live, follower._followed, object_id, growing, content,
                self.facts.netloc,
            )  # fmt: skip

    def _follow(self, object_id: ObjectId, holder: FakeWorker) -> None:
        growing = self.growing[object_id] = holder.growing[object_id]
        holder._followers.setdefault(object_id, []).append((self, growing))
        self.machine.stream_opened(object_id, self.world.timeline.now_s)
        self._flush()

    def _stop_following(self, object_id: ObjectId) -> None:
        """Stop reading a broken object of another worker, even if the connection is open."""
        growing = self.growing.get(object_id)
        if growing is not None and not self.is_making(object_id):
            for holder in self.world.serving.values():
                followers = holder._followers.get(object_id, [])
                followers[:] = [pair for pair in followers if pair[0] is not self]
            self._followed(object_id, growing, None, "nowhere")

    def _followed(
        self, object_id: ObjectId, growing: GrowingObject, content: bytes | None, place: str
    ) -> None:
        """Handle the end of another worker's growing object: it is complete, or the connection has
        ended before.
        """
        if self.growing.get(object_id) is not growing:
            return  # this worker has stopped reading it
        del self.growing[object_id]
        now_s = self.world.timeline.now_s
        if content is None:
            self.machine.fetch_failed(object_id, (place,), "the connection ended early", now_s)
        else:
            self.store[object_id] = content
            self.machine.fetched(object_id, now_s, size_of(object_id, self.world.options))
        self._flush()

    # --- programs ---------------------------------------------------------------------------------

    def _start(self, order: StartAttempt) -> None:
        if order.at_most and (self.waiting or len(self.running) >= order.at_most):
            self.waiting.append(order)
        else:
            self._begin(order)

    def _start_waiting(self) -> None:
        while self.waiting and len(self.running) < self.waiting[0].at_most:
            self._begin(self.waiting.popleft())

    def _begin(self, order: StartAttempt) -> None:
        key = (order.spec.id, order.attempt)
        contents: list[bytes | None] = []
        gone: list[tuple[ObjectId, str]] = []
        read: list[ObjectId] = []
        for ref in order.inputs:
            if isinstance(ref, Future) and order.spec.any_count:
                contents.append(None)
            elif isinstance(ref, Value):
                contents.append(ref.content)
            elif isinstance(ref, Failure):
                contents.append(None)
            elif isinstance(ref, Fixed) and ref.id in self.processes:
                contents.append(PROCESS)
            elif ref.id in self.store:
                contents.append(self.store[ref.id])
            elif isinstance(ref, Stream) and ref.id in self.growing:
                read.append(ref.id)
                contents.append(self.growing[ref.id].content)
            else:
                places = locations_of(ref) if isinstance(ref, Stream) else (self.facts.netloc,)
                gone += [(ref.id, place) for place in places]
        now_s = self.world.timeline.now_s
        if gone:
            self.machine.inputs_gone(key, tuple(gone), "they are not in the store", now_s)
            self._flush()
            return
        self.world.witness.chose(order.spec, order.inputs)
        self.running[key] = Run(order, now_s)
        memory = [self.processes.pop(ref.id) for ref in order.inputs if ref.id in self.processes]
        self._run(key, contents, read, memory[0] if memory else None)

    def _run(
        self,
        key: Key,
        contents: Sequence[bytes | None],
        read: Sequence[ObjectId] = (),
        memory: tuple[int, ...] | None = None,
    ) -> None:
        """Run a program. `read`: inputs that it reads while they grow. `memory`: the memory of the
        waiting process that continues.
        """  # fmt: skip
        order = self.running[key].order
        life = self.facts.id
        if self.voter is not None:  # two masters may give attempts the same number
            life += f" {self.voter.state.promised}"
        failures = self.world.witness.started(key, life)
        if "lots" in read_arguments(order.spec.payload):
            self._run_lots(key, memory)
            return
        is_retried = order.spec.job in self.world.witness.retried
        outcome = run(
            order.spec, order.inputs, contents, failures,
            is_retried=is_retried, here=self.facts.netloc,
        )  # fmt: skip
        for object_id in read:
            growing = self.growing[object_id]
            self.world.witness.read(key, object_id, growing.maker)
            if not growing.ends_well:  # it never reaches the end of its input
                outcome = Outcome(0.0, hangs=True, streams=outcome.streams)
        if outcome.streams:
            share = self.world.chance.uniform(0.0, 0.5)
            self._later(outcome.duration_s * share, self._open, key, outcome)
        self._act_out(key, outcome)

    def _run_lots(self, key: Key, memory: tuple[int, ...] | None) -> None:
        around = Surroundings(key[1], self.facts.id, self.facts.netloc, self.world.chance)
        outcome = run_lots(self.running[key].order.spec, around, memory)
        self.running[key].puts = dict(outcome.puts)
        self._act_out(key, outcome)

    def _act_out(self, key: Key, outcome: Outcome) -> None:
        moments = sorted(self.world.chance.random() for _ in outcome.children)
        for moment, (child, known) in zip(moments, outcome.children, strict=True):
            self._later(outcome.duration_s * moment, self._spawn, key, child, known)
        if not outcome.hangs:
            self._later(outcome.duration_s, self._end, key, outcome)

    def _spawn(self, key: Key, child: TaskSpec, known: tuple[Reference, ...]) -> None:
        attempt = self.machine.attempts.get(key)
        if key in self.running and attempt is not None and attempt.phase is Phase.RUNNING:
            puts = self.running[key].puts
            self.store.update({ref.id: puts[ref.id] for ref in known if ref.id in puts})
        if key in self.running and not self._begins_within(key, child, known):
            may = self.running[key].order.may_run_children
            wanted = may and self.world.happens(self.world.options.within_share / 2)
            self.running[key].waits |= wanted
            now_s = self.world.timeline.now_s
            self.machine.spawned(key, child, known, now_s, wanted=wanted or None)
            self._flush()

    def _begins_within(self, key: Key, child: TaskSpec, known: tuple[Reference, ...]) -> bool:
        """Draw whether to run a child inline in its parent's process, if the parent may run
        children, the child is plain, and its inputs exist. Return whether the child runs.
        """
        outer, inner = self.running[key], (child.id, 0)
        arguments = read_arguments(child.payload)
        is_plain = not (
            arguments.get("hangs")
            or child.any_count
            or child.needs.io
            or child.needs.resources
            or child.needs.where
            or {"streams", "blocks", "lots"} & {*arguments}
        )
        contents = {ref.id: ref.content for ref in known if isinstance(ref, Value)}
        contents |= {o: self.store[o] for o in child.inputs if o in self.store}
        is_plain = is_plain and child.outputs[0] not in outer.order.spec.outputs
        if not outer.order.may_run_children or outer.within is not None or not is_plain:
            return False
        if child.inputs != tuple([o for o in child.inputs if o in contents]):
            return False
        if inner in self.running or not self.world.happens(self.world.options.within_share):
            return False
        refs = [Value.of(object_id, contents[object_id]) for object_id in child.inputs]
        self.machine.child_started_inline(key, child, known, self.world.timeline.now_s)
        order = StartAttempt(child, 0, tuple(refs), 0, may_run_children=True)
        self.running[inner] = Run(order, self.world.timeline.now_s, outer=key)
        outer.within = inner
        self._run(inner, [contents[object_id] for object_id in child.inputs])
        self._flush()
        return True

    def _end_all(self, key: Key) -> None:
        """Handle a kill of a program with several nested attempts."""
        while (outer := self.running[key].outer) is not None:
            key = outer
        stack: list[Key] = []
        following: Key | None = key
        while following is not None:
            stack.append(following)
            following = self.running.pop(following).within
        for key in reversed(stack):
            self._close(key, Outcome(0.0, fault=GIVEN_BACK))
            self.machine.ended(key, (), GIVEN_BACK, 0.0, self.world.timeline.now_s)
        self._start_waiting()
        self._flush()

    def _end(self, key: Key, outcome: Outcome | None) -> None:
        """Handle the end of a program, by itself or, without an `outcome`, by a signal."""
        found = self.running.get(key)
        if found is None:
            self._forget_waiting(key)
            return
        if found.within is not None and outcome is not None:
            self._later(0.01, self._end, key, outcome)
            return
        if outcome is None and (found.within or found.outer):
            self._end_all(key)
            return
        del self.running[key]
        if found.outer is not None:
            self.running[found.outer].within = None
        published: list[Reference] = []
        if outcome is None:
            outcome = Outcome(0.0, fault=TaskFault("SIGNAL", "it was killed"))
        elif outcome.fault is not None:
            self.world.witness.program_failed(key)
        for object_id, content in outcome.made:
            self.world.witness.made(object_id, content)
            size_bytes = size_of(object_id, self.world.options)
            if size_bytes <= INLINE_MAX_BYTES or object_id.endswith(
                ":pub:0"
            ):  # reported early, inline
                published.append(Value.of(object_id, content))
            else:
                self.store[object_id] = content
                here = frozenset((self.facts.netloc,))
                published.append(Concrete(object_id, size_bytes, here))
        for object_id, content in outcome.puts:
            self.world.witness.made(object_id, content)
            here = frozenset((self.facts.netloc,))
            published.append(Concrete(object_id, size_of(object_id, self.world.options), here))
        for object_id in outcome.processes:
            self.processes[object_id] = outcome.memory
            published.append(Fixed(object_id, self.facts.netloc))
        now_s = self.world.timeline.now_s
        self._close(key, outcome)
        self._start_waiting()
        self.machine.ended(key, tuple(published), outcome.fault, now_s - found.started_at_s, now_s)
        self._flush()

    def _forget_waiting(self, key: Key, reason: str = "SIGNAL") -> None:
        """Remove a program that was killed or recalled before it started."""
        for order in self.waiting:
            if (order.spec.id, order.attempt) == key:
                self.waiting.remove(order)
                fault = TaskFault(reason, "it has never started")
                self.machine.ended(key, (), fault, 0.0, self.world.timeline.now_s)
                self._flush()
                return
