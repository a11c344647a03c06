"""Records the messages of a conversation to its program."""

from __future__ import annotations

from typing import Any


class Transcript:
    """The messages of a conversation to its program, in order."""

    def __init__(self) -> None:
        self.said: list[tuple[str, Any]] = []

    def say(self, method: str, args: Any) -> None:
        """Record a message."""
        self.said.append((method, args))

    def take(self) -> list[tuple[str, Any]]:
        """Return the messages since the last call."""
        said, self.said = self.said, []
        return said
