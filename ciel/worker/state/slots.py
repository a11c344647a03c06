"""A worker's slots and memory, and how many brief programs are prepared ahead of a free slot."""

from __future__ import annotations

from ciel.worker.state.orders import Attempt

BRIEF_S = 0.005
"""Of programs that take less than this, some are prepared ahead of a free slot, ..."""
AHEAD_S = 0.01
"""...as many as run in this time, so that one follows the other without a word from us."""
AHEAD_MAX = 16


class Slots:
    """So many slots; `free` is negative while programs are prepared ahead. And so many bytes of
    memory for those who ask for some; 0: nobody knows how many there are.

    `interactive`: the executors whose programs are no matter of a moment, and not prepared ahead.
    """

    def __init__(self, count: int, interactive: frozenset[str], memory_bytes: int = 0) -> None:
        self.count = count
        self.free = count
        self.memory_free = memory_bytes
        self._memory_bytes = memory_bytes
        self._interactive = interactive
        self._run_s = 2 * BRIEF_S  # what programs take here, about
        self._ahead = 0  # how many may be prepared
        self._wide: list[int] = []  # the slots of those that run and have more than one

    @property
    def has_room(self) -> bool:
        """Whether anything at all may start."""
        return self.free > -self._ahead

    def fit(self, attempt: Attempt) -> bool:
        """Whether there are slots for an attempt, or it may be prepared ahead: then nothing of it
        is on the way in, and no time limit runs.
        """
        if attempt.memory_bytes and not self.has_memory(attempt.memory_bytes):
            return False
        if attempt.slots <= self.free:
            return True
        spec = attempt.spec
        is_plain = attempt.slots == 1 and not spec.inputs and not spec.needs.timeout_s
        is_plain = is_plain and attempt.key[1] <= 1
        is_plain = is_plain and spec.executor not in self._interactive
        return is_plain and self.has_room

    def has_memory(self, memory_bytes: int) -> bool:
        """Whether so much is free, or all of it if there is less."""
        return self._counted(memory_bytes) <= self.memory_free

    def take(self, attempt: Attempt) -> int:
        """Give an attempt its slots; return `at_most` for its program (see `StartAttempt`)."""
        at_most = 0
        if attempt.slots > self.free:  # all slots but those of wide ones run one program each
            at_most = self.count - sum(self._wide) + len(self._wide)
        if attempt.slots > 1:
            self._wide.append(attempt.slots)
        self.free -= attempt.slots
        if attempt.memory_bytes:
            self.memory_free -= self._counted(attempt.memory_bytes)
        return at_most

    def give_back(self, attempt: Attempt) -> None:
        """Take an attempt's slots back."""
        self.free += attempt.slots
        if attempt.memory_bytes:
            self.memory_free += self._counted(attempt.memory_bytes)
        if attempt.slots > 1:
            self._wide.remove(attempt.slots)

    def _counted(self, memory_bytes: int) -> int:
        """Return what counts against our memory: who asks for more than all of it runs alone."""
        return min(memory_bytes, self._memory_bytes)

    def learn(self, attempt: Attempt, run_s: float) -> None:
        """Note how long the program of an attempt took that ended well."""
        if not run_s or attempt.spec.executor in self._interactive:
            return
        self._run_s += 0.2 * (run_s - self._run_s)
        ahead = int(AHEAD_S / self._run_s * self.count) if self._run_s < BRIEF_S else 0
        self._ahead = min(ahead, max(AHEAD_MAX, self.count))
