"""Who waits for something to happen in the master without a session of its own: HTTP's clients."""

from __future__ import annotations

from twisted.internet.defer import Deferred

from ciel.net.turns import Clock

WAIT_MAX_S = 1e6
"""Eleven days; a clock of floats cannot add just anything."""


class Waiters:
    """Any number for anything, by its name. Who hangs up is forgotten by cancelling."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: dict[str, dict[Deferred[bool], None]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def wait(self, name: str, timeout_s: float | None = None) -> Deferred[bool]:
        """Return what fires with True once something happened, with False if it takes longer."""
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
        """It has happened."""
        for done in list(self._waiting.get(name, ())):
            done.callback(True)
