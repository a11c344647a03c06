"""The reactor of our daemons: Twisted's, with less to do for every event.

Twisted names each descriptor that it serves in the context of its logs of old, and keeps what is to
be done at once in one heap with its timers. Together that costs more than many an event is worth.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from twisted.internet.epollreactor import EPollReactor
from twisted.internet.main import installReactor

from ciel.net.rounds import is_due, iterate, wait_s


class Loop(EPollReactor):
    """`soon` and `look_s` are its own; all else is as Twisted has it.

    `look_s`: how long to look before sleeping, where waits are as short as that (`rounds`); 0, if
    nobody says otherwise.
    """

    def __init__(self) -> None:
        self.calls: list[Callable[[], object]] = []
        self.look_s = 0.0
        self.short_waits = 0
        super().__init__()

    def soon(self, call: Callable[[], object]) -> None:
        """Have something called once all is served that is ready now, before the next wait."""
        self.calls.append(call)

    def runUntilCurrent(self) -> None:
        if is_due(self):
            super().runUntilCurrent()

    def timeout(self) -> float | None:
        return wait_s(self)

    def doIteration(self, timeout: float | None) -> None:
        iterate(self, timeout)


def install() -> None:
    """Make it the reactor of this process, unless there is one."""
    if "twisted.internet.reactor" not in sys.modules:
        installReactor(Loop())
