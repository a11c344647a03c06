"""Rings as a channel of the control plane (`ciel.channels`, see `ciel.net.channels.Kind`)."""

from __future__ import annotations

import os
from typing import Final

from ciel.core.transports import CORES_MIN
from ciel.scc.ring import Lookout, Ring, make_segment

CAPACITY_BYTES: Final = 128 * 1024
"""For each direction between daemons. It holds more than a batch, and fills little of a cache."""

SPIN_US: Final = 300.0
"""How long to poll before sleeping, if polling is on: longer than a peer on another core takes to
send a message, and longer than its wake-up takes."""


def usual_spin_us(cores: int | None = None) -> float:
    """Return how long to poll before sleeping on this machine."""
    return SPIN_US if (cores or len(os.sched_getaffinity(0))) >= CORES_MIN else 0.0


class RingKind:
    """Makes and opens rings; `spin_us` is how long to poll before sleeping. Raises RingError."""

    name = "ring"

    def __init__(self, spin_us: float | None = None) -> None:
        self.lookout = Lookout(usual_spin_us() if spin_us is None else spin_us)

    def make(self) -> int:
        return make_segment(CAPACITY_BYTES)

    def open(self, descriptor: int, side: int, bell_fd: int) -> Ring:
        # Keep the bell: its caller may close it before us, and its number may then be reused.
        return Ring(descriptor, side, bell_fd, keeps_bell=True)
