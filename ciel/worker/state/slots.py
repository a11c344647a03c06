"""A worker's slots and memory, and how many brief programs it launches ahead of a free slot."""

from __future__ import annotations

from ciel.worker.state.orders import Attempt, Key

BRIEF_S = 0.005
"""Programs that take less time than this may be launched ahead of a free slot."""
AHEAD_S = 0.01
"""The worker launches ahead as many programs as its slots run in this time.

The launcher starts them without waiting for the worker.
"""
AHEAD_MAX = 16


class Slots:
    """Counts free slots, and the free memory for tasks that request some (0: unknown).

    `free` is negative while programs are launched ahead.

    `interactive`: the executors of interactive programs, which are not launched ahead.
    """

    def __init__(self, count: int, interactive: frozenset[str], memory_bytes: int = 0) -> None:
        self.count = count
        self.free = count
        self.running: dict[Key, Attempt] = {}  # the attempts that were given slots, or share some
        self.memory_free = memory_bytes
        self._memory_bytes = memory_bytes
        self._interactive = interactive
        self._run_s = 2 * BRIEF_S  # about how long programs run here
        self._ahead = 0  # how many may be launched ahead
        self._wide: list[int] = []  # the slots of running attempts that have more than one

    @property
    def has_room(self) -> bool:
        """Whether any attempt may start."""
        return self.free > -self._ahead

    def fit(self, attempt: Attempt) -> bool:
        """Whether there are slots for an attempt, or its program may be launched ahead.

        The latter requires that it has no inputs, no time limit, no disk and no resources.
        """
        if attempt.memory_bytes and not self.has_memory(attempt.memory_bytes):
            return False
        if attempt.slots <= self.free:
            return True
        spec = attempt.spec
        is_plain = attempt.slots == 1 and not spec.inputs and not spec.needs.timeout_s
        is_plain = is_plain and attempt.key[1] <= 1
        is_plain = is_plain and not (spec.needs.io or spec.needs.resources)
        is_plain = is_plain and spec.executor not in self._interactive
        return is_plain and self.has_room

    def has_memory(self, memory_bytes: int) -> bool:
        """Whether this much memory is free, or all of it if there is less in total."""
        return self._counted(memory_bytes) <= self.memory_free

    def take(self, attempt: Attempt) -> int:
        """Give an attempt its slots; return `at_most` for its program (see `StartAttempt`)."""
        at_most = 0
        if attempt.slots > self.free:  # the slots of wide attempts run one program together
            at_most = self.count - sum(self._wide) + len(self._wide)
        if attempt.slots > 1:
            self._wide.append(attempt.slots)
        self.free -= attempt.slots
        self.running[attempt.key] = attempt
        if attempt.memory_bytes:
            self.memory_free -= self._counted(attempt.memory_bytes)
        return at_most

    def give_back(self, attempt: Attempt) -> None:
        """Take an attempt's slots back."""
        self.free += attempt.slots
        del self.running[attempt.key]
        if attempt.memory_bytes:
            self.memory_free += self._counted(attempt.memory_bytes)
        if attempt.slots > 1:
            self._wide.remove(attempt.slots)

    def _counted(self, memory_bytes: int) -> int:
        """Return how much memory to charge: a task that requests more than there is runs alone."""
        return min(memory_bytes, self._memory_bytes)

    def learn(self, attempt: Attempt, run_s: float) -> None:
        """Update the estimate by the run time of a program that succeeded."""
        if not run_s or attempt.spec.executor in self._interactive:
            return
        self._run_s += 0.2 * (run_s - self._run_s)
        ahead = int(AHEAD_S / self._run_s * self.count) if self._run_s < BRIEF_S else 0
        self._ahead = min(ahead, max(AHEAD_MAX, self.count))
