"""What is remembered of late, and no longer once there is too much of it."""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")

RECENT_MAX = 10_000


class Recent(OrderedDict[K, V]):
    """A dictionary that forgets what was put in first.

    A plain one would look ever longer for what that is.
    """

    def put(self, key: K, value: V) -> None:
        self[key] = value
        while len(self) > RECENT_MAX:
            self.popitem(last=False)
