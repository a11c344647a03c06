"""Runnable tasks that no worker has yet: highest priority first, then in the order they came.

Those that are tried again after a failure come when their delay is over.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush

from ciel.core.tasks import TaskNode


class ReadyQueue:
    """A deque per priority. Entries are hints: who takes one asks the graph if it still holds."""

    __slots__ = ("_count", "_delayed", "_order", "_queues", "_sequence")

    def __init__(self) -> None:
        self._queues: dict[int, deque[TaskNode]] = {}
        self._order: list[int] = []  # negated priorities, a heap
        self._count = 0
        self._delayed: list[tuple[float, int, TaskNode]] = []  # a heap, by when they come
        self._sequence = 0

    def __len__(self) -> int:
        return self._count

    def count_from(self, priority: int) -> int:
        """Count those of a priority or a higher one."""
        return sum(len(queue) for own, queue in self._queues.items() if own >= priority)

    def push(self, task: TaskNode) -> None:
        self._queue(task).append(task)
        self._count += 1

    def push_later(self, task: TaskNode, due_s: float) -> None:
        """Hold a task back until `wake` is called at `due_s` or later."""
        self._sequence += 1
        heappush(self._delayed, (due_s, self._sequence, task))

    def wake(self, now_s: float) -> None:
        """Take in those whose time has come."""
        while self._delayed and self._delayed[0][0] <= now_s:
            self.push(heappop(self._delayed)[2])

    @property
    def due_s(self) -> float | None:
        """When `wake` has something to do next; None if nothing is held back."""
        return self._delayed[0][0] if self._delayed else None

    def push_first(self, task: TaskNode) -> None:
        """Put a task back that could not be placed; it stays the next of its priority."""
        self._queue(task).appendleft(task)
        self._count += 1

    def _queue(self, task: TaskNode) -> deque[TaskNode]:
        priority = task.spec.needs.priority
        queue = self._queues.get(priority)
        if queue is None:
            queue = self._queues[priority] = deque()
            heappush(self._order, -priority)
        return queue

    def pop(self) -> TaskNode:
        """Take the next task; raises IndexError when there is none."""
        while True:
            priority = -self._order[0]
            queue = self._queues[priority]
            if queue:
                self._count -= 1
                return queue.popleft()
            heappop(self._order)
            del self._queues[priority]
