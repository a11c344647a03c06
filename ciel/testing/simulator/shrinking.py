"""Finds the smallest story of a failure: leaves out faults as long as the seed still fails.

Without a fault, the seed draws other random numbers for all that follows. So a smaller story may
show another failure; it must be of the same kind, which the text without names and numbers tells.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Set
from time import perf_counter

from ciel.testing.simulator.simulation import SimulationError

Fails = Callable[[Set[int]], SimulationError | None]
"""Runs a seed without some faults; returns the failure, if it fails."""
SHRINK_MAX_S = 30.0


def shrink(failure: SimulationError, fails: Fails, max_s: float = SHRINK_MAX_S) -> SimulationError:
    """Return a failure of the same kind with as few faults as were found in `max_s`.

    Tries to leave out many faults at once, and then fewer, down to single ones.
    """
    deadline_s, best = perf_counter() + max_s, failure
    size = best.fault_count
    while size >= 1:
        left = [n for n in range(best.fault_count) if n not in best.without]
        was_smaller = False
        for start in range(0, len(left), size):
            if perf_counter() > deadline_s:
                return best
            found = fails(best.without | set(left[start : start + size]))
            if found is not None and _kind(found) == _kind(failure):
                was_smaller = was_smaller or _fault_count(found) < _fault_count(best)
                best = min(best, found, key=_fault_count)
        size = min(size, len(left)) if was_smaller and size == 1 else size // 2
    return best


def _fault_count(failure: SimulationError) -> int:
    """Return how many faults have happened."""
    return failure.fault_count - len([n for n in failure.without if n < failure.fault_count])


def _kind(failure: SimulationError) -> str:
    text = re.sub(r"[0-9a-f]{16,}|[0-9.]+|\\bw[0-9.]+", "", str(failure.error))
    return f"{type(failure.error).__name__} {text[:40]}"
