"""Runnable tasks that no worker has yet: highest priority first, then in the order they came."""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush

from ciel.core.graph import TaskNode


class ReadyQueue:
    """A deque per priority. Entries are hints: who takes one asks the graph if it still holds."""

    __slots__ = ("_count", "_order", "_queues")

    def __init__(self) -> None:
        self._queues: dict[int, deque[TaskNode]] = {}
        self._order: list[int] = []  # negated priorities, a heap
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def push(self, task: TaskNode) -> None:
        self._queue(task).append(task)
        self._count += 1

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
