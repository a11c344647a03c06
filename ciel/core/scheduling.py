"""How a job's tasks are spread over workers: a policy of the original's, and its options.

`locality` prices every choice (see `placement`); `tworandom` takes the less loaded of two workers
drawn by chance; `random` takes one, by chance, in proportion to its slots. The options are the
original's (`sched_opts`), and change how `locality` prices:

- `min_saving_threshold`: bytes; where a worker holds less than that of what a task reads, that is
  no reason to run there.
- `equally_local_margin`: 0 to 1; workers that hold this share of what the best one holds are as
  good as it, so that the least loaded of them is taken.
- `sweetheart_factor`: how many times its size an object counts for on the worker that is preferred
  for it.
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
    """A policy and those of its options that are not as usual; checked by `read_scheduling`."""

    policy: str = LOCALITY
    options: tuple[tuple[str, float], ...] = ()

    def option(self, name: str, default: float) -> float:
        """Return an option, or what is usual."""
        return next((value for known, value in self.options if known == name), default)


DEFAULT_SCHEDULING = Scheduling()


def read_scheduling(policy: str = LOCALITY, options: Mapping[str, Any] | None = None) -> Scheduling:
    """Check a policy and its options; raises InvalidSchedulingError, which names what is wrong."""
    if policy not in POLICIES:
        known = ", ".join(POLICIES)
        raise InvalidSchedulingError(f"there is no policy {policy!r:.40} (there are: {known})")
    read = []
    for name, value in sorted((options or {}).items()):
        if name not in _OPTIONS_OF[policy]:
            known = ", ".join(_OPTIONS_OF[policy]) or "none"
            text = f"{policy} has no option {name!r:.40} (there are: {known})"
            raise InvalidSchedulingError(text)
        least, most = _LIMITS[name]
        is_number = type(value) is int or (type(value) is float and isfinite(value))
        if not is_number or not least <= value <= most:
            text = f"{name} must be a number, {least:g} to {most:g}, not {value!r:.40}"
            raise InvalidSchedulingError(text)
        read.append((name, float(value)))
    return Scheduling(policy, tuple(read)) if read or policy != LOCALITY else DEFAULT_SCHEDULING
