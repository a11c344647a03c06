"""The scheduling policies of the original CIEL, and their options.

`locality` computes a cost for each worker (see `placement`). `tworandom` chooses the less loaded
of two random workers. `random` chooses a random worker, in proportion to its slots.
The options (`sched_opts` in the original) change the costs of `locality`:

- `min_saving_threshold`: bytes; a worker that holds fewer bytes of a task's inputs gets no
  preference for them.
- `equally_local_margin`: 0 to 1; workers that hold at least this share of the bytes that the best
  worker holds are equally good, and the least loaded of them is chosen.
- `sweetheart_factor`: the size of an object is multiplied by this factor on the worker that is
  preferred for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any, NamedTuple

from ciel.core.errors import InvalidSchedulingError

LOCALITY, TWO_RANDOM, RANDOM = POLICIES = ("locality", "tworandom", "random")
SWEETHEART_FACTOR = 1000.0  # as in the original: a strong preference

_LIMITS: dict[str, tuple[float, float]] = {
    "min_saving_threshold": (0.0, 2.0**63),
    "equally_local_margin": (0.0, 1.0),
    "sweetheart_factor": (0.0, 1e9),
}
_OPTIONS_OF = {LOCALITY: tuple(_LIMITS), TWO_RANDOM: (), RANDOM: ()}


class Scheduling(NamedTuple):
    """A policy and the options that were given; checked by `read_scheduling`."""

    policy: str = LOCALITY
    options: tuple[tuple[str, float], ...] = ()

    def option(self, name: str, default: float) -> float:
        """Return an option, or a default."""
        return next((value for known, value in self.options if known == name), default)


DEFAULT_SCHEDULING = Scheduling()


def read_scheduling(policy: str = LOCALITY, options: Mapping[str, Any] | None = None) -> Scheduling:
    """Return a checked policy with its options; raises InvalidSchedulingError."""
    if policy not in POLICIES:
        known = ", ".join(POLICIES)
        raise InvalidSchedulingError(f"unknown policy {policy!r:.40} (the policies are: {known})")
    read = []
    for name, value in sorted((options or {}).items()):
        if name not in _OPTIONS_OF[policy]:
            known = ", ".join(_OPTIONS_OF[policy]) or "none"
            text = f"{policy} has no option {name!r:.40} (its options are: {known})"
            raise InvalidSchedulingError(text)
        least, most = _LIMITS[name]
        is_number = type(value) is int or (type(value) is float and isfinite(value))
        if not is_number or not least <= value <= most:
            text = f"{name} must be a number, {least:g} to {most:g}, not {value!r:.40}"
            raise InvalidSchedulingError(text)
        read.append((name, float(value)))
    return Scheduling(policy, tuple(read)) if read or policy != LOCALITY else DEFAULT_SCHEDULING
