"""What a conversation says to its program."""

from __future__ import annotations

from typing import Any


class Transcript:
    """What a conversation said, in order."""

    def __init__(self) -> None:
        self.said: list[tuple[str, Any]] = []

    def say(self, method: str, args: Any) -> None:
        """Be told something, as a program is."""
        self.said.append((method, args))

    def take(self) -> list[tuple[str, Any]]:
        """Return what was said since the last time."""
        said, self.said = self.said, []
        return said
