"""Decides how much memory a server offers while its host is short of memory, and afterwards.

The caller passes readings of the host's memory, about once a second, and the time. The server
offers less in steps, as long as its pages have content. It waits after each step: the pages have to
move, and the kernel's measure of waiting is an average of ten seconds. It offers more again, also
in steps, when its host has not been short of memory for a minute.
"""

from __future__ import annotations

from typing import Final

from ciel.memory.host import HostMemory
from ciel.memory.page_server import EXTENT_BYTES

PRESSURE_MAX_PERCENT: Final = 10.0
"""The default for `--pressure-max`. On a host whose programs read more files than fit the memory,
tasks wait for some percent of the time; on one where the kernel soon kills programs, for most."""
RESERVE_PARTS: Final = 20
RESERVE_MAX_BYTES: Final = 1 << 30
"""A host is short of memory if less than a twentieth is available, or less than this: programs
allocate some hundred MiB in the second between two readings."""
STEPS: Final = 8
"""A step is an eighth of the extents that the server holds, or, to offer more, of `extents_max`."""
SETTLE_S: Final = 10.0
"""The time after a step in which waiting alone causes no further one."""
MOVE_S: Final = 30.0
"""The time that other servers have to take the pages of a step, before the next one."""
CALM_S: Final = 60.0


class Offer:
    """The number of extents that a server offers.

    `extents`: from 0 to `extents_max`. `is_urgent`: the kernel may soon kill programs.
    """

    def __init__(self, extents_max: int, pressure_max_percent: float | None) -> None:
        """`pressure_max_percent`: the limit of waiting; None: the offer never changes."""
        self.extents_max = extents_max
        self.extents = extents_max
        self.is_urgent = False
        self._limit_percent = pressure_max_percent
        self._stepped_at_s = float("-inf")
        self._calm_since_s: float | None = None

    def observe(self, host: HostMemory, held: int, used: int, now_s: float) -> bool:
        """Take a reading; return whether `extents` or `is_urgent` has changed.

        `held`: how many extents the server holds now; `used`: how many their content would fill.
        """
        limit_percent = self._limit_percent
        if limit_percent is None:
            return False
        before = self.extents, self.is_urgent
        reserve_bytes = min(host.total_bytes // RESERVE_PARTS, RESERVE_MAX_BYTES)
        missing_bytes = reserve_bytes - host.available_bytes
        if host.some_percent > limit_percent or missing_bytes > 0:
            self._calm_since_s = None
            is_urgent = host.full_percent > limit_percent or 2 * missing_bytes > reserve_bytes
            self._shrink(held, used, missing_bytes, is_urgent, now_s)
        elif 2 * host.some_percent < limit_percent and self.extents < self.extents_max:
            self._grow(host.available_bytes - 2 * reserve_bytes, now_s)
        else:
            self._calm_since_s = None
        return (self.extents, self.is_urgent) != before

    def _shrink(
        self, held: int, used: int, missing_bytes: int, is_urgent: bool, now_s: float
    ) -> None:
        since_s = now_s - self._stepped_at_s
        is_worse = is_urgent and not self.is_urgent
        if held > self.extents:
            if is_worse:
                self.is_urgent = True
            if since_s < MOVE_S:
                return
        elif missing_bytes <= 0 and since_s < SETTLE_S and not is_worse:
            return
        step = min(max(_parts(held), -(-missing_bytes // EXTENT_BYTES)), used)
        self.extents = max(min(self.extents, held) - step, 0)
        self.is_urgent = is_urgent
        self._stepped_at_s = now_s

    def _grow(self, spare_bytes: int, now_s: float) -> None:
        step = min(_parts(self.extents_max), self.extents_max - self.extents)
        if spare_bytes < step * EXTENT_BYTES:
            self._calm_since_s = None
        elif self._calm_since_s is None:
            self._calm_since_s = now_s
        elif now_s - self._calm_since_s >= CALM_S:
            self.extents += step
            self.is_urgent = False
            self._calm_since_s = now_s


def _parts(extents: int) -> int:
    return max(-(-extents // STEPS), 1)
