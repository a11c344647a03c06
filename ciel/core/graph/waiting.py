"""Maps each waiting task to its missing inputs, and releases it when the last one arrives.

The graph and the queue of a worker use the same table.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

LIST_MAX_LENGTH = 16


class Waiting(Generic[K]):
    """Maps waiters to the objects that they wait for.

    A waiter is ready once all its objects were released.
    """

    __slots__ = ("_missing", "awaited")

    def __init__(self) -> None:
        # The waiters of each awaited object. Few waiters are a list, which takes a third of the
        # memory of a dict; many are a dict, from which one can be removed quickly.
        self.awaited: dict[str, list[K] | dict[K, None]] = {}
        self._missing: dict[K, int] = {}

    def __contains__(self, waiter: K) -> bool:
        return waiter in self._missing

    def __len__(self) -> int:
        return len(self._missing)

    def wait(self, waiter: K, objects: Iterable[str]) -> None:
        """Make `waiter` wait for `objects`: at least one, none twice. It must not wait yet."""
        count = 0
        waiters = self.awaited
        for object_id in objects:
            others = waiters.get(object_id)
            if others is None:
                waiters[object_id] = [waiter]
            elif isinstance(others, dict):
                others[waiter] = None
            elif len(others) < LIST_MAX_LENGTH:
                others.append(waiter)
            else:
                waiters[object_id] = dict.fromkeys([*others, waiter])
            count += 1
        self._missing[waiter] = count

    def release(self, object_id: str) -> list[K]:
        """Release an object that exists; return the waiters that are ready now, oldest first."""
        waiters = self.awaited.pop(object_id, None)
        if waiters is None:
            return []
        ready = []
        missing = self._missing
        for waiter in waiters:
            left = missing[waiter] - 1
            if left:
                missing[waiter] = left
            else:
                del missing[waiter]
                ready.append(waiter)
        return ready

    def release_one(self, waiter: K, object_id: str) -> bool:
        """Release an object for one of its waiters; return whether that waiter is ready now."""
        self._remove_waiter(waiter, object_id)
        left = self._missing[waiter] - 1
        if left:
            self._missing[waiter] = left
            return False
        del self._missing[waiter]
        return True

    def forget(self, waiter: K, objects: Iterable[str]) -> None:
        """Remove a waiter. `objects` must include all objects that it still waits for."""
        if self._missing.pop(waiter, None) is None:
            return
        for object_id in objects:
            self._remove_waiter(waiter, object_id)

    def _remove_waiter(self, waiter: K, object_id: str) -> None:
        others = self.awaited.get(object_id)
        if others is not None and waiter in others:
            if isinstance(others, dict):
                del others[waiter]
            else:
                others.remove(waiter)
            if not others:
                del self.awaited[object_id]

    def waiters_of(self, object_id: str) -> list[K]:
        return list(self.awaited.get(object_id, ()))

    def is_awaited(self, object_id: str) -> bool:
        return object_id in self.awaited

    def missing_of(self, waiter: K) -> int:
        """Return how many objects `waiter` still waits for; 0 if it does not wait."""
        return self._missing.get(waiter, 0)
