"""The interface of the master's journal, and a journal that stores nothing.

The master appends the records of a tick at its end. Messages of that tick leave when the records
are durable.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ciel.core.events import Message


class Journal(Protocol):
    """An append-only log of records; each call appends one group. Appends are numbered from 1.

    `appended` and `durable` are the numbers of the last append and of the last durable append.
    """

    @property
    def appended(self) -> int: ...
    @property
    def durable(self) -> int: ...

    def append(self, records: Sequence[Message]) -> int:
        """Store records; return the number of this append."""

    def close(self) -> None: ...


class NullJournal:
    """Stores nothing: a restarted master starts empty."""

    appended = durable = 0

    def append(self, records: Sequence[Message]) -> int:
        return 0

    def close(self) -> None:
        pass
