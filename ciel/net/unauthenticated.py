"""Limits the number of unauthenticated connections, which have not proved a key yet.

When the limit is reached, a new connection replaces the oldest one. Authorised peers prove their
key within a few round trips. So thousands of silent connections cannot keep them out; they only
replace each other.
"""

from __future__ import annotations

import resource
from typing import Final, Protocol

from twisted.logger import Logger

from ciel.wire.limits import UNPROVEN_PEERS_MAX

SHARE_OF_DESCRIPTORS: Final = 8
"""Unauthenticated connections of one listener may use one in so many of the process's file
descriptors. A process has at most three listeners, and needs descriptors for its work."""

_log = Logger()


class UnprovenConnection(Protocol):
    """A connection that may not have proved a key yet."""

    @property
    def is_unproven(self) -> bool: ...

    def turn_away(self) -> None:
        """Abort the connection without a message."""


class UnauthenticatedConnections:
    """Limits the unauthenticated connections of one listener, by aborting the oldest."""

    def __init__(self, places: int | None = None) -> None:
        open_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._connections_max = places or min(
            UNPROVEN_PEERS_MAX, max(1, open_files // SHARE_OF_DESCRIPTORS)
        )
        self._connections: list[UnprovenConnection] = []  # the oldest first
        self._was_full = False

    def let_in(self, connection: UnprovenConnection) -> None:
        """Add a connection; abort the oldest one if the limit is reached."""
        self._connections = [earlier for earlier in self._connections if earlier.is_unproven]
        is_full = len(self._connections) >= self._connections_max
        if is_full:
            self._connections.pop(0).turn_away()
            if not self._was_full:  # log once, not for each connection of a flood
                _log.warn(
                    "{places} connections have proved no key; each new one now replaces the oldest",
                    places=self._connections_max,
                )
        self._was_full = is_full
        self._connections.append(connection)
