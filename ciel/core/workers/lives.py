"""The rest of a worker's life: until when it takes tasks, runs them, and exists."""

from __future__ import annotations

from math import inf
from typing import Final, NamedTuple

DRAIN_GRACE_S = 30.0
"""How long before its time limit a worker starts to drain, unless a user sets another time: as
long as Slurm and Kubernetes wait between SIGTERM and SIGKILL."""
GRACE_SHARE_MAX = 0.5
"""At most this share of a life is for its drain."""
TASKS_SHARE = 0.5
"""Running tasks have this share of the grace to end. The rest is for programs that ignore SIGTERM,
and for copies of the last outputs."""


class Life(NamedTuple):
    """When a worker ends, by one clock, and how long before that it drains."""

    ends_at_s: float = inf
    grace_s: float = 0.0

    @property
    def drains_at_s(self) -> float:
        """From then on, no task starts on the worker."""
        return self.ends_at_s - self.grace_s

    @property
    def hands_over_at_s(self) -> float:
        """At that time, tasks that still run there are ended, and run elsewhere."""
        return self.ends_at_s - self.grace_s * (1 - TASKS_SHARE)

    def may_start(self, needed_s: float, now_s: float) -> bool:
        """Whether a task may start that needs so much time at most (0: unknown)."""
        if self.ends_at_s == inf:
            return True
        return now_s < self.drains_at_s and now_s + needed_s <= self.hands_over_at_s

    def left_s(self, now_s: float) -> float:
        """Return how long tasks may still run on the worker."""
        return max(self.hands_over_at_s - now_s, 0.0)


FOREVER: Final = Life()


def limited(limit_s: float | None, grace_s: float, now_s: float) -> Life:
    """Return the life of a worker that starts now, and ends after `limit_s` (None: never)."""
    if limit_s is None:
        return FOREVER
    return Life(now_s + limit_s, min(grace_s, limit_s * GRACE_SHARE_MAX))
