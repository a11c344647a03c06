"""Errors of daemons."""

from __future__ import annotations


class DaemonError(Exception):
    """A daemon cannot start; the text is one line for whoever started it."""

    def __init__(self, reason: str, status: int = 1) -> None:
        self.status = status
        super().__init__(reason)
