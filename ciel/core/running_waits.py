"""Tracks the objects that a running task waits for: it runs a child within itself, or has another
worker produce an object that it will need (ADR 20).

An entry lasts until the object is there, or the task runs no more.
"""

from __future__ import annotations

from collections.abc import Iterable

from ciel.core.ids import ObjectId
from ciel.core.nodes import TaskNode


class RunningWaits:
    """Maps running tasks to the objects that they wait for."""

    __slots__ = ("_by_owner", "awaited")

    def __init__(self) -> None:
        self.awaited: dict[str, TaskNode] = {}
        self._by_owner: dict[TaskNode, list[ObjectId]] = {}

    def add(self, owner: TaskNode, objects: Iterable[ObjectId]) -> None:
        """Have a running task wait for objects; if several wait for one object, the last counts."""
        mine = self._by_owner.setdefault(owner, [])
        for object_id in objects:
            self.awaited[object_id] = owner
            mine.append(object_id)

    def of(self, owner: TaskNode) -> list[ObjectId]:
        """Return the objects that a running task waits for."""
        return [o for o in self._by_owner.get(owner, ()) if self.awaited.get(o) is owner]

    def end(self, owner: TaskNode) -> list[ObjectId]:
        """Remove the objects of a task that runs no more, and return them."""
        mine = self.of(owner)
        self._by_owner.pop(owner, None)
        for object_id in mine:
            del self.awaited[object_id]
        return mine
