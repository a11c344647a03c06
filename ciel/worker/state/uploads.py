"""What people bring to a worker's store, and what they pin there: the master need not know of it.

An object that a client brings is not told to the master before a job names it; from then on that
decides how long it is needed. One that no job ever names would stay for good. So who wants room has
the worker offer these to the master, which orders those deleted that it does not know.
"""

from __future__ import annotations

from collections.abc import Iterable

from ciel.core.ids import ObjectId, is_output

NEW_FOR_S = 600.0
"""So long an object is left to whoever brought it, who may be about to name it in a job."""


class Brought:
    """The ids of both; of what is gone none is kept."""

    def __init__(self) -> None:
        self.pinned: dict[ObjectId, None] = {}
        self._since_s: dict[ObjectId, float] = {}  # the eldest first

    def came(self, object_id: ObjectId, now_s: float) -> None:
        """Note an object that somebody brought."""
        self._since_s.pop(object_id, None)
        self._since_s[object_id] = now_s

    def found(self, objects: Iterable[ObjectId], now_s: float) -> None:
        """Note what the store had from an earlier life, if it is not what tasks have made."""
        for object_id in objects:
            if not is_output(object_id):
                self.came(object_id, now_s)

    def unnamed(self, now_s: float, older_than_s: float = NEW_FOR_S) -> list[ObjectId]:
        """List what was brought some time ago and is not pinned; jobs may name it by now."""
        return [
            object_id
            for object_id, since_s in self._since_s.items()
            if since_s + older_than_s <= now_s and object_id not in self.pinned
        ]

    def without_pinned(
        self, doomed: tuple[ObjectId, ...], kept: set[ObjectId], now_s: float
    ) -> tuple[ObjectId, ...]:
        """Return what of `doomed` is to be deleted. What is pinned stays, as something that was
        `kept` and of which the master does not know.
        """
        pinned = [o for o in doomed if o in self.pinned] if self.pinned else []
        for object_id in pinned:
            kept.add(object_id)
            self.came(object_id, now_s)
        deleted = tuple([o for o in doomed if o not in self.pinned]) if pinned else doomed
        for object_id in deleted if self._since_s else ():
            self._since_s.pop(object_id, None)
        return deleted
