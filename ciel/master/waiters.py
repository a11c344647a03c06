"""Lets HTTP clients, which have no session, wait for events in the master."""

from __future__ import annotations

from twisted.internet.defer import Deferred

from ciel.net.ticks import Clock

WAIT_MAX_S = 1e6
"""The longest wait, eleven days: a clock of floats cannot handle arbitrary times."""


class Waiters:
    """Any number of waiters for each named event. A waiter leaves by cancelling its Deferred."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: dict[str, dict[Deferred[bool], None]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def wait(self, name: str, timeout_s: float | None = None) -> Deferred[bool]:
        """Return a Deferred: it fires with True when the event happens, with False at timeout."""
        waiting = self._waiting.setdefault(name, {})
        done: Deferred[bool] = Deferred()
        timer = None
        if timeout_s is not None:
            timer = self._clock.callLater(min(timeout_s, WAIT_MAX_S), lambda: done.callback(False))

        def leave(result: object) -> object:
            if timer is not None and timer.active():
                timer.cancel()
            waiting.pop(done, None)
            if not waiting and self._waiting.get(name) is waiting:
                del self._waiting[name]
            return result

        waiting[done] = None
        done.addBoth(leave)
        return done

    def notify(self, name: str) -> None:
        """Fire all waiters of an event that has happened."""
        for done in list(self._waiting.get(name, ())):
            done.callback(True)
