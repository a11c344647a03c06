"""Counts the messages of a session, on both of its sides (see `net.sessions`)."""

from __future__ import annotations

from collections import deque
from typing import Any


class SessionCounter:
    """The messages of one session, over all of its connections."""

    def __init__(self) -> None:
        self.received = 0
        """How many messages have arrived."""
        self._reported = 0  # of these, how many the peer knows to have arrived
        self._confirmed = 0  # messages of this side that the peer has confirmed

    @property
    def reported(self) -> int:
        """How many messages the peer knows to have arrived."""
        return self._reported

    @property
    def confirmed(self) -> int:
        """How many messages of this side the peer has confirmed."""
        return self._confirmed

    @property
    def unreported(self) -> int:
        """How many messages have arrived since the last report."""
        return self.received - self._reported

    def report(self, total: int | None = None) -> int:
        """Return the number to report to the peer, and count it as reported: `total`, or all."""
        self._reported = self.received if total is None else total
        return self._reported

    def take_confirmation(self, total: int, sent: deque[Any]) -> bool:
        """Drop from `sent` what the peer has confirmed; False if `total` is impossible."""
        if not self._confirmed <= total <= self._confirmed + len(sent):
            return False
        for _ in range(total - self._confirmed):
            sent.popleft()
        self._confirmed = total
        return True
