"""A bounded log of recent events on this worker, numbered, for people and tools that watch it."""

from __future__ import annotations

import time
from collections import deque
from typing import Any, Final

from twisted.internet.defer import Deferred

from ciel.net.ticks import DelayedCall

KEPT_MAX = 10_000
WAIT_S: Final = 20.0
"""A request for more events is answered after this time at the latest, within HTTP's idle time."""

FACTS: Final = {
    "joined": ("master",),
    "lost_master": ("reason",),
    "began": ("job", "task", "attempt"),
    "ended": ("task", "attempt", "how", "run_s"),
    "fetched": ("object", "size_bytes"),
    "fetch_failed": ("object", "reason"),
    "brought": ("object",),
}
"""The fields of each kind of event. There are two events for each task, so they are stored as
tuples until a request reads them.
"""

ANSWERED_AT_ONCE: Final = 100
"""Requests answered in one tick. Thousands may wait, and to answer all of them takes too long."""


class Events:
    """The latest events. `count`: how many there have been, and so the number of the next one."""

    def __init__(self, reactor: Any) -> None:
        self.count = 0
        self._reactor = reactor
        self._kept: deque[tuple[Any, ...]] = deque(maxlen=KEPT_MAX)
        self._due: DelayedCall | None = None
        self._waiting: list[Deferred[None]] = []

    def note(self, what: str, *facts: Any) -> None:
        """Add an event: its kind, and its fields (`FACTS`)."""
        self._kept.append((time.time(), what, *facts))
        self.count += 1
        if self._waiting and self._due is None:
            self._due = self._reactor.callLater(0, self._answer)

    def _answer(self) -> None:
        """Answer the waiting requests, some of them in each tick."""
        self._due = None
        answered, self._waiting = self._waiting[:ANSWERED_AT_ONCE], self._waiting[ANSWERED_AT_ONCE:]
        for one in answered:
            one.callback(None)
        if self._waiting:
            self._due = self._reactor.callLater(0, self._answer)

    def between(self, first: int, last: int) -> list[dict[str, Any]]:
        """Return the events of these numbers, both included, as far as they are in the log."""
        oldest = self.count - len(self._kept)
        begin, end = max(first, oldest), min(last + 1, self.count)
        found = []
        for number in range(begin, end):
            at_s, what, *facts = self._kept[number - oldest]
            row = {"number": number, "time": round(at_s, 3), "event": what}
            found.append(row | dict(zip(FACTS[what], facts, strict=True)))
        return found

    def more_than(self, count: int) -> Deferred[None]:
        """Fire once there have been more than `count` events, or after 20 s; may be cancelled."""
        waiting: Deferred[None] = Deferred(self._waiting_no_more)
        if self.count > count:
            waiting.callback(None)
            return waiting
        self._waiting.append(waiting)
        return waiting.addTimeout(WAIT_S, self._reactor, lambda failure, after_s: None)

    def _waiting_no_more(self, cancelled: Deferred[None]) -> None:
        self._waiting.remove(cancelled)
