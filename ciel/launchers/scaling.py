"""Decides how many workers a cluster asks for, and which of them it lets go.

It is pure: `Scaling.decide` takes what the master and the resource manager have reported, and the
time, and returns commands, each with its reason. These are the rules:

- A cluster asks for as many workers as the waiting tasks can use, by slots and by memory. Short
  tasks do not count one by one: each asked worker gets at least `WORTH_S` of work for each slot.
- Running and queued allocations together are at most the user's maximum, and queued allocations at
  most the backlog. As long as nobody knows the size of a worker, it asks for one.
- It cancels queued allocations that no waiting task can use any more.
- A worker that was idle for `idle_s` is drained, so that other workers take its objects. The last
  worker has nobody to take them: its allocation is cancelled if it has no objects, and else stays.
- An allocation that ends before its worker has joined has failed. After `FAILURES_MAX` failures in
  a row, it asks for nothing for a time, which doubles with each further failure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil
from typing import Final, NamedTuple

from ciel.launchers.interface import Allocation, Phase, WorkerSize

WORTH_S: Final = 10.0
"""A worker is worth its start if it gets this much work for each slot: it takes seconds to start,
and the workers that exist do less work meanwhile."""

FAILURES_MAX: Final = 3
"""How many allocations in a row may fail before the cluster pauses."""

PAUSE_FIRST_S: Final = 60.0
PAUSE_MAX_S: Final = 3600.0

SETTLE_S: Final = 5.0
"""How long a cluster keeps a queued allocation without use, since the next tasks may follow."""

REQUEST_MAX: Final = 1000
"""The number of allocations in one request: the default limit of Slurm for an array."""


class Waiting(NamedTuple):
    """How many tasks with the same needs wait for a slot.

    `typical_s`: the run time of such tasks so far; None if none has ended.
    """

    tasks: int
    slots: int = 1
    memory_bytes: int = 0
    typical_s: float | None = None


class Member(NamedTuple):
    """A worker of the cluster. `allocation`: empty if no launcher has brought it."""

    id: str
    allocation: str
    slots: int
    memory_bytes: int = 0
    is_busy: bool = False
    has_objects: bool = False
    is_draining: bool = False


class Limits(NamedTuple):
    """The limits that the user sets."""

    workers_min: int = 0
    workers_max: int = 1
    backlog_max: int = 8
    idle_s: float = 60.0
    time_limit_s: float = 0.0  # of an allocation; 0: none


class Seen(NamedTuple):
    """Workers, allocations and waiting tasks at one moment.

    `size`: of a worker, as far as the launcher knows it.
    """

    waiting: Sequence[Waiting]
    members: Sequence[Member]
    allocations: Sequence[Allocation]
    size: WorkerSize = WorkerSize()


class Request(NamedTuple):
    """Ask for the allocations of some more workers."""

    workers: int
    why: str


class Cancel(NamedTuple):
    """Cancel allocations."""

    ids: tuple[str, ...]
    why: str


class Release(NamedTuple):
    """Drain workers; each ends when it has nothing left, and its allocation with it."""

    workers: tuple[str, ...]
    why: str


class Nothing(NamedTuple):
    """Change nothing."""

    why: str


Command = Request | Cancel | Release | Nothing


def _slots(count: int) -> str:
    return "1 slot" if count == 1 else f"{count} slots"


class Scaling:
    """Remembers what one decision has to know of earlier ones."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._size = WorkerSize()  # of the workers that have joined
        self._alive: set[str] = set()  # allocations that were listed, or asked for
        self._joined: set[str] = set()  # of them, those whose worker has joined
        self._cancelled: set[str] = set()
        self._idle_since_s: dict[str, float] = {}
        self._unused_since_s: float | None = None
        self.failures = 0
        """Allocations that have failed since the last worker joined."""
        self.last_failure = ""
        self.paused_until_s = 0.0

    # --- events -----------------------------------------------------------------------------------

    def requested(self, ids: Iterable[str]) -> None:
        """Note the allocations that a request has brought."""
        self._alive.update(ids)

    def request_failed(self, reason: str, now_s: float) -> None:
        """Note that the resource manager has refused a request."""
        self._fail(reason, now_s)

    def _fail(self, reason: str, now_s: float) -> None:
        self.failures += 1
        self.last_failure = reason
        if self.failures >= FAILURES_MAX:
            pause_s = PAUSE_FIRST_S * 2.0 ** min(self.failures - FAILURES_MAX, 30)
            self.paused_until_s = now_s + min(pause_s, PAUSE_MAX_S)

    def _observe(self, seen: Seen, now_s: float) -> None:
        """Learn from workers that have joined, and from allocations that have ended."""
        for member in seen.members:
            if member.allocation and member.allocation not in self._joined:
                self._joined.add(member.allocation)
                self._size = WorkerSize(member.slots, member.memory_bytes)
                self.failures, self.paused_until_s = 0, 0.0
        for allocation in seen.allocations:
            name = allocation.id
            if allocation.phase is not Phase.ENDED:
                self._alive.add(name)
            elif name in self._alive:
                self._alive.remove(name)
                if name not in self._joined and name not in self._cancelled:
                    self._fail(f"allocation {name} {allocation.reason or 'ended'}", now_s)
                self._joined.discard(name)
                self._cancelled.discard(name)

    # --- decisions --------------------------------------------------------------------------------

    def decide(self, seen: Seen, now_s: float) -> list[Command]:
        """Return what to do now, at least one command."""
        self._observe(seen, now_s)
        size = WorkerSize(
            seen.size.slots or self._size.slots, seen.size.memory_bytes or self._size.memory_bytes
        )
        members = [member for member in seen.members if member.allocation]
        here = {member.allocation for member in members}
        listed = {a.id: a.phase for a in seen.allocations}
        # A requested allocation that no listing contains yet is on its way.
        queued = [a for a in sorted(self._alive) if listed.get(a, Phase.QUEUED) is Phase.QUEUED]
        starting = [a for a in sorted(self._alive) if listed.get(a) is Phase.RUNNING]
        coming = [a for a in (*queued, *starting) if a not in here and a not in self._cancelled]
        wanted, why = self._workers_for(seen, size)
        staying = [member for member in members if not member.is_draining]
        busy = sum(member.is_busy for member in staying)
        idle = len(staying) - busy
        lacking = max(wanted - idle, self._limits.workers_min - len(staying)) - len(coming)
        used = len(members) + len(coming)
        if lacking > 0:
            self._unused_since_s = None
            return [self._ask(lacking, len(queued), used, size, why, now_s)]
        commands = self._cancel_unused(-lacking, [a for a in queued if a in coming], why, now_s)
        if wanted == 0:
            commands += self._let_go(staying, now_s)
        else:
            self._idle_since_s.clear()
        return commands or [Nothing(self._why_nothing(wanted, idle, len(coming), why))]

    def _workers_for(self, seen: Seen, size: WorkerSize) -> tuple[int, str]:
        """Return how many idle workers the waiting tasks could use, and why."""
        slots_of, memory_of = size.slots or 1, size.memory_bytes
        slots = work_s = memory = 0.0
        tasks, never, why_never = 0, 0, ""
        is_known = True
        for group in seen.waiting:
            if reason := self._never_fits(group, size):
                never, why_never = never + group.tasks, reason
                continue
            tasks += group.tasks
            slots += group.tasks * group.slots
            memory += group.tasks * group.memory_bytes
            if group.typical_s is None:
                is_known = False
            else:
                work_s += group.tasks * group.slots * group.typical_s
        text = f"{tasks} tasks wait" if tasks != 1 else "1 task waits"
        if never:
            text += f"; {never} more cannot run on such a worker: {why_never}"
        if not tasks:
            return 0, text if never else "no task waits"
        wanted = ceil(slots / slots_of)
        text += f" for {_slots(int(slots))}"
        if memory_of and (by_memory := ceil(memory / memory_of)) > wanted:
            wanted, text = by_memory, f"{text} and {memory / 2**30:.3g} GiB of memory"
        if is_known and (by_time := max(1, ceil(work_s / (slots_of * WORTH_S)))) < wanted:
            wanted, text = by_time, f"{text}, with {work_s:.3g} s of work"
        if size.slots:
            text += f"; a worker has {_slots(size.slots)}"
        return wanted, text

    def _never_fits(self, group: Waiting, size: WorkerSize) -> str:
        """Explain why a worker of this size can never run a task; "" if it can."""
        limit_s = self._limits.time_limit_s
        if size.slots and group.slots > size.slots:
            return f"it needs {_slots(group.slots)}, and a worker has {size.slots}"
        if size.memory_bytes and group.memory_bytes > size.memory_bytes:
            needed, offered = group.memory_bytes / 2**30, size.memory_bytes / 2**30
            return f"it needs {needed:.3g} GiB of memory, and a worker has {offered:.3g} GiB"
        if limit_s and group.typical_s is not None and group.typical_s > limit_s:
            return f"it takes {group.typical_s:.4g} s, and an allocation ends after {limit_s:g} s"
        return ""

    def _ask(
        self, lacking: int, queued: int, used: int, size: WorkerSize, why: str, now_s: float
    ) -> Command:
        """Ask for workers, or say which limit forbids it."""
        limits = self._limits
        if now_s < self.paused_until_s:
            return Nothing(
                f"{why}, but the last {self.failures} allocations have failed, the last one: "
                f"{self.last_failure}; the next attempt is in {self.paused_until_s - now_s:.0f} s"
            )
        if used >= limits.workers_max:
            return Nothing(f"{why}, but there are {used} workers already, the maximum (--workers)")
        if queued >= limits.backlog_max:
            return Nothing(f"{why}, but {queued} allocations are queued, the maximum (--backlog)")
        count = min(lacking, limits.workers_max - used, limits.backlog_max - queued, REQUEST_MAX)
        if not size.slots and used + count > max(1, limits.workers_min):
            count = max(0, max(1, limits.workers_min) - used)
            if not count:
                return Nothing(f"{why}; the first worker will show how many slots a worker has")
        if self.failures:
            count = 1  # one is enough to see whether allocations work again
            if queued:
                return Nothing(f"{why}; the last allocation failed, so it waits for the next one")
        return Request(count, why)

    def _cancel_unused(
        self, surplus: int, queued: Sequence[str], why: str, now_s: float
    ) -> list[Command]:
        """Cancel queued allocations that have had no use for a while."""
        surplus = min(surplus, len(queued))
        if surplus <= 0:
            self._unused_since_s = None
            return []
        if self._unused_since_s is None:
            self._unused_since_s = now_s
        if now_s - self._unused_since_s < SETTLE_S:
            return []
        self._unused_since_s = None
        ids = tuple(queued[-surplus:])
        self._cancelled.update(ids)
        return [Cancel(ids, f"{why}, so these queued allocations have no use")]

    def _let_go(self, staying: Sequence[Member], now_s: float) -> list[Command]:
        """Release workers that were idle for long enough."""
        names = {member.id for member in staying if not member.is_busy}
        self._idle_since_s = {w: since for w, since in self._idle_since_s.items() if w in names}
        for name in names:
            self._idle_since_s.setdefault(name, now_s)
        due = [
            member for member in staying
            if now_s - self._idle_since_s.get(member.id, now_s) >= self._limits.idle_s
        ]  # fmt: skip
        due = due[: max(0, len(staying) - self._limits.workers_min)]
        if not due:
            return []
        idle_s = f"idle for {self._limits.idle_s:g} s"
        if len(due) < len(staying):
            return [Release(tuple(member.id for member in due), idle_s)]
        # Nobody would take the objects of the last one; workers without objects just end.
        commands: list[Command] = []
        if empty := tuple(member.allocation for member in due if not member.has_objects):
            self._cancelled.update(empty)
            commands.append(Cancel(empty, f"{idle_s}, without objects"))
        full = [member.id for member in due if member.has_objects]
        if full[1:]:
            commands.append(Release(tuple(full[1:]), idle_s))
        if full and not commands:
            commands.append(Nothing(
                f"worker {full[0]} is idle, but it is the last one, and has objects of jobs; it "
                "leaves when these jobs are removed (ciel job remove)"
            ))  # fmt: skip
        return commands

    def _why_nothing(self, wanted: int, idle: int, coming: int, why: str) -> str:
        if wanted == 0:
            return why
        return f"{why}: {idle} idle workers and {coming} allocations on their way are enough"
