"""Where the master's decisions would be kept. This journal keeps nothing, but takes the final
record types.

Decide, persist, act: `append` is called with a turn's records before any message of that turn
leaves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ciel.core.events import Message


class Journal(Protocol):
    """An append-only list of records; one call is one group."""

    def append(self, records: Sequence[Message]) -> None:
        """Keep records; returns when they are safe."""

    def close(self) -> None: ...


class NullJournal:
    """Keeps nothing: a master that is restarted starts empty."""

    def append(self, records: Sequence[Message]) -> None:
        pass

    def close(self) -> None:
        pass
