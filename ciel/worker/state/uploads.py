"""Objects that clients upload to a worker's store, and objects that people pin there.

A worker does not report an upload to the master; the master learns of it when a job names the
object, and decides from then on how long it is needed. An object that no job ever names would stay
forever. So when a user asks to free space, the worker offers such objects to the master, which
orders it to delete the unknown ones.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from ciel.core.ids import ObjectId, is_output

NEW_FOR_S = 600.0
"""An upload is not offered before this time has passed: its client may be about to name it."""


class Uploads:
    """The ids of uploaded and of pinned objects that the store has."""

    def __init__(self) -> None:
        self._pinned: dict[ObjectId, None] = {}
        self._since_s: dict[ObjectId, float] = {}  # the oldest first

    @property
    def pinned(self) -> Collection[ObjectId]:
        return self._pinned

    def pin(self, object_id: ObjectId) -> None:
        """Keep an object, whatever the master orders."""
        self._pinned[object_id] = None

    def unpin(self, object_id: ObjectId) -> None:
        del self._pinned[object_id]

    def add(self, object_id: ObjectId, now_s: float) -> None:
        """Add an object that a client has uploaded."""
        self._since_s.pop(object_id, None)
        self._since_s[object_id] = now_s

    def found(self, objects: Iterable[ObjectId], now_s: float) -> None:
        """Add what the store has from an earlier run of the worker, except for outputs of tasks."""
        for object_id in objects:
            if not is_output(object_id):
                self.add(object_id, now_s)

    def recent(self, now_s: float) -> list[ObjectId]:
        """List the uploads whose client may be about to name them."""
        return [o for o, since_s in self._since_s.items() if since_s + NEW_FOR_S > now_s]

    def old(self, now_s: float, older_than_s: float = NEW_FOR_S) -> list[ObjectId]:
        """List old uploads that are not pinned. Jobs may have named them meanwhile."""
        return [
            object_id
            for object_id, since_s in self._since_s.items()
            if since_s + older_than_s <= now_s and object_id not in self._pinned
        ]

    def without_pinned(
        self, objects: tuple[ObjectId, ...], kept: set[ObjectId], now_s: float
    ) -> tuple[ObjectId, ...]:
        """Return which of `objects` the worker deletes.

        A pinned object stays, as an upload that was `kept` and that the master does not know.
        """
        pinned = [o for o in objects if o in self._pinned] if self._pinned else []
        for object_id in pinned:
            kept.add(object_id)
            self.add(object_id, now_s)
        deleted = tuple([o for o in objects if o not in self._pinned]) if pinned else objects
        for object_id in deleted if self._since_s else ():
            self._since_s.pop(object_id, None)
        return deleted
