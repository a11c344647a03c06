"""What has happened on this worker of late, for those who look on: numbered, and bounded."""

from __future__ import annotations

import time
from collections import deque
from typing import Any, Final

from twisted.internet.defer import Deferred

from ciel.net.turns import DelayedCall

KEPT_MAX = 10_000
WAIT_S: Final = 20.0
"""Who waits for more hears by then that there is none; within HTTP's idle time."""

FACTS: Final = {
    "joined": ("master",),
    "lost_master": ("reason",),
    "began": ("job", "task", "attempt"),
    "ended": ("task", "attempt", "how", "run_s"),
    "fetched": ("object", "size_bytes"),
    "fetch_failed": ("object", "reason"),
    "brought": ("object",),
}
"""What belongs to each kind. Two are noted for each task: they are bare until somebody asks."""

TOLD_AT_ONCE: Final = 100
"""Thousands may wait; to tell them all takes longer than others should have to wait."""


class Events:
    """The latest events. `count` is how many there have been, so the number of the next."""

    def __init__(self, reactor: Any) -> None:
        self.count = 0
        self._reactor = reactor
        self._kept: deque[tuple[Any, ...]] = deque(maxlen=KEPT_MAX)
        self._due: DelayedCall | None = None
        self._waiting: list[Deferred[None]] = []

    def note(self, what: str, *facts: Any) -> None:
        """Note that something has happened, in a word and what belongs to it (`FACTS`)."""
        self._kept.append((time.time(), what, *facts))
        self.count += 1
        if self._waiting and self._due is None:
            self._due = self._reactor.callLater(0, self._tell)

    def _tell(self) -> None:
        """Tell those who wait, some of them in each turn."""
        self._due = None
        told, self._waiting = self._waiting[:TOLD_AT_ONCE], self._waiting[TOLD_AT_ONCE:]
        for one in told:
            one.callback(None)
        if self._waiting:
            self._due = self._reactor.callLater(0, self._tell)

    def between(self, first: int, last: int) -> list[dict[str, Any]]:
        """Return the events of these numbers, both included, as far as they are still kept."""
        oldest = self.count - len(self._kept)
        begin, end = max(first, oldest), min(last + 1, self.count)
        found = []
        for number in range(begin, end):
            at_s, what, *facts = self._kept[number - oldest]
            told = {"number": number, "time": round(at_s, 3), "event": what}
            found.append(told | dict(zip(FACTS[what], facts, strict=True)))
        return found

    def more_than(self, count: int) -> Deferred[None]:
        """Fire once there have been more than `count`, or after 20 s; cancel it to wait no more."""
        waiting: Deferred[None] = Deferred(self._waiting_no_more)
        if self.count > count:
            waiting.callback(None)
            return waiting
        self._waiting.append(waiting)
        return waiting.addTimeout(WAIT_S, self._reactor, lambda failure, after_s: None)

    def _waiting_no_more(self, cancelled: Deferred[None]) -> None:
        self._waiting.remove(cancelled)
