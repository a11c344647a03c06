"""Runs calls at the end of each event-loop iteration (tick), and measures how long ticks last.

A tick is the time between two polls of the sockets. All messages of a tick are sent together at its
end: one frame per peer, and one group of journal records. This makes the control plane fast, since
wake-ups are paid per batch instead of per message.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final, Protocol

from twisted.logger import Logger, LogLevel

_log = Logger(__name__)  # explicit, since Twisted cannot find the name of a compiled module


class DelayedCall(Protocol):
    """The part of `callLater`'s result that this project uses."""

    def cancel(self) -> None: ...
    def reset(self, delay_s: float, /) -> object: ...
    def active(self) -> Any: ...


class Clock(Protocol):
    """A reactor's clock, or `twisted.internet.task.Clock`."""

    def seconds(self) -> float: ...
    def callLater(self, delay_s: float, call: Callable[..., object], /) -> DelayedCall: ...


def use_monotonic_clock(reactor: Any) -> None:
    """Make a reactor's timers use the monotonic clock instead of the wall clock, its default.

    Otherwise setting the wall clock back would delay every timeout, and setting it forward would
    fire them all. Call this before any timer is started.
    """
    reactor.seconds = time.monotonic


DECIDE: Final = 0
START: Final = 1
SEND: Final = 2
"""The phases at the end of a tick, in this order: decisions, then starting programs on this host,
then sending messages to peers. A message wakes its receiver, which may take this process's CPU for
some milliseconds. So programs that could compute meanwhile must be started before.
"""


class Ticks:
    """Runs calls at the end of the current tick, each call once however often it was requested.

    A call requested while they run still runs in the same tick, since a late decision may queue
    messages. But if it has already run in this tick, it runs in the next one. If a call raises, the
    error is logged and the other calls still run.
    """

    def __init__(self, reactor: Clock) -> None:
        self._reactor = reactor
        self._soon: Callable[[Callable[[], object]], None] | None = getattr(reactor, "soon", None)
        self._due: list[dict[Callable[[], object], None]] = [{}, {}, {}]  # by phase
        self._timer: DelayedCall | None = None
        self._is_scheduled = False  # whether `soon` was called for the end of this tick

    def at_end(self, call: Callable[[], object], phase: int = DECIDE) -> None:
        """Run a call in a phase of the tick's end; a call must always have the same phase."""
        self._due[phase][call] = None
        self._schedule_end()

    def _schedule_end(self) -> None:
        """Schedule the end of the tick, unless it is scheduled already."""
        if self._soon is None:
            if self._timer is None:
                self._timer = self._reactor.callLater(0, self._end)
        elif not self._is_scheduled:
            self._is_scheduled = True
            self._soon(self._end)

    def flush(self) -> None:
        """End the tick now; for tests and orderly shutdown, which do not wait for the reactor."""
        if self._is_scheduled:
            self._end()
        elif self._timer is not None and self._timer.active():
            self._timer.cancel()
            self._end()

    def _end(self) -> None:
        ran: set[Callable[[], object]] = set()
        phase = DECIDE
        while phase <= SEND:
            due = self._due[phase]
            waiting = [call for call in due if call not in ran] if due else None
            if not waiting:
                phase += 1
                continue
            for call in waiting:
                due.pop(call, None)
                ran.add(call)
                try:
                    call()
                except Exception:
                    _log.failure("a call at the end of an event-loop iteration failed")
            phase = DECIDE
        self._timer = None
        self._is_scheduled = False
        if any(self._due):
            self._schedule_end()


PAUSE_MAX_S: Final = 0.05
"""Longer pauses are defects, and logged as warnings (architecture, control plane)."""
PAUSE_NOTED_S: Final = 0.01
"""A new longest pause is logged if it is longer than this."""


class PauseGauge:
    """Records the longest time for which an event loop worked without waiting for descriptors.

    The event loop calls `record` after each iteration, so an idle process needs no timer.
    """

    def __init__(self) -> None:
        self.longest_s = 0.0

    def record(self, pause_s: float) -> None:
        """Note that an iteration took this long."""
        if pause_s > self.longest_s:
            self.longest_s = pause_s
            if pause_s > PAUSE_NOTED_S:
                level = LogLevel.warn if pause_s > PAUSE_MAX_S else LogLevel.info
                _log.emit(level, "the event loop was blocked for {pause:.3f} s", pause=pause_s)
