"""The reactor of our daemons: Twisted's, with less to do for every event.

Twisted names each descriptor that it serves in the context of its logs of old, and keeps what is to
be done at once in one heap with its timers. Together that costs more than many an event is worth.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from twisted.internet.epollreactor import EPollReactor
from twisted.internet.main import installReactor
from twisted.logger import Logger

_log = Logger(__name__)  # compiled, it cannot be found out


class Loop(EPollReactor):
    """`soon` is its own; all else is as Twisted has it."""

    def __init__(self) -> None:
        self._soon: list[Callable[[], object]] = []
        super().__init__()

    def soon(self, call: Callable[[], object]) -> None:
        """Have something called once all is served that is ready now, before the next wait."""
        self._soon.append(call)

    def timeout(self) -> float | None:
        delay_s: float | None = super().timeout()
        return 0 if self._soon else delay_s

    def doIteration(self, timeout: float | None) -> None:
        if self._soon:
            self._call_soon()
            timeout = 0
        selectables: dict[int, Any] = self._selectables
        try:
            ready = self._poller.poll(-1 if timeout is None else timeout, len(selectables))
        except InterruptedError:
            return
        serve = self._doReadOrWrite
        for descriptor, event in ready:
            selectable = selectables.get(descriptor)  # one before it may have closed it
            if selectable is not None:
                try:
                    serve(selectable, descriptor, event)
                except Exception:
                    _log.failure("a descriptor could not be served")
        if self._soon:
            self._call_soon()

    def _call_soon(self) -> None:
        calls, self._soon = self._soon, []
        for call in calls:
            try:
                call()
            except Exception:
                _log.failure("what was due could not be done")


def install() -> None:
    """Make it the reactor of this process, unless there is one."""
    if "twisted.internet.reactor" not in sys.modules:
        installReactor(Loop())
