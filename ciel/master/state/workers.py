"""The master's view of its workers: their resources, their tasks, and when they last sent data."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from ciel.core.events import AssignTask, DescribeJob, DiskQueued, Message, StoresReported
from ciel.core.graph.nodes import TaskNode
from ciel.core.ids import JobId, ObjectId
from ciel.core.offers.labels import read_where
from ciel.core.offers.resources import Offer, totals_of
from ciel.core.refs import Concrete, Reference, Sweetheart, locations_of
from ciel.core.tasks import Isolation, Needs
from ciel.core.transports import End, Store
from ciel.core.workers.lives import FOREVER, Life
from ciel.master.state.placement.credit import Credit
from ciel.master.state.placement.disk_use import Disk, DiskUse

MEMORY: Final = ""
"""The name of memory beside the names of resources."""
NOTHING_KEPT: Final[Mapping[str, int]] = MappingProxyType({})

AttemptKey = tuple[str, str, int]
"""Identifies an attempt: the worker, the task, and the number of the attempt."""


class WorkerFacts(NamedTuple):
    """The description that a worker sends when it joins.

    `lacking`: executors that it knows but does not offer, with the missing software. `software`:
    its version.
    """

    id: str
    netloc: str
    host: str
    slots: int
    executors: frozenset[str]
    lacking: Mapping[str, str] = MappingProxyType({})
    software: str = ""
    memory_bytes: int = 0  # for the programs of tasks; 0: unknown
    hostname: str = ""  # for users; workers with the same `host` can share files
    spool: str = ""  # identifies its work directory, which only one process uses; "": unknown
    keeps_objects: bool = False  # a worker that is started again with this directory has them
    is_draining: bool = False  # an earlier master has ordered it
    drain_within_s: float | None = None  # the time left for its tasks; None: no limit
    end: End = End()  # of its connection to the master
    user: int | None = None
    places: tuple[str, ...] | None = None  # see `transports.Store`
    resources: tuple[Offer, ...] = ()
    labels: Mapping[str, str] = MappingProxyType({})
    allocation: str = ""  # of a resource manager, in which it runs
    life_left_s: float | None = None  # when it joined; None: no limit
    drain_grace_s: float = 0.0  # of that time, for its drain
    isolation: Isolation = Isolation()

    @property
    def store(self) -> Store:
        return Store(self.host, self.user, self.places)


class Capacity(NamedTuple):
    """The limits of the tasks of a worker. `memory_bytes`: 0 if it is unknown."""

    slots: int
    memory_bytes: int
    resources: Mapping[str, int] = MappingProxyType({})
    labels: Mapping[str, str] = MappingProxyType({})
    isolation: Isolation = Isolation()

    def can_hold(self, needs: Needs) -> bool:
        """Whether a task with these needs could run there if it were alone."""
        return (
            needs.slots <= self.slots
            and (not self.memory_bytes or needs.memory_bytes <= self.memory_bytes)
            and (not needs.resources or self.has_resources(needs))
            and (not needs.where or self.is_meant(needs))
            and (not needs.is_isolated or not self.isolation.why_not(needs))
        )

    def has_resources(self, needs: Needs) -> bool:
        """Whether there is as much of each resource."""
        return all(amount <= self.resources.get(name, 0) for name, amount in needs.resources)

    def is_meant(self, needs: Needs) -> bool:
        """Whether the labels fulfil the expression of a task."""
        return read_where(needs.where)(self.labels)


class WorkerNode:
    """A worker that has joined, with its attempts."""

    __slots__ = (
        "assigned",
        "bound",
        "capacity",
        "credit",
        "described",
        "disk",
        "disks",
        "eager",
        "facts",
        "given_at_s",
        "heard_at_s",
        "is_draining",
        "is_listing",
        "is_returning",
        "life",
        "memory_used",
        "over_credit",
        "parked",
        "postponed_deletions",
        "recalled",
        "reported_at_s",
        "reserved_for",
        "resources_used",
        "slots_used",
        "stores",
        "suspicion",
        "within",
    )

    def __init__(self, facts: WorkerFacts, now_s: float) -> None:
        self.facts = facts
        totals = totals_of(facts.resources)
        self.capacity = Capacity(
            facts.slots, facts.memory_bytes, totals, facts.labels, facts.isolation
        )  # fmt: skip
        self.credit = Credit(facts.slots)
        self.assigned: dict[tuple[str, int], TaskNode] = {}  # cancelled attempts may still run
        self.given_at_s: dict[tuple[str, int], float] = {}  # when each was assigned
        self.eager: dict[TaskNode, None] = {}  # dispatched eagerly: they take no slots yet
        self.over_credit: set[tuple[str, int]] = set()  # of `assigned`: beyond the credit
        self.reserved_for: TaskNode | None = None  # it gets no other task before this one
        self.slots_used = 0
        self.memory_used = 0  # bytes
        self.resources_used = dict.fromkeys(totals, 0)
        self.parked: deque[TaskNode] = deque()  # they wait for room here, where their inputs are
        self.bound: deque[TaskNode] = deque()  # they wait for room here, and can only run here
        self.within: set[str] = set()  # tasks whose attempt 0, of `assigned`, takes no slot
        self.described: set[JobId] = set()  # jobs whose context it was sent
        self.recalled: set[tuple[str, int]] = set()  # of `assigned`: the master has recalled them
        # Copies to be deleted, unless an attempt on this worker turns out to have produced them.
        self.postponed_deletions: dict[ObjectId, Reference] = {}
        self.disk = DiskQueued(0, 0.0)  # copies to this worker wait for its disk
        self.stores = StoresReported((), 0)
        self.disks = DiskUse(facts.id, facts.host)
        self.heard_at_s = now_s
        self.suspicion = ""  # why it may be lost; empty if it is not suspected
        left_s = facts.life_left_s
        self.life = FOREVER if left_s is None else Life(now_s + left_s, facts.drain_grace_s)
        self.is_draining = False  # it gets only tasks that no other worker can run
        self.is_returning = False  # it runs attempts that it has not reported yet
        self.is_listing = False  # it may have objects that it has not listed yet
        self.reported_at_s = now_s  # when it last reported an end, or had no attempts

    def __repr__(self) -> str:
        return f"<Worker {self.facts.id} {len(self.assigned)} assigned>"

    def assignment(
        self,
        task: TaskNode,
        attempt: int,
        inputs: tuple[Reference, ...],
        taken: tuple[int, ...] = (),
    ) -> list[tuple[str, Message]]:
        """Return the messages that assign a task.

        The caller context of its job, if there is one, precedes the first task of the job.
        """
        about, own = task.job.spec, self.facts.id
        assign = (own, AssignTask(task.spec, attempt, inputs, taken))
        if about.context is None or about.id in self.described:
            return [assign]
        self.described.add(about.id)
        return [(own, DescribeJob(about.id, about.context)), assign]

    @property
    def takes_tasks(self) -> bool:
        return not (self.suspicion or self.is_draining)

    @property
    def has_limited_life(self) -> bool:
        return self.life is not FOREVER

    @property
    def has_credit(self) -> bool:
        """Whether it may get another task that only it can run."""
        has_slot = self.slots_used < self.credit.limit
        return has_slot and not self.suspicion and self.reserved_for is None

    @property
    def has_room(self) -> bool:
        return self.has_credit and not self.is_draining

    @property
    def has_room_over_credit(self) -> bool:
        """Whether it may get the first task of a job that runs nothing yet.

        A worker gets as many such tasks as it has slots, beyond its credit.
        """
        has_room = len(self.over_credit) < self.facts.slots and self.takes_tasks
        return has_room and self.reserved_for is None

    def has_free(self, needs: Needs) -> bool:
        """Whether a task with these needs would start at once."""
        return needs.slots <= self.facts.slots - self.slots_used and self.has_scarce(needs)

    def has_scarce(self, needs: Needs, kept: Mapping[str, int] = NOTHING_KEPT) -> bool:
        """Whether it has the memory, the resources and the disk that a task needs, in addition to
        its attempts, and to what is `kept` for other tasks, by name (`MEMORY`, or a resource).
        """
        return (
            self.has_memory(needs, kept.get(MEMORY, 0))
            and (not needs.resources or self.has_resources(needs, kept))
            and (not needs.io or self.disks.has_room(needs.io))
        )

    def has_memory(self, needs: Needs, kept_bytes: int = 0) -> bool:
        """Whether it has the memory that a task needs, in addition to its attempts."""
        total, needed = self.facts.memory_bytes, needs.memory_bytes
        return not total or needed <= total - self.memory_used - kept_bytes or not needed

    def has_resources(self, needs: Needs, kept: Mapping[str, int] = NOTHING_KEPT) -> bool:
        """Whether it has the resources that a task needs, in addition to its attempts."""
        totals, used = self.capacity.resources, self.resources_used
        return all(
            amount <= totals.get(name, 0) - used.get(name, 0) - kept.get(name, 0)
            for name, amount in needs.resources
        )

    def lacks(self, needs: Needs) -> float:
        """Return which part of its memory and its resources a task cannot get now, summed up."""
        missing = 0.0
        totals, used = self.capacity.resources, self.resources_used
        for name, amount in needs.resources:
            free = totals.get(name, 0) - used.get(name, 0)
            missing += max(amount - free, 0) / amount
        if needs.memory_bytes and self.facts.memory_bytes:
            free = self.facts.memory_bytes - self.memory_used
            missing += max(needs.memory_bytes - free, 0) / needs.memory_bytes
        return missing

    def can_hold(self, needs: Needs) -> bool:
        """Whether a task with these needs could run here if it were alone."""
        return self.capacity.can_hold(needs)

    def _use(self, needs: Needs, sign: int) -> None:
        """Add what an attempt occupies, except its disk; or (`sign` is -1) subtract it."""
        self.slots_used += sign * needs.slots
        if needs.memory_bytes:
            self.memory_used += sign * needs.memory_bytes
        for name, amount in needs.resources:
            self.resources_used[name] = self.resources_used.get(name, 0) + sign * amount

    @property
    def load(self) -> float:
        """The slots of its attempts, as a share of its slots."""
        return self.slots_used / self.facts.slots

    def wait_s(self, slots: int) -> float:
        """The expected wait of a task that is given to it now."""
        queued = self.slots_used + len(self.parked) + len(self.bound) - self.facts.slots + slots
        return max(queued, 0) * self.credit.task_s / self.facts.slots

    def add_attempt(self, task: TaskNode, now_s: float, *, within: bool = False) -> None:
        """Add an attempt.

        `within`: it runs in the program of another attempt, and occupies no slot.
        """
        if not self.assigned:
            self.reported_at_s = now_s
        key = (task.spec.id, task.attempt)
        self.assigned[key] = task
        self.given_at_s[key] = now_s
        if within:
            self.within.add(task.spec.id)
        else:
            needs = task.spec.needs
            self._use(needs, 1)
            if needs.io:
                self.disks.add(key, needs.io)

    def slots_of(self, task: TaskNode, attempt: int) -> int:
        """Return the number of slots that an attempt occupies."""
        return 0 if attempt == 0 and task.spec.id in self.within else task.spec.needs.slots

    def running_tasks(self) -> list[TaskNode]:
        """Return the tasks that run there now: the oldest ones that fit into its slots."""
        slots = self.facts.slots
        found = []
        for (_, attempt), task in self.assigned.items():
            needed = self.slots_of(task, attempt)
            if needed > max(slots, 0):
                break  # a worker starts its tasks in order
            slots -= needed
            found.append(task)
        return found

    def add_superseded(self, task: TaskNode, attempt: int) -> None:
        """Add a superseded attempt, which occupies slots until the worker reports its end."""
        if (task.spec.id, attempt) not in self.assigned:
            self.assigned[task.spec.id, attempt] = task
            self._use(task.spec.needs, 1)
            if task.spec.needs.io:
                self.disks.add((task.spec.id, attempt), task.spec.needs.io)

    def remove_attempt(self, task: TaskNode, attempt: int) -> None:
        """Remove an attempt, if it exists."""
        key = (task.spec.id, attempt)
        self.given_at_s.pop(key, None)
        if self.assigned.pop(key, None) is not None:
            self.recalled.discard(key)
            self.over_credit.discard(key)
            if attempt == 0 and task.spec.id in self.within:
                self.within.discard(task.spec.id)
                return
            needs = task.spec.needs
            self._use(needs, -1)
            if needs.io:
                self.disks.remove(key)


class WorkerTable:
    """All workers, by id and by address.

    `suspects` are the addresses of workers that may be lost, or are lost and are still listed in
    the object table. `awaited` are the addresses of the workers of the master before this one that
    have not returned yet, by id. `expected` are the addresses of workers that have ended and may be
    started again with their objects, each with the time until which the master waits for that.
    `launchable` are the kinds of workers that a launcher can start when tasks need them.
    `unreached` are, by worker, the addresses of connected workers that did not answer it, with the
    time until which it does not try again.
    """

    __slots__ = (
        "_by_netloc",
        "awaited",
        "by_id",
        "disks",
        "expected",
        "hosts",
        "launchable",
        "returned",
        "suspects",
        "unreached",
    )

    def __init__(self) -> None:
        self.by_id: dict[str, WorkerNode] = {}
        self.hosts: dict[str, str] = {}  # by address
        self.disks: Counter[Disk] = Counter()  # how many attempts use each
        self.suspects: frozenset[str] = frozenset()
        self.awaited: dict[str, str] = {}
        self.expected: dict[str, float] = {}
        self.launchable: tuple[Capacity, ...] = ()
        self.returned: set[TaskNode] = set()  # recalled tasks that were returned in this tick
        self.unreached: dict[WorkerNode, dict[str, float]] = {}
        self._by_netloc: dict[str, WorkerNode] = {}

    def add(self, worker: WorkerNode) -> None:
        self.by_id[worker.facts.id] = worker
        self._by_netloc[worker.facts.netloc] = worker
        self.hosts[worker.facts.netloc] = worker.facts.host
        worker.disks.share(self.disks)

    def remove(self, worker: WorkerNode) -> None:
        del self.by_id[worker.facts.id]
        worker.disks.clear()
        if self._by_netloc.get(worker.facts.netloc) is worker:
            del self._by_netloc[worker.facts.netloc], self.hosts[worker.facts.netloc]
        if self.unreached:
            self.unreached.pop(worker, None)
            for netlocs in self.unreached.values():
                netlocs.pop(worker.facts.netloc, None)

    def may_come(self, needs: Needs) -> bool:
        """Whether a launcher can start a worker that could run a task with these needs."""
        return any(capacity.can_hold(needs) for capacity in self.launchable)

    def at(self, netloc: str) -> WorkerNode | None:
        """Return the worker at an address; None if there is none."""
        return self._by_netloc.get(netloc)

    def without_suspects(self, ref: Reference) -> Reference:
        """Remove the addresses of suspected workers from a reference, if others are left."""
        if type(ref) is not Concrete and type(ref) is not Sweetheart:
            return ref
        places = ref.locations - self.suspects
        return ref._replace(locations=places) if places else ref

    def fetchable(self, worker: WorkerNode, ref: Reference) -> Reference:
        """As `without_suspects`; remove also the addresses that a worker does not reach."""
        ref = self.without_suspects(ref)
        if type(ref) is not Concrete and type(ref) is not Sweetheart:
            return ref
        places = ref.locations.difference(self.unreached.get(worker, {}))
        return ref._replace(locations=places) if places else ref

    def can_fetch(self, worker: WorkerNode, ref: Reference) -> bool:
        """Whether a worker has an object, or may reach a worker that has it."""
        unreached = self.unreached.get(worker)
        if not unreached:
            return True
        places = locations_of(ref)
        if not places or worker.facts.netloc in places:
            return True
        return not unreached.keys() >= places - self.suspects
