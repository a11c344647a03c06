"""A bounded dictionary of recent entries."""

from __future__ import annotations

from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

RECENT_MAX = 10_000


class Recent(Generic[K, V]):
    """A dictionary that drops its oldest entries, `RECENT_MAX / 2` at a time.

    So it has between `RECENT_MAX / 2` and `RECENT_MAX` of the latest entries.
    """

    def __init__(self) -> None:
        self._young: dict[K, V] = {}
        self._old: dict[K, V] = {}

    def put(self, key: K, value: V) -> None:
        self._young[key] = value
        if len(self._young) >= RECENT_MAX // 2:
            self._old = self._young
            self._young = {}

    def forget(self, key: K) -> None:
        self._young.pop(key, None)
        self._old.pop(key, None)

    def __contains__(self, key: object) -> bool:
        return key in self._young or key in self._old

    def get(self, key: K) -> V | None:
        return self._young[key] if key in self._young else self._old.get(key)
