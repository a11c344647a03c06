"""Simulated time and connections, and the world that all parties of a simulation share.

Messages of one connection arrive in order, as with TCP; there is no order between connections.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from heapq import heappop, heappush
from random import Random
from typing import Any, Generic, NamedTuple, TypeVar

from ciel.core.events import Message
from ciel.core.masters import NO_BALLOT, Ballot
from ciel.core.refs import INLINE_MAX_BYTES
from ciel.master.state.workers import WorkerFacts
from ciel.testing.simulator.masters.chronicle import Chronicle
from ciel.testing.simulator.options import Options
from ciel.testing.simulator.witness import Witness
from ciel.wire import codec, messages

W = TypeVar("W")  # the workers of a world, which know it
CONTENT_BYTES = 16  # the size of the simulated contents

MASTER, PEER = 0, 1  # the sides of a connection


class Timeline:
    """A simulated clock, and the events that are scheduled on it."""

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
        """Advance the clock to the next event, and run it."""
        due_s, _, act, arguments = heappop(self._agenda)
        self.now_s = max(self.now_s, due_s)
        act(*arguments)


class World(Generic[W]):
    """The state that all parties of one simulation share; generic over the type of workers."""

    def __init__(
        self,
        options: Options,
        chance: Random,
        check_worker: Callable[[W], None],
        without: Set[int] = frozenset(),
    ) -> None:
        """`without`: the numbers of faults that do not happen, to find which of them matter."""
        self.options = options
        self.chance = chance
        self.check_worker = check_worker
        self.without = without
        self.faults: list[str] = []  # all faults so far, with their times
        self.witness = Witness()
        self.timeline = Timeline()
        self.submitted: set[str] = set()  # jobs that the master has confirmed
        self.serving: dict[str, W] = {}  # by address
        self.disks: dict[tuple[str, str], HostDisk] = {}  # by host, and what tasks name
        self.powerless: set[str] = set()  # workers on hosts that do not answer any more
        self.partitioned: set[str] = set()  # workers and jobs whose clients do not reach the master
        self.walls: set[tuple[str, str]] = set()  # places of workers that cannot fetch from places
        self.apart: set[frozenset[str]] = set()  # pairs of parties that do not reach each other
        self.chronicle = Chronicle()
        self.log: list[tuple[float, str, object]] = []  # time, peer, and message

    def note(self, who: str, what: object) -> None:
        self.log.append((self.timeline.now_s, who, what))

    def is_reachable(self, worker_id: str) -> bool:
        """Whether the master reaches the host of a worker."""
        return worker_id not in self.powerless and worker_id not in self.partitioned

    def disk(self, host: str, io: str) -> HostDisk:
        """Return a disk of a host."""
        return self.disks.setdefault((host, io), HostDisk(self.options.disk_at_a_time))

    def are_apart(self, one: str, other: str) -> bool:
        """Whether two parties, or the processes or connections of them, are separated."""
        return frozenset((party_of(one), party_of(other))) in self.apart

    def happens_now(self, what: str) -> bool:
        """Number a fault that is about to happen; return whether it does."""
        number = len(self.faults)
        self.faults.append(f"{self.timeline.now_s:9.4f} fault {number}: {what}")
        return number not in self.without

    def has_fault(self, share: float, what: str) -> bool:
        """Draw whether a fault happens now; there are none after `faults_end_s`."""
        if self.timeline.now_s >= self.options.faults_end_s or self.chance.random() >= share:
            return False
        return self.happens_now(what)

    def happens(self, share: float) -> bool:
        """Draw whether an event happens that has this probability; 0 draws no random number."""
        return share > 0.0 and self.chance.random() < share

    def mean(self, mean_s: float) -> float:
        return self.chance.expovariate(1 / mean_s)

    def latency_s(self) -> float:
        options = self.options
        if self.chance.random() < options.spike_share:
            return self.mean(options.spike_mean_s)
        return self.mean(options.latency_mean_s)


class HostDisk:
    """The queue of a disk, which the workers of a host share; see `storage.device_semaphores`.

    Entries are tuples whose first item is the worker.
    """

    def __init__(self, at_a_time: int) -> None:
        self.at_a_time = at_a_time
        self._entries: dict[tuple[str, Any], Callable[[], None]] = {}  # in order of arrival

    def join(self, entry: tuple[str, Any], admitted: Callable[[], None]) -> None:
        self._entries[entry] = admitted
        if len(self._entries) <= self.at_a_time:
            admitted()

    def leave(self, entry: tuple[str, Any]) -> None:
        """Remove an entry, if it exists; admit the next one."""
        first = [*self._entries][: self.at_a_time + 1]
        if self._entries.pop(entry, None) is not None and entry in first[: self.at_a_time]:
            if len(first) > self.at_a_time:
                self._entries[first[-1]]()

    def leave_all(self, worker: str) -> None:
        """Remove the entries of a worker that has died."""
        for entry in [entry for entry in self._entries if entry[0] == worker]:
            self.leave(entry)


def party_of(name: str) -> str:
    """Return the party that a process or a connection belongs to: a master's host, the place of a
    worker, or the job of a client.
    """
    return name.partition(".")[0]


class Process:
    """A simulated process: its events wait while it is frozen, and are dropped when it is dead."""

    def __init__(self, world: World[Any]) -> None:
        self.is_dead = False
        self._frozen_at_s: float | None = None
        self._backlog: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._world = world

    @property
    def is_frozen(self) -> bool:
        return self._frozen_at_s is not None

    def freeze(self) -> None:
        self._frozen_at_s = self._now_s

    def thaw(self) -> float:
        """Let the process continue; return how long it was frozen."""
        assert self._frozen_at_s is not None
        late_s, self._frozen_at_s = self._now_s - self._frozen_at_s, None
        backlog, self._backlog = self._backlog, []
        for act, arguments in backlog:
            self._live(act, *arguments)
        return late_s

    @property
    def _now_s(self) -> float:
        return self._world.timeline.now_s

    def _after(self, delay_s: float, act: Callable[..., None], *arguments: object) -> None:
        self._world.timeline.after(delay_s, self._live, act, *arguments)

    def _live(self, act: Callable[..., None], *arguments: object) -> None:
        if not self.is_dead:
            self._when_it_runs(act, *arguments)

    def _when_it_runs(self, act: Callable[..., None], *arguments: object) -> None:
        if self.is_frozen:
            self._backlog.append((act, arguments))
        else:
            act(*arguments)


class Hello(NamedTuple):
    """The first message of a worker on a connection. `received`: how many messages of its session
    it has, if it resumes one. `promised`: the master that it has promised to obey.
    """

    facts: WorkerFacts
    token: str
    received: int | None
    promised: Ballot = NO_BALLOT


class ClientHello(NamedTuple):
    """The first message of a client that has a session; see `Hello`."""

    token: str
    received: int | None


class StandbyHello(NamedTuple):
    """The first message of a standby."""

    url: str


class Refusal(NamedTuple):
    """The master has declared a worker dead, and ends its session."""


Greeting = Hello | ClientHello | StandbyHello


class Line(NamedTuple):
    """One side of a connection, with the interface of `net.control.Peer`."""

    connection: Connection
    side: int
    allowed: frozenset[type]
    is_coded: bool
    is_congested: bool = False

    def flush(self) -> None:
        """Nothing is queued here."""

    def send(self, message: Message) -> None:
        if self.is_coded:
            message = through_wire(message, self.allowed)
        self.connection.send(self.side, message)


class Connection:
    """A simulated TCP connection between a peer (`name`) and the master. `master`: what the master
    says of itself, if there are several.
    """

    def __init__(self, world: World[Any], name: str, master: Ballot = NO_BALLOT) -> None:
        self.name = name
        self.master = master
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
        """Set what `side` calls for each message that arrives, and once at the end."""
        self._receive[side] = receive
        self._hear_end[side] = hear_end

    def send(self, side: int, message: Message | Greeting | Refusal) -> None:
        """Send a message from `side` to its peer."""
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

    def is_open(self, side: int) -> bool:
        """Whether a side has neither closed the connection nor learnt of its end."""
        return self._is_open[side]

    @property
    def is_alive(self) -> bool:
        """Whether messages still arrive, in both directions."""
        return not self._is_cut and all(self._is_open)

    def end(self, side: int) -> None:
        """Report the end of the connection to `side`."""
        if self._is_open[side]:
            self._is_open[side] = False
            self._hear_end[side]()

    def close(self, side: int) -> None:
        """Close `side`; its peer first receives the messages in flight, then the end."""
        if self._is_open[side]:
            self._is_open[side] = False
            if not self._is_cut:
                self._schedule(1 - side, self.end)

    def cut(self, *, silently: bool) -> None:
        """Lose all messages in flight; if `silently`, no side is notified."""
        if not self._is_cut:
            self._is_cut = True
            if not silently:
                self._schedule(MASTER, self.end)
                self._schedule(PEER, self.end)


def through_wire(message: Message, allowed: frozenset[type]) -> Message:
    """Encode and decode a message, as on the wire; raises the errors of both steps."""
    fields, payload = messages.encode(message)
    return messages.decode((codec.decode(codec.encode(fields)), payload), allowed)


def size_of(object_id: str, options: Options) -> int:
    """Return the simulated size of an object, which depends only on its name."""
    chance = Random(object_id)
    if chance.random() < options.inline_share:
        return CONTENT_BYTES
    return INLINE_MAX_BYTES + 1 + int(chance.random() * 2 * options.object_mean_bytes)
