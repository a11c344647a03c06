"""Decides which warm process serves a task, and which one has been idle for too long."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

IDLE_MAX_S = 30.0
IDLE_MAX = 64
"""Idle processes at a time; beyond that the pool gives up the longest idle one."""


class Idle(NamedTuple):
    """A process that is ready for another task. `holds`: the ids of objects in its memory."""

    kind: str
    holds: frozenset[str]
    since_s: float


class Pool:
    """The idle processes of a worker, by number; the longest idle first."""

    def __init__(self, idle_max_s: float = IDLE_MAX_S) -> None:
        self._idle_max_s = idle_max_s
        self._idle: dict[int, Idle] = {}
        self._by_kind: dict[str, dict[int, None]] = {}

    def __len__(self) -> int:
        return len(self._idle)

    def put(
        self, process: int, kind: str, holds: Collection[frozenset[str]], now_s: float
    ) -> list[int]:
        """Add a process; return the processes that the pool gives up for it."""
        self._idle[process] = Idle(kind, frozenset().union(*holds), now_s)
        self._by_kind.setdefault(kind, {})[process] = None
        surplus = list(self._idle)[: max(len(self._idle) - IDLE_MAX, 0)]
        for other in surplus:
            self.remove(other)
        return surplus

    def take(self, kind: str, inputs: Collection[str]) -> int | None:
        """Take the process of a kind that has most of a task's inputs in memory.

        Among equals, take the most recently busy one. Return None if there is none.
        """
        able = self._by_kind.get(kind)
        if not able:
            return None
        best = next(reversed(able))
        if inputs:
            wanted = frozenset(inputs)
            best = max(reversed(able), key=lambda number: len(self._idle[number].holds & wanted))
        self.remove(best)
        return best

    def remove(self, process: int) -> bool:
        """Forget a process, if it is idle; return whether it was."""
        idle = self._idle.pop(process, None)
        if idle is not None:
            able = self._by_kind[idle.kind]
            del able[process]
            if not able:
                del self._by_kind[idle.kind]
        return idle is not None

    def expired(self, now_s: float) -> list[int]:
        """Take the processes that have been idle for too long."""
        old = [n for n, idle in self._idle.items() if now_s - idle.since_s >= self._idle_max_s]
        for process in old:
            self.remove(process)
        return old

    def due_s(self) -> float | None:
        """When `expired` will have something to return."""
        first = next(iter(self._idle.values()), None)
        return None if first is None else first.since_s + self._idle_max_s
