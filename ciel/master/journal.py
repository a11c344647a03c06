"""The interface of the master's journal, and a journal that stores nothing.

The master calls `append` with the records of a tick before it sends any message of that tick.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ciel.core.events import Message


class Journal(Protocol):
    """An append-only log of records; each call appends one group."""

    def append(self, records: Sequence[Message]) -> None:
        """Store records; returns when they are durable."""

    def close(self) -> None: ...


class NullJournal:
    """Stores nothing: a restarted master starts empty."""

    def append(self, records: Sequence[Message]) -> None:
        pass

    def close(self) -> None:
        pass
