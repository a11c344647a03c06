"""Who stands at the door: connections that have not proved a key yet, so many at a time.

When it is full, whoever comes takes the place of whoever has stood there longest. An honest peer
proves its key within a few round trips, so thousands of connections that say nothing keep nobody
out; they only turn each other away.
"""

from __future__ import annotations

import resource
from typing import Final, Protocol

from twisted.logger import Logger

from ciel.wire.limits import UNPROVEN_PEERS_MAX

SHARE_OF_DESCRIPTORS: Final = 8
"""Strangers at one door may hold one in so many of the files that this process may open. It has
three doors at most, and its own work needs descriptors, too."""

_log = Logger()


class Stranger(Protocol):
    """A connection that may not have proved itself yet."""

    @property
    def is_unproven(self) -> bool: ...

    def turn_away(self) -> None:
        """Hang up at once, without a word."""


class Doorstep:
    """Counts the strangers before one listener, and turns the eldest away when there are too
    many.
    """

    def __init__(self, places: int | None = None) -> None:
        open_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._places = places or min(UNPROVEN_PEERS_MAX, max(1, open_files // SHARE_OF_DESCRIPTORS))
        self._strangers: list[Stranger] = []  # the eldest first
        self._was_full = False

    def let_in(self, stranger: Stranger) -> None:
        """Give a stranger a place, if need be that of another."""
        self._strangers = [someone for someone in self._strangers if someone.is_unproven]
        is_full = len(self._strangers) >= self._places
        if is_full:
            self._strangers.pop(0).turn_away()
            if not self._was_full:  # said once, not for each of a flood
                _log.warn(
                    "{places} connections have not proved a key; from now on the eldest must go",
                    places=self._places,
                )
        self._was_full = is_full
        self._strangers.append(stranger)
