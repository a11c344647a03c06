"""Errors in scripts, and their places in the text."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, NamedTuple

from ciel.core.refs import Reference


class Source:
    """The text of a script, and where its lines begin. `name`: its name for people. `statements`:
    the statements of its tree, once it is parsed.
    """

    __slots__ = ("_starts", "name", "statements", "text")

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.text = text
        self.statements: Sequence[Any] = ()
        self._starts: list[int] | None = None

    def place(self, offset: int) -> tuple[int, int]:
        """Return line and column (both from 1) of an offset into the text."""
        if self._starts is None:
            starts = [0]
            position = self.text.find("\n")
            while position >= 0:
                starts.append(position + 1)
                position = self.text.find("\n", position + 1)
            self._starts = starts
        line = bisect_right(self._starts, offset)
        return line, offset - self._starts[line - 1] + 1

    def line(self, number: int) -> str:
        """Return the text of a line, without its end."""
        self.place(0)
        assert self._starts is not None
        start = self._starts[number - 1]
        end = self.text.find("\n", start)
        return self.text[start : len(self.text) if end < 0 else end].rstrip("\r")

    def show(self, offset: int) -> str:
        """Show a place: its name, its line, and a caret below the column."""
        number, column = self.place(offset)
        line = self.line(number)
        first = max(
            0, column - LINE_SHOWN_MAX * 3 // 4
        )  # of a very long line, the part around the column
        shown = line[first : first + LINE_SHOWN_MAX].replace("\t", " ")
        caret = " " * (column - 1 - first) + "^"
        return f"  {self.name}, line {number}, column {column}\n    {shown}\n    {caret}"


LINE_SHOWN_MAX = 120
CALLS_SHOWN_MAX = 12


class SkywritingError(Exception):
    """The base class of the errors of scripts."""


class Problem(NamedTuple):
    """An error in a text. `is_warning`: the script can run, and may be right."""

    source: Source
    offset: int
    message: str
    is_warning: bool = False

    def __str__(self) -> str:
        return f"{self.message}\n{self.source.show(self.offset)}"


class SourceError(SkywritingError):
    """A text is not a script. `problems`: all errors in it, in order."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = tuple(problems)


class ScriptError(SkywritingError):
    """An error while a script ran: the cause, the place, and the calls that led there."""

    def __init__(self, cause: str) -> None:
        super().__init__(cause)
        self.cause = cause
        self.place: tuple[Source, int] | None = None
        self.lines: tuple[int, int] | None = None  # of the innermost statement
        self.calls: list[tuple[str, Source, int]] = []  # innermost first: function, called where

    def __str__(self) -> str:
        return self.report()

    def report(self) -> str:
        """Return the full message; it begins as in the original Skywriting."""
        first = self.cause
        if self.lines is not None:
            first = f"Error executing statement on lines {self.lines[0]}--{self.lines[1]}: {first}"
        parts = [first]
        if self.place is not None:
            source, offset = self.place
            parts.append(source.show(offset))
        calls = [(name, f"{source.name}, line {source.place(offset)[0]}")
                 for name, source, offset in self._shown_calls()]  # fmt: skip
        parts += [f"  in {name}, called from {where}" for name, where in calls]
        left_out = len(self.calls) - len(calls)
        if left_out:
            parts.append(f"  (and {left_out} more calls)")
        return "\n".join(parts)

    def _shown_calls(self) -> list[tuple[str, Source, int]]:
        if len(self.calls) <= CALLS_SHOWN_MAX:
            return self.calls
        return self.calls[: CALLS_SHOWN_MAX - 2] + self.calls[-2:]


class ContinuationError(SkywritingError):
    """A continuation is damaged, or of another version."""


class ReferenceFailedError(SkywritingError):
    """The task that should produce an object has failed; `details` are its report."""

    def __init__(self, ref: Reference, reason: str, details: str) -> None:
        super().__init__(f"{ref.id} has failed ({reason}): {details}")
        self.ref = ref
        self.reason = reason
        self.details = details
