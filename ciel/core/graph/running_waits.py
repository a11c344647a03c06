"""Tracks the objects that running tasks wait for.

A child within the task's program produces them, or a task on another worker (ADR 20). An entry is
removed when the object exists, or the task has stopped.
"""

from __future__ import annotations

from collections.abc import Iterable

from ciel.core.graph.nodes import TaskNode
from ciel.core.ids import ObjectId


class RunningWaits:
    """Maps running tasks to the objects that they wait for."""

    __slots__ = ("_by_owner", "awaited")

    def __init__(self) -> None:
        self.awaited: dict[str, TaskNode] = {}
        self._by_owner: dict[TaskNode, list[ObjectId]] = {}

    def add(self, owner: TaskNode, objects: Iterable[ObjectId]) -> None:
        """Record that a running task waits for objects.

        If several tasks wait for an object, only the last one is recorded.
        """
        mine = self._by_owner.setdefault(owner, [])
        for object_id in objects:
            self.awaited[object_id] = owner
            mine.append(object_id)

    def of(self, owner: TaskNode) -> list[ObjectId]:
        """Return the objects that a running task waits for."""
        return [o for o in self._by_owner.get(owner, ()) if self.awaited.get(o) is owner]

    def end(self, owner: TaskNode) -> list[ObjectId]:
        """Remove a task that has stopped, and return the objects that it waited for."""
        mine = self.of(owner)
        self._by_owner.pop(owner, None)
        for object_id in mine:
            del self.awaited[object_id]
        return mine
