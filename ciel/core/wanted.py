"""The objects that a job wants, in order."""

from __future__ import annotations

from collections.abc import Iterator

from ciel.core.ids import ObjectId


class WantedObjects:
    """An ordered collection of different objects. An object takes 9 bytes, in a dictionary 42.

    `ObjectNode.wanters` tells whether a job wants an object; this collection does not. Iteration
    follows the order of `add`, except for objects that were removed and soon added again.
    """

    __slots__ = ("_objects", "_removed")

    def __init__(self) -> None:
        self._objects: list[ObjectId] = []
        self._removed: dict[ObjectId, None] = {}  # they are still in the list

    def __len__(self) -> int:
        return len(self._objects) - len(self._removed)

    def __bool__(self) -> bool:
        return len(self._objects) > len(self._removed)

    def __iter__(self) -> Iterator[ObjectId]:
        if not self._removed:
            return iter(self._objects)
        return (object_id for object_id in self._objects if object_id not in self._removed)

    def add(self, object_id: ObjectId) -> None:
        """Add an object that is not in the collection."""
        if self._removed and object_id in self._removed:
            del self._removed[object_id]
        else:
            self._objects.append(object_id)

    def remove(self, object_id: ObjectId) -> None:
        """Remove an object that is in the collection."""
        self._removed[object_id] = None
        if len(self._removed) * 2 > len(self._objects):
            self._objects = list(self)
            self._removed.clear()

    def pop(self) -> ObjectId:
        """Remove and return the last object."""
        if self._removed:
            self._objects = list(self)
            self._removed.clear()
        return self._objects.pop()
