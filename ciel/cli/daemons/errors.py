"""Errors of daemons."""

from __future__ import annotations


class DaemonError(Exception):
    """A daemon cannot start. The message is one line, for the user or the parent process."""

    def __init__(self, reason: str, status: int = 1) -> None:
        self.status = status
        super().__init__(reason)
