"""Decides when a worker asks its master to drain it, and when it ends without waiting for that."""

from __future__ import annotations

from math import inf

from ciel.core.events import DrainAsked
from ciel.core.workers.lives import Life


class Leaving:
    """The life of a worker, and for how long it has had nothing to do."""

    def __init__(self, life: Life, idle_timeout_s: float | None) -> None:
        self.life = life
        self.has_ended = False
        self._idle_timeout_s = idle_timeout_s
        self._idle_since_s: float | None = None  # None: it has something to do
        self._has_asked = False  # this master, to drain it before the end of its life

    def end_within(self, grace_s: float, now_s: float) -> None:
        """End the life after this time, unless it ends sooner."""
        ends_at_s = min(now_s + grace_s, self.life.ends_at_s)
        self.life = Life(ends_at_s, ends_at_s - now_s)

    def master_reached(self) -> None:
        """Ask again: this master may not know it."""
        self._has_asked = False

    def note(self, now_s: float, *, is_busy: bool) -> None:
        """Note whether the worker has something to do; called after each batch of events."""
        if is_busy:
            self._idle_since_s = None
        elif self._idle_since_s is None:
            self._idle_since_s = now_s

    def request(self, now_s: float) -> DrainAsked | None:
        """Return the request that is due now, if one is."""
        if now_s >= self.life.drains_at_s:
            if self._has_asked:
                return None
            self._has_asked = True
            return DrainAsked(self.life.left_s(now_s))
        if now_s < self._idle_until_s:
            return None
        self._idle_since_s = now_s  # if the master refuses, the worker asks again later
        return DrainAsked(None)

    @property
    def _idle_until_s(self) -> float:
        if self._idle_timeout_s is None or self._idle_since_s is None:
            return inf
        return self._idle_since_s + self._idle_timeout_s

    def due_s(self) -> float:
        """Return when `request` must be called; infinity: never."""
        if self.has_ended:
            return inf
        is_due = not self._has_asked
        at_end_s = self.life.drains_at_s if is_due else self.life.ends_at_s
        return min(at_end_s, self._idle_until_s) if is_due else at_end_s
