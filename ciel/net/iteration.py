"""The event-loop iteration of the daemons' reactor `Loop`.

It is a separate module so that mypyc can compile it: mypyc cannot compile `Loop`, which inherits
from a class of Twisted.
"""

from __future__ import annotations

import math
import os
import time
from select import EPOLLIN
from typing import Any, Final

from twisted.logger import Logger

SHORT_WAITS_MIN: Final = 3
"""How many short waits in a row enable polling. If no descriptor becomes ready, polling wastes CPU
time for `poll_for_s`."""

_WAIT_MAX_S: Final = float(2**31 // 1000)  # epoll's timeout is a 32-bit number of milliseconds
_log = Logger(__name__)  # explicit, since Twisted cannot find the name of a compiled module


def is_due(loop: Any) -> bool:
    """Return whether Twisted has work before the next wait.

    This work is due timers, calls from threads, or the shutdown.
    """
    if loop.threadCallQueue or loop._newTimedCalls or loop._justStopped:
        return True
    timed = loop._pendingTimedCalls
    return bool(timed) and timed[0].time <= loop.seconds()


def wait_s(loop: Any) -> float | None:
    """Return how long the loop may wait for a ready descriptor; None means without limit."""
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
    """Run the calls of `soon`, wait, serve ready descriptors, and run the new calls of `soon`."""
    if loop.calls:
        _call_soon(loop)
        timeout_s = 0
    selectables: dict[int, Any] = loop._selectables
    if loop.gauge is not None:
        loop.gauge.record(time.monotonic() - loop.woke_s)
    loop.woke_s = math.inf  # infinite while the loop waits
    try:
        ready = _wait(loop, -1.0 if timeout_s is None else timeout_s, len(selectables))
    except InterruptedError:
        return
    finally:
        loop.woke_s = time.monotonic()
    # Serving a descriptor may close another one and open a file that gets its number: an event of
    # the closed one is not for that file.
    served = [(selectables.get(descriptor), descriptor, event) for descriptor, event in ready]
    for selectable, descriptor, event in served:
        if selectable is not None and selectables.get(descriptor) is selectable:
            try:
                _serve(loop, selectable, descriptor, event)
            except Exception:
                _log.failure("a descriptor could not be served")
    if loop.calls:
        _call_soon(loop)


def _wait(loop: Any, timeout_s: float, count: int) -> Any:
    """Return the ready descriptors. A negative `timeout_s` means no limit.

    After several waits shorter than `poll_for_s`, poll for that long before sleeping, because
    waking a sleeping process takes longer than such a wait. Polling yields the CPU to other
    processes.
    """
    poll, poll_for_s = loop._poller.poll, loop.poll_for_s
    # Polling could delay a timer that is due soon.
    if not poll_for_s or 0 <= timeout_s < poll_for_s:
        return poll(timeout_s, count)
    started_s = time.monotonic()
    if loop.short_waits < SHORT_WAITS_MIN:
        ready = poll(timeout_s, count)
        is_short = time.monotonic() - started_s < poll_for_s
        loop.short_waits = loop.short_waits + 1 if is_short else 0
        return ready
    while time.monotonic() - started_s < poll_for_s:
        if ready := poll(0, count):
            return ready
        os.sched_yield()
    loop.short_waits = 0
    return poll(timeout_s if timeout_s < 0 else timeout_s - poll_for_s, count)


def _serve(loop: Any, selectable: Any, descriptor: int, event: int) -> None:
    if event != EPOLLIN:
        loop._doReadOrWrite(selectable, descriptor, event)
        return
    reason: Any
    try:
        reason = selectable.doRead()
    except BaseException as error:
        _log.failure("a descriptor could not be read")
        reason = error
    if reason:
        loop._disconnectSelectable(selectable, reason, True)


def _call_soon(loop: Any) -> None:
    calls, loop.calls = loop.calls, []
    for call in calls:
        try:
            call()
        except Exception:
            _log.failure("a call at the end of an event-loop iteration failed")
