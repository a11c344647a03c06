"""Defines a row of the table: one kind of failure, the function that causes it, and its figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple


class CannotRunError(Exception):
    """A row cannot run on this machine; the text is the reason."""


class Figure(NamedTuple):
    """A measured value with its target. A figure without a target is only stated."""

    text: str
    value: float
    unit: str = ""
    target: float | None = None
    at_most: bool = True
    digits: int = 0

    @property
    def is_met(self) -> bool:
        if self.target is None:
            return True
        return self.value <= self.target if self.at_most else self.value >= self.target

    def measured(self) -> str:
        """Return the value as a cell of the table has it."""
        return f"{self.text}: {self.value:,.{self.digits}f} {self.unit}".rstrip()

    def goal(self) -> str:
        """Return the target as a cell of the table has it; empty if there is none."""
        if self.target is None:
            return ""
        sign = "≤" if self.at_most else "≥"
        return f"{self.text} {sign} {self.target:,.6g} {self.unit}".rstrip()


class Note(NamedTuple):
    """A sentence about a run that is not a figure, such as how another system did."""

    text: str


@dataclass(frozen=True)
class Setting:
    """The size of a row, and its private directory. `scale` is 1 for full size."""

    scale: float
    directory: Path

    def count(self, full: int, least: int = 1) -> int:
        """Return a number of things, which is `full` at full size."""
        return max(least, round(full * self.scale))

    def seconds(self, full: float, least: float = 0.3) -> float:
        """Return a time or an interval, which is `full` at full size."""
        return max(least, full * self.scale)


Findings = Iterator[Figure | Note]
Measure = Callable[[Setting], Findings]


@dataclass(frozen=True)
class Row:
    """One kind of failure.

    `failure`: the failure, at full size. `promise`: its promised effect. `targets`: the targets of
    its figures. `limit_s`: the row counts as hanging after this time.
    """

    name: str
    failure: str
    promise: str
    targets: str
    measure: Measure
    limit_s: float = 900.0


@dataclass
class Result:
    """The figures of one row. `error`: why it has none, or not all. `cannot_run`: whether this
    machine lacks something that the row needs.
    """

    row: str
    scale: float
    took_s: float = 0.0
    figures: list[Figure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    error: str = ""
    cannot_run: bool = False

    @property
    def verdict(self) -> str:
        if self.cannot_run:
            return "not measured"
        met = not self.error and all(figure.is_met for figure in self.figures)
        return "met" if met else "missed"


ROWS: Final[dict[str, Row]] = {}
"""All rows by name, in the order of the table."""


def row(
    name: str, failure: str, promise: str, targets: str, *, limit_s: float = 900.0
) -> Callable[[Measure], Measure]:
    """Add a row, whose function yields its figures."""

    def add(measure: Measure) -> Measure:
        if name in ROWS:
            raise ValueError(f"two rows are called {name}")
        ROWS[name] = Row(name, failure, promise, targets, measure, limit_s)
        return measure

    return add
