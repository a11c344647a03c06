"""What tasks wait for while they run: a task may run a child of its own within itself, and have
others make what it will need next, without ending first (see ADR 0020).

An errand lasts until the object is there, or its owner does not run any more.
"""

from __future__ import annotations

from collections.abc import Iterable

from ciel.core.ids import ObjectId
from ciel.core.nodes import TaskNode


class Errands:
    """Who waits for which objects while it runs."""

    __slots__ = ("_by_owner", "awaited")

    def __init__(self) -> None:
        self.awaited: dict[str, TaskNode] = {}
        self._by_owner: dict[TaskNode, list[ObjectId]] = {}

    def add(self, owner: TaskNode, objects: Iterable[ObjectId]) -> None:
        """Have a running task wait for objects; of several that wait for one, the last counts."""
        mine = self._by_owner.setdefault(owner, [])
        for object_id in objects:
            self.awaited[object_id] = owner
            mine.append(object_id)

    def of(self, owner: TaskNode) -> list[ObjectId]:
        """Name what a running task waits for."""
        return [o for o in self._by_owner.get(owner, ()) if self.awaited.get(o) is owner]

    def end(self, owner: TaskNode) -> list[ObjectId]:
        """Take what a task waited for that runs no more."""
        mine = self.of(owner)
        self._by_owner.pop(owner, None)
        for object_id in mine:
            del self.awaited[object_id]
        return mine
