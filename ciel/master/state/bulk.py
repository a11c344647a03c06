"""Runs operations on any number of tasks in slices, so that clients and workers need not wait.

Such operations cancel, fail, remove, retry and finish jobs, for example. An operation is a
generator that yields when the graph has no steps left. It leaves the graph consistent at each
yield, and allows any event before it continues.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

from ciel.core.graph import deferred
from ciel.core.graph.task_graph import TaskGraph

STEPS_PER_TICK: Final = 1000
"""The number of tasks that operations in slices may touch per tick: this takes 10 ms, or 20 ms if
not compiled."""

_ENDED: Final = object()


class BulkOperations:
    """The operations that have started and not ended, which run in round-robin order."""

    def __init__(self, graph: TaskGraph) -> None:
        self.steps_per_tick = STEPS_PER_TICK
        self._graph = graph
        self._started: deque[Iterator[None]] = deque()
        graph.steps_left = STEPS_PER_TICK

    def __bool__(self) -> bool:
        return bool(self._started)

    def start(self, operation: Iterator[None]) -> None:
        """Run the first slice of an operation at once, which completes most operations.

        Errors of this slice propagate to the caller.
        """
        if next(operation, _ENDED) is not _ENDED:
            self._started.append(operation)

    def resume(self) -> None:
        """Continue the deferred work of the graph, and then the operations, for one tick."""
        deferred.resume(self._graph)
        while self._started and self._graph.steps_left > 0:
            operation = self._started.popleft()
            if next(operation, _ENDED) is not _ENDED:
                self._started.append(operation)

    def end_tick(self) -> None:
        """Reset the number of steps for the next tick."""
        self._graph.steps_left = self.steps_per_tick
