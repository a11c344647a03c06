"""What the daemons' reactor does in each round. Apart from it, to be compiled: what is compiled
cannot inherit from a class that the compiler may not see.
"""

from __future__ import annotations

from select import EPOLLIN
from typing import Any, Final

from twisted.logger import Logger

_WAIT_MAX_S: Final = float(2**31 // 1000)  # what epoll has room for, in milliseconds
_log = Logger(__name__)  # compiled, it cannot be found out


def is_due(loop: Any) -> bool:
    """Say whether Twisted has anything to do before the next wait: timers, calls, the end."""
    if loop.threadCallQueue or loop._newTimedCalls or loop._justStopped:
        return True
    timed = loop._pendingTimedCalls
    return bool(timed) and timed[0].time <= loop.seconds()


def wait_s(loop: Any) -> float | None:
    """Return how long may be waited for something to become ready; None: for ever."""
    if loop.calls:
        return 0.0
    if loop._newTimedCalls:
        loop._insertNewDelayedCalls()
    timed = loop._pendingTimedCalls
    if not timed:
        return None
    delay_s: float = timed[0].time - loop.seconds()
    return max(0.0, min(delay_s, _WAIT_MAX_S))


def iterate(loop: Any, timeout_s: float | None) -> None:
    """Wait, serve all that is ready, then make the calls that are to follow it."""
    if loop.calls:
        _call_soon(loop)
        timeout_s = 0
    selectables: dict[int, Any] = loop._selectables
    try:
        ready = loop._poller.poll(-1 if timeout_s is None else timeout_s, len(selectables))
    except InterruptedError:
        return
    for descriptor, event in ready:
        selectable = selectables.get(descriptor)  # one before it may have closed it
        if selectable is not None:
            try:
                _serve(loop, selectable, descriptor, event)
            except Exception:
                _log.failure("a descriptor could not be served")
    if loop.calls:
        _call_soon(loop)


def _serve(loop: Any, selectable: Any, descriptor: int, event: int) -> None:
    if event != EPOLLIN:
        loop._doReadOrWrite(selectable, descriptor, event)
        return
    why: Any
    try:
        why = selectable.doRead()
    except BaseException as error:
        _log.failure("a descriptor could not be read")
        why = error
    if why:
        loop._disconnectSelectable(selectable, why, True)


def _call_soon(loop: Any) -> None:
    calls, loop.calls = loop.calls, []
    for call in calls:
        try:
            call()
        except Exception:
            _log.failure("what was due could not be done")
