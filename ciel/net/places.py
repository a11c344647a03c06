"""Chooses the address to which a process connects next, when it may find its peer at several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

STAY_S: Final = 3.0
"""How long a process that listens soon is awaited at its address before others are tried."""


class Places:
    """The address in use, and the addresses to try in turn when it does not answer."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.alternatives: Callable[[], Sequence[str]] = lambda: ()
        """Returns the addresses that are tried in turn."""
        self._stay_until_s = 0.0

    def redirect(self, address: str, now_s: float) -> None:
        """Use another address; for `STAY_S`, the alternatives are not tried."""
        self.address = address
        self._stay_until_s = now_s + STAY_S

    def failed(self, now_s: float) -> None:
        """Choose the next address, since the connection to this one failed or has ended."""
        places = list(self.alternatives())
        if places and now_s >= self._stay_until_s:
            next_place = places.index(self.address) + 1 if self.address in places else 0
            self.address = places[next_place % len(places)]
