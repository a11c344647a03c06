"""Keeps the unusual events of a task's life in a bounded list, for `ciel task explain` and for
errors.

A task that ran once and succeeded has no history.
"""

from __future__ import annotations

from typing import NamedTuple

STORY_MAX_LENGTH = 20
TEXT_MAX_LENGTH = 2000


class Chapter(NamedTuple):
    """One thing that happened, `at_s` on the master's clock."""

    at_s: float
    text: str


class Story:
    """The first and the latest things that happened to a task."""

    __slots__ = ("_chapters", "_left_out")

    def __init__(self) -> None:
        self._chapters: list[Chapter] = []
        self._left_out = 0

    def tell(self, at_s: float, text: str) -> None:
        if len(text) > TEXT_MAX_LENGTH:
            text = f"{text[: TEXT_MAX_LENGTH - 4]} ..."
        self._chapters.append(Chapter(at_s, text))
        if len(self._chapters) > STORY_MAX_LENGTH:
            del self._chapters[STORY_MAX_LENGTH // 2]
            self._left_out += 1

    @property
    def chapters(self) -> tuple[Chapter, ...]:
        """The recorded events, oldest first."""
        return tuple(self._chapters)

    def lines(self, now_s: float) -> list[str]:
        """Tell the story as lines, oldest first, with ages."""
        lines = [f"{now_s - at_s:.1f} s ago: {text}" for at_s, text in self._chapters]
        if self._left_out:
            lines.insert(STORY_MAX_LENGTH // 2, f"({self._left_out} more)")
        return lines
