"""Which calls travel together: pure.

A task costs client, master and worker some 0.1 ms. Where many calls wait, several become one task,
if they can: of usual options, with nothing outside to wait for (or all for the same). Wrong guesses
cost little: a program that has worked on a bundle for 10 ms gives away what it has not begun (ADR
31).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any, Final, Protocol

SLOW_S: Final = 0.005
"""Calls that take longer are not worth bundling."""
BUNDLE_S: Final = 0.05
"""What a bundle is to take, where that is known."""
BUNDLE_CALLS_MAX: Final = 4096
BUNDLE_BYTES_MAX: Final = 1 << 20
BACKLOG_PER_SLOT: Final = 8
"""Calls of which nothing is known are bundled when so many wait for each slot."""
BUNDLES_PER_SLOT: Final = 2


class Waiting(Protocol):
    """A call that has not been sent, as far as it matters here."""

    size_bytes: int
    is_usual: bool  # it may be bundled
    call_s: float | None  # what the last calls of the function took, if any has ended
    local: Sequence[Any]  # those calls that wait, too, and whose results it takes
    outside: Hashable  # what else must be there before it can run; false if nothing


def form(waiting: Sequence[Any], slots: int) -> list[list[Any]]:
    """Return bundles of calls, in an order in which each comes after those that it takes results
    of.
    """
    free = sum(1 for call in waiting if call.is_usual and not call.local)
    bundles: list[list[Any]] = []
    home: dict[int, list[Any]] = {}
    open_ones: dict[Hashable, list[list[Any]]] = {}
    for call in waiting:
        bundle = _joined(call, home)
        if bundle is None:
            limit = _limit(call, free, slots)
            bundle = _open_one(call, open_ones, limit) if limit > 1 else []
            if not bundle:
                bundles.append(bundle)
        bundle.append(call)
        home[id(call)] = bundle
    return bundles


def _limit(call: Any, free: int, slots: int) -> int:
    """Return how many calls a bundle is to have that begins with this one."""
    if not call.is_usual or call.local:
        return 1
    if call.call_s is None:
        if free <= BACKLOG_PER_SLOT * slots:
            return 1
    elif call.call_s >= SLOW_S:
        return 1
    share = math.ceil(free / (BUNDLES_PER_SLOT * slots))
    if call.call_s:
        share = min(share, max(1, int(BUNDLE_S / call.call_s)))
    return min(share, BUNDLE_CALLS_MAX)


def _open_one(call: Any, open_ones: dict[Hashable, list[list[Any]]], limit: int) -> list[Any]:
    """Return the bundle of its kind that still has room, or a new one."""
    found = open_ones.setdefault(call.outside, [])
    if found:
        bundle = found[-1]
        if (
            len(bundle) < limit
            and sum(c.size_bytes for c in bundle[-1:]) * len(bundle) < BUNDLE_BYTES_MAX
        ):
            return bundle
    found.append([])
    return found[-1]


def _joined(call: Any, home: dict[int, list[Any]]) -> list[Any] | None:
    """Return the bundle that makes all that a call takes, if it can join that: it then runs behind
    them, without a task of its own.
    """
    if not call.is_usual or not call.local:
        return None
    bundle = home.get(id(call.local[-1]))
    if bundle is None or len(bundle) >= BUNDLE_CALLS_MAX or call.outside or not bundle[0].is_usual:
        return None
    if any(home.get(id(other)) is not bundle for other in call.local):
        return None
    if len(bundle) == 1 or bundle[-1] in call.local:
        return bundle  # a chain: nothing could run beside it
    return bundle if call.call_s is not None and call.call_s < SLOW_S else None
