"""The reactor of the daemons: Twisted's epoll reactor with less overhead for each event.

Twisted sets a legacy logging context for each descriptor that it serves, and keeps calls that are
due at once in the same heap as timers. For many events this costs more than the event itself.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable

from twisted.internet.epollreactor import EPollReactor
from twisted.internet.main import installReactor

from ciel.net.flight_recorder import FlightRecorder
from ciel.net.iteration import is_due, iterate, wait_s
from ciel.net.ticks import PauseGauge


class Loop(EPollReactor):
    """An epoll reactor with two additions: `soon` and `poll_for_s`.

    `poll_for_s`: how long to poll before sleeping, if recent waits were at most that long
    (`iteration`). The default 0 disables polling.
    """

    def __init__(self) -> None:
        self.calls: list[Callable[[], object]] = []
        self.poll_for_s = 0.0
        self.short_waits = 0
        self.gauge: PauseGauge | None = None
        self.woke_s = math.inf  # when the latest wait ended; infinite while it waits
        self.recorder = FlightRecorder()
        super().__init__()

    def measure(self, gauge: PauseGauge) -> None:
        """Report to `gauge` how long each iteration takes, from now on."""
        self.gauge, self.woke_s = gauge, time.monotonic()

    def soon(self, call: Callable[[], object]) -> None:
        """Call `call` after all ready descriptors are served, before the next wait."""
        self.calls.append(call)

    def runUntilCurrent(self) -> None:
        if is_due(self):
            super().runUntilCurrent()

    def timeout(self) -> float | None:
        return wait_s(self)

    def doIteration(self, timeout: float | None) -> None:
        iterate(self, timeout)


def install() -> None:
    """Install `Loop` as the reactor of this process, unless one is installed."""
    if "twisted.internet.reactor" not in sys.modules:
        installReactor(Loop())
