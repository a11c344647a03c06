"""What is remembered of late, and no longer once there is too much of it."""

from __future__ import annotations

from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")

RECENT_MAX = 10_000


class Recent(dict[K, V]):
    """A dictionary that forgets what was put in first."""

    def put(self, key: K, value: V) -> None:
        self[key] = value
        while len(self) > RECENT_MAX:
            del self[next(iter(self))]
