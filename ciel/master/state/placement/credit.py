"""Computes the credit of a worker: how many tasks the master assigns to it at a time.

The credit is one task for each slot, and a prefetch: tasks that wait in the worker's queue. The
queue should last for one round trip to the master, so that no slot is idle until the next task
arrives. A longer queue would hold tasks that idle workers could run. So the prefetch is large if
the worker's tasks are short.
"""

from __future__ import annotations

PREFETCH_MIN, PREFETCH_MAX = 1, 512
PREFETCH_S = 0.04
"""How much work a worker should have queued: enough for a round trip, its wake-ups, and a long tick
of the master."""
SMOOTHING = 0.2


class Credit:
    """One worker's limit, in slots."""

    __slots__ = ("limit", "slots", "task_s")

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.task_s = 0.02  # a guess until the first tasks have ended
        self.limit = slots
        self._adapt()

    def learn(self, run_s: float) -> None:
        """Note how long a task took."""
        self.task_s += SMOOTHING * (max(run_s, 1e-5) - self.task_s)
        self._adapt()

    def learn_at_least(self, run_s: float) -> None:
        """Note that running tasks take at least this time, which may exceed the estimate."""
        if run_s > self.task_s:
            self.task_s = run_s
            self._adapt()

    def _adapt(self) -> None:
        prefetch = int(PREFETCH_S / self.task_s * self.slots)
        self.limit = self.slots + min(max(prefetch, PREFETCH_MIN), PREFETCH_MAX)
