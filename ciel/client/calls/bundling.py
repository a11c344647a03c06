"""Decides which calls are sent together, and which calls the client holds back. Pure.

Sending a task takes client, master and worker some 0.1 ms. So the client sends several pending
calls of quick functions as one task, a bundle (ADR 31). Before the first result of a function the
client sends only a few of its calls, each as its own task, and holds the others back. If these
first calls are slow, it sends each call as its own task: otherwise the calls of another client
would wait behind a bundle of slow calls (ADR 62).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any, Final, Protocol

from ciel.python.calls import BATCHES_MAX

SLOW_S: Final = 0.005
"""Calls that take longer are not bundled."""
BUNDLE_S: Final = 0.05
"""The intended run time of a bundle, if the time of its calls is known."""
PART_S: Final = 0.12
"""The intended run time of a task of a map. A longer time would delay calls of other clients, which
may have to wait until the task ends; a process needs about 1 ms between two tasks."""
BUNDLE_CALLS_MAX: Final = 4096
BUNDLE_BYTES_MAX: Final = 1 << 20
TRIALS_PER_SLOT: Final = 8
"""How many calls of a function may run for each slot before the first call has ended."""
BUNDLES_PER_SLOT: Final = 2
QUICK_S: Final = 0.01
QUICK_LOTS: Final = 4
PARTS_PER_SLOT: Final = 16
"""The number of tasks of a map for each slot, if its function is quick or was not called before."""
PART_ROWS_MAX: Final = 4096


class Function(Protocol):
    """The statistics of the calls of one function."""

    took_s: float | None  # the average time of the last calls; None before the first result
    trial_count: int  # how many calls run while `took_s` is None


class Pending(Protocol):
    """The attributes of a pending call that this module uses."""

    function: Function
    size_bytes: int
    is_usual: bool  # it may be bundled
    may_wait: bool  # its arguments are packed and small, so the client can hold it back
    is_held: bool
    is_divisible: bool  # a map: one of its calls is enough as a trial
    call_s: float | None  # `took_s` of the function when the call is about to be sent
    local: Sequence[Any]  # pending calls whose results it takes
    outside: Hashable  # other objects that it needs and that do not exist yet; false if none


def hold_back(waiting: Sequence[Any], slots: int) -> tuple[list[Any], list[Any]]:
    """Return the calls to send now, and the calls to hold back; counts the trials."""
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
    """Return how many rows of a map one task calls. `row_s`: the time of a row, if it is known."""
    size = math.ceil(rows / (PARTS_PER_SLOT * max(1, slots)))
    if row_s:
        size = min(size, int(PART_S / row_s))
    return max(1, min(PART_ROWS_MAX, size))


def form(waiting: Sequence[Any], slots: int) -> list[list[Any]]:
    """Divide calls into bundles. Each bundle follows the bundles whose results it takes."""
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
    """Return the maximum number of calls in a bundle that starts with `call`."""
    if not call.is_usual or call.local or call.call_s is None or call.call_s >= SLOW_S:
        return 1
    share = math.ceil(free / (BUNDLES_PER_SLOT * slots))
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
    if not call.is_usual or not call.local:
        return None
    bundle = home.get(id(call.local[-1]))
    if bundle is None or len(bundle) >= BUNDLE_CALLS_MAX or call.outside or not bundle[0].is_usual:
        return None
    if any(home.get(id(other)) is not bundle for other in call.local):
        return None
    if len(bundle) == 1 or bundle[-1] in call.local:
        return bundle  # a chain, in which nothing could run in parallel
    return bundle if call.call_s is not None and call.call_s < SLOW_S else None


def lots_of(bundle: list[Any]) -> list[list[Any]]:
    """Divide a bundle into lots, in its order.

    The client reads each lot as one object, so a quick bundle has few lots. A slow bundle has more,
    since all results of a lot arrive at once.
    """
    known_s = [call.call_s for call in bundle if call.call_s is not None]
    is_quick = len(known_s) == len(bundle) and sum(known_s) < QUICK_S
    count = min(QUICK_LOTS if is_quick else BATCHES_MAX, len(bundle))
    size = -(-len(bundle) // count)
    return [bundle[start : start + size] for start in range(0, len(bundle), size)]
