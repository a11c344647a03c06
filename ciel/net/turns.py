"""The reactor's turns: what is done once at the end of each, and how long they last.

A turn is what happens between two looks at the sockets. Everything that became ready in one leaves
together at its end (one frame per peer, one group of journal records), which is what makes the
control plane fast: the price of a wake-up is paid per batch, not per message.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final, Protocol

from twisted.logger import Logger, LogLevel

_log = Logger(__name__)  # compiled, it cannot be found out


class DelayedCall(Protocol):
    """What `callLater` returns, as far as we use it."""

    def cancel(self) -> None: ...
    def active(self) -> Any: ...


class Clock(Protocol):
    """A reactor's clock, or `twisted.internet.task.Clock`."""

    def seconds(self) -> float: ...
    def callLater(self, delay_s: float, call: Callable[..., object], /) -> DelayedCall: ...


def use_monotonic_clock(reactor: Any) -> None:
    """Have a reactor's delays follow the monotonic clock instead of the wall clock, its default.

    Call it before anything is scheduled: a clock that is set back would otherwise hold every
    time-out, and one that is set forward fire them all.
    """
    reactor.seconds = time.monotonic


DECIDE: Final = 0
START: Final = 1
TELL: Final = 2
"""What ends a turn, in this order: decisions, then what programs of this host get to do, then what
peers are told. Whoever is told wakes up, and may take the core of who tells for some milliseconds;
so what could compute meanwhile has to have begun.
"""


class Turns:
    """Runs calls at the end of the current turn, each once however often it was asked for.

    What is asked for while they run still runs in the same turn (a decision made last may queue
    messages), unless it has run in it already; then it waits for the next. A call that raises is
    logged and keeps none of the others from running.
    """

    def __init__(self, reactor: Clock) -> None:
        self._reactor = reactor
        self._soon: Callable[[Callable[[], object]], None] | None = getattr(reactor, "soon", None)
        self._due: list[dict[Callable[[], object], None]] = [{}, {}, {}]  # by their place
        self._timer: DelayedCall | None = None
        self._has_asked = False  # the reactor, by `soon`, to end the turn

    def at_end(self, call: Callable[[], object], place: int = DECIDE) -> None:
        """Have something called, always in the same place."""
        self._due[place][call] = None
        self._ask()

    def _ask(self) -> None:
        """Have the turn end, if that is not to be."""
        if self._soon is None:
            if self._timer is None:
                self._timer = self._reactor.callLater(0, self._end)
        elif not self._has_asked:
            self._has_asked = True
            self._soon(self._end)

    def flush(self) -> None:
        """End the turn now; tests and orderly shutdown need not wait for the reactor."""
        if self._has_asked:
            self._end()
        elif self._timer is not None and self._timer.active():
            self._timer.cancel()
            self._end()

    def _end(self) -> None:
        ran: set[Callable[[], object]] = set()
        place = DECIDE
        while place <= TELL:
            due = self._due[place]
            waiting = [call for call in due if call not in ran] if due else None
            if not waiting:
                place += 1
                continue
            for call in waiting:
                due.pop(call, None)
                ran.add(call)
                try:
                    call()
                except Exception:
                    _log.failure("a call at the end of the turn failed")
            place = DECIDE
        self._timer = None
        self._has_asked = False
        if any(self._due):
            self._ask()


GAUGE_INTERVAL_S: Final = 0.025
"""How much of a pause may go unseen. Forty looks a second cost about a millisecond of CPU."""


PAUSE_MAX_S: Final = 0.05
"""What is longer is a defect, and logged as a warning (architecture, control plane)."""
PAUSE_NOTED_S: Final = 0.01
"""The longest so far is logged if it is longer than that."""


class PauseGauge:
    """Records the longest time for which the reactor served nobody, at most one interval too low.

    Who asked to be called in a moment and is called late was kept waiting by somebody for so long.
    """

    def __init__(self, reactor: Clock, interval_s: float = GAUGE_INTERVAL_S) -> None:
        self._reactor = reactor
        self._interval_s = interval_s
        self._due_s = 0.0
        self._timer: DelayedCall | None = None
        self.longest_s = 0.0

    def start(self) -> None:
        self._due_s = self._reactor.seconds() + self._interval_s
        self._timer = self._reactor.callLater(self._interval_s, self._look)

    def stop(self) -> None:
        if self._timer is not None and self._timer.active():
            self._timer.cancel()

    def _look(self) -> None:
        pause_s = self._reactor.seconds() - self._due_s
        if pause_s > self.longest_s:
            self.longest_s = pause_s
            if pause_s > PAUSE_NOTED_S:
                level = LogLevel.warn if pause_s > PAUSE_MAX_S else LogLevel.info
                _log.emit(level, "nobody was served for {pause:.3f} s", pause=pause_s)
        self.start()
