"""What the daemons' reactor does in each round. Apart from it, to be compiled: what is compiled
cannot inherit from a class that the compiler may not see.
"""

from __future__ import annotations

import os
import time
from select import EPOLLIN
from typing import Any, Final

from twisted.logger import Logger

SHORT_WAITS_MIN: Final = 3
"""So many must follow each other before there is looking: one that was in vain costs as much."""

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
        ready = _wait(loop, -1.0 if timeout_s is None else timeout_s, len(selectables))
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


def _wait(loop: Any, timeout_s: float, count: int) -> Any:
    """Return what is ready. Where short waits follow each other, look for the next event for as
    long before sleeping: to be woken takes longer than most of them last. Others on this core have
    their turn meanwhile. Below 0, `timeout_s` is for ever.
    """
    poll, look_s = loop._poller.poll, loop.look_s
    if not look_s or 0 <= timeout_s < look_s:  # a timer that is so near is not to be late
        return poll(timeout_s, count)
    begun_s = time.monotonic()
    if loop.short_waits < SHORT_WAITS_MIN:
        ready = poll(timeout_s, count)
        is_short = time.monotonic() - begun_s < look_s
        loop.short_waits = loop.short_waits + 1 if is_short else 0
        return ready
    while time.monotonic() - begun_s < look_s:
        if ready := poll(0, count):
            return ready
        os.sched_yield()
    loop.short_waits = 0
    return poll(timeout_s if timeout_s < 0 else timeout_s - look_s, count)


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
