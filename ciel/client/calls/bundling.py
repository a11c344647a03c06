"""Decides which calls are sent together, and which calls the client holds back.

A task costs client, master and worker together some 0.1 ms of CPU time. So the client sends several
pending calls of fast functions as one task, a bundle (ADR 31). Before the first result of a
function the client sends only a few of its calls, each as its own task, and holds the rest back.
If these first calls are slow, it sends each call as its own task: otherwise the calls of another
client would wait behind a bundle of slow calls (ADR 62). This module has no clock and does no I/O.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any, Final, Protocol

from ciel.python.calls import LOTS_MAX

SLOW_S: Final = 0.005
"""Calls that take this long are bundled only in a chain."""
BUNDLE_S: Final = 0.05
"""The longest expected run time of a bundle, except of a chain."""
PART_S: Final = 0.12
"""The longest expected run time of a task of a map, if the time of a row is known.

With a longer time, calls of other clients would wait longer for the end of a task. With a shorter
one, the 1 ms that a process needs between two tasks would be a larger share of its time.
"""
BUNDLE_CALLS_MAX: Final = 4096
BUNDLE_BYTES_MAX: Final = 1 << 20
TRIALS_PER_SLOT: Final = 8
"""How many calls of a function may run for each slot before the first call has ended."""
BUNDLES_PER_SLOT: Final = 2
SHORT_BUNDLE_S: Final = 0.01
"""A bundle with a shorter expected run time has at most SHORT_BUNDLE_LOTS_MAX lots."""
SHORT_BUNDLE_LOTS_MAX: Final = 4
PARTS_PER_SLOT: Final = 16
"""The number of tasks of a map for each slot, unless PART_S or PART_ROWS_MAX requires more."""
PART_ROWS_MAX: Final = 4096


class CallStatistics(Protocol):
    """The statistics of the calls of one function."""

    took_s: float | None  # the average time of the last calls; None before the first result
    trial_count: int  # how many calls run while `took_s` is None


class Pending(Protocol):
    """The attributes of a pending call that this module uses."""

    function: CallStatistics
    size_bytes: int
    may_be_bundled: bool
    may_wait: bool  # its arguments are packed and small, so the client can hold it back
    is_held: bool
    is_divisible: bool  # a map: one of its calls is enough as a trial
    call_s: float | None  # `took_s` of the function when the call is about to be sent
    producers: Sequence[Any]  # pending calls whose results it takes
    outside: Hashable  # other objects that it needs and that do not exist yet; false if none


def hold_back(waiting: Sequence[Any], slots: int) -> tuple[list[Any], list[Any]]:
    """Return the calls to send now, and the calls to hold back; counts the trials."""
    sent: list[Any] = []
    held: list[Any] = []
    for call in waiting:
        function = call.function
        call.is_held = any(other.is_held for other in call.producers)
        if call.call_s is None and not call.producers:
            most = 1 if call.is_divisible else TRIALS_PER_SLOT * slots
            if call.may_wait and function.trial_count >= most:
                call.is_held = True
            else:
                function.trial_count += 1
        (held if call.is_held else sent).append(call)
    return sent, held


def part_rows(rows: int, slots: int, row_s: float | None) -> int:
    """Return for how many rows one task of a map calls the function.

    `row_s`: the time of such a call, if it is known.
    """
    size = math.ceil(rows / (PARTS_PER_SLOT * max(1, slots)))
    if row_s:
        size = min(size, int(PART_S / row_s))
    return max(1, min(PART_ROWS_MAX, size))


def form(waiting: Sequence[Any], slots: int) -> list[list[Any]]:
    """Divide calls into bundles. Each bundle follows the bundles whose results it takes."""
    independent_count = sum(1 for call in waiting if call.may_be_bundled and not call.producers)
    bundles: list[list[Any]] = []
    home: dict[int, list[Any]] = {}
    open_ones: dict[Hashable, list[list[Any]]] = {}
    for call in waiting:
        bundle = _joined(call, home)
        if bundle is None:
            limit = _limit(call, independent_count, slots)
            bundle = _open_one(call, open_ones, limit) if limit > 1 else []
            if not bundle:
                bundles.append(bundle)
        bundle.append(call)
        home[id(call)] = bundle
    return bundles


def _limit(call: Any, independent_count: int, slots: int) -> int:
    """Return the maximum number of calls in a bundle that starts with `call`.

    `independent_count`: how many pending calls may be bundled and take no result of another one.
    """
    if not call.may_be_bundled or call.producers or call.call_s is None or call.call_s >= SLOW_S:
        return 1
    share = math.ceil(independent_count / (BUNDLES_PER_SLOT * slots))
    if call.call_s:
        share = min(share, max(1, int(BUNDLE_S / call.call_s)))
    return min(share, BUNDLE_CALLS_MAX)


def _open_one(call: Any, open_ones: dict[Hashable, list[list[Any]]], limit: int) -> list[Any]:
    """Return a bundle that is not full and whose calls need the same objects; or a new bundle."""
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
    """Return the bundle that produces all results which a call takes, if the call may join it.

    The call then runs after the calls that it needs, in the same task.
    """
    if not call.may_be_bundled or not call.producers:
        return None
    bundle = home.get(id(call.producers[-1]))
    if (
        bundle is None
        or len(bundle) >= BUNDLE_CALLS_MAX
        or call.outside
        or not bundle[0].may_be_bundled
    ):
        return None
    if any(home.get(id(other)) is not bundle for other in call.producers):
        return None
    if len(bundle) == 1 or bundle[-1] in call.producers:
        return bundle  # a chain, in which nothing could run in parallel
    return bundle if call.call_s is not None and call.call_s < SLOW_S else None


def lots_of(bundle: list[Any]) -> list[list[Any]]:
    """Divide a bundle into lots, in its order.

    The client reads each lot as one object, so a short bundle has few lots. A longer one has more,
    since all results of a lot arrive at once.
    """
    known_s = [call.call_s for call in bundle if call.call_s is not None]
    is_short = len(known_s) == len(bundle) and sum(known_s) < SHORT_BUNDLE_S
    count = min(SHORT_BUNDLE_LOTS_MAX if is_short else LOTS_MAX, len(bundle))
    size = -(-len(bundle) // count)
    return [bundle[start : start + size] for start in range(0, len(bundle), size)]
