"""Rings as a channel of the control plane (`ciel.channels`, see `ciel.net.channels.Kind`)."""

from __future__ import annotations

import os
from typing import Final

from ciel.scc.ring import Lookout, Ring, make_segment

CAPACITY_BYTES: Final = 128 * 1024
"""Of each direction between daemons: more than a batch, and little of what a core's cache holds."""

SPIN_US: Final = 300.0
"""How long somebody looks before sleeping, where that is on: longer than a peer on another core
takes for a message, and than its wake-up would."""

CORES_MIN: Final = 4
"""On fewer cores, whoever looks takes the core of whoever would have something to say."""


def usual_spin_us(cores: int | None = None) -> float:
    """Return how long to look before sleeping on this machine."""
    return SPIN_US if (cores or len(os.sched_getaffinity(0))) >= CORES_MIN else 0.0


class RingKind:
    """Makes and opens rings; `spin_us` is how long to look before sleeping. Raises RingError."""

    name = "ring"

    def __init__(self, spin_us: float | None = None) -> None:
        self.lookout = Lookout(usual_spin_us() if spin_us is None else spin_us)

    def make(self) -> int:
        return make_segment(CAPACITY_BYTES)

    def open(self, descriptor: int, side: int, bell_fd: int) -> Ring:
        # A socket's number may be another's before whoever closed it has told us.
        return Ring(descriptor, side, bell_fd, keeps_bell=True)
