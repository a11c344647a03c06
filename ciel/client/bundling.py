"""Decides which calls travel together, and which wait until it is known how long they take.

Sending a task costs client, master and worker some 0.1 ms. So where many calls of quick functions
wait, several become one task (ADR 31). Until the first result of a function has come, only a few of
its calls are sent, each alone: if they turn out to be slow, the others travel alone, too, and no
caller waits behind a bundle of them (ADR 62).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any, Final, Protocol

from ciel.python.calls import BATCHES_MAX

SLOW_S: Final = 0.005
"""Calls that take longer are not worth bundling."""
BUNDLE_S: Final = 0.05
"""What a bundle is to take, where that is known."""
PART_S: Final = 0.12
"""The client makes tasks of a map that take so long. A process needs some 1 ms to end a task and to
begin the next one, and the call of another client waits for one task."""
BUNDLE_CALLS_MAX: Final = 4096
BUNDLE_BYTES_MAX: Final = 1 << 20
TRIALS_PER_SLOT: Final = 8
"""So many calls of a function are under way for each slot before the first has ended."""
BUNDLES_PER_SLOT: Final = 2
QUICK_S: Final = 0.01
QUICK_LOTS: Final = 4
PARTS_PER_SLOT: Final = 16
"""Into so many parts for each slot a map is divided, if its function is quick or not known."""
PART_ROWS_MAX: Final = 4096


class Function(Protocol):
    """What is known of the calls of one function."""

    took_s: float | None  # how long the last ones took, if any has ended
    trial_count: int  # how many are under way of which nothing is known


class Waiting(Protocol):
    """A call that has not been sent, as far as it matters here."""

    function: Function
    size_bytes: int
    is_usual: bool  # it may be bundled
    may_wait: bool  # its arguments are packed and small, so that it can be held back
    is_held: bool
    is_divisible: bool  # it is a map, which one call is enough to try
    call_s: float | None  # what the last calls of the function took, if any has ended
    local: Sequence[Any]  # those calls that wait, too, and whose results it takes
    outside: Hashable  # what else must be there before it can run; false if nothing


def part(waiting: Sequence[Any], slots: int) -> tuple[list[Any], list[Any]]:
    """Return the calls that are to be sent now, and those that are held back; counts the trials."""
    sent: list[Any] = []
    held: list[Any] = []
    for call in waiting:
        function = call.function
        call.is_held = any(other.is_held for other in call.local)
        if call.call_s is None and not call.local:
            most = 1 if call.is_divisible else TRIALS_PER_SLOT * slots
            if call.may_wait and function.trial_count >= most:
                call.is_held = True
            else:
                function.trial_count += 1
        (held if call.is_held else sent).append(call)
    return sent, held


def part_rows(rows: int, slots: int, row_s: float | None) -> int:
    """Return how many rows of a map make one task, if a row takes so long as far as is known."""
    size = math.ceil(rows / (PARTS_PER_SLOT * max(1, slots)))
    if row_s:
        size = min(size, int(PART_S / row_s))
    return max(1, min(PART_ROWS_MAX, size))


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
    if not call.is_usual or call.local or call.call_s is None or call.call_s >= SLOW_S:
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


def lots_of(bundle: list[Any]) -> list[list[Any]]:
    """Part a bundle, in its order. One that should be quick has fewer lots: each is an object to be
    read. But any call may take long after all, and what is behind it in its lot waits.
    """
    known_s = [call.call_s for call in bundle if call.call_s is not None]
    is_quick = len(known_s) == len(bundle) and sum(known_s) < QUICK_S
    count = min(QUICK_LOTS if is_quick else BATCHES_MAX, len(bundle))
    size = -(-len(bundle) // count)
    return [bundle[start : start + size] for start in range(0, len(bundle), size)]
