"""Implements `--resume`: omits the elements that the job log of an earlier run lists."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from typing import Final

from ciel.cli.outcome import UsageError
from ciel.cli.submission.elements import Element, Source, Template
from ciel.cli.submission.joblog import COLUMNS, cell

_SUCCEEDED: Final = ("0", "0")  # exit status and signal


class Remaining:
    """The elements of a source, except elements that an earlier run has finished."""

    def __init__(self, source: Source, ended: Mapping[int, str], template: Template) -> None:
        """`ended`: the command of each element to omit, by number."""
        self._source = source
        self._omitted = ended
        self._template = template
        self.start = source.start
        self.is_ready = source.is_ready
        self.place = source.place

    def take(self, count: int) -> list[Element]:
        """Return the next elements; raises UsageError if one to omit has another command now."""
        while taken := self._source.take(count):
            if left := [each for each in taken if not self._is_omitted(each)]:
                return left
        return []

    @property
    def ended(self) -> bool:
        return self._source.ended

    @property
    def total(self) -> int | None:
        total = self._source.total
        return None if total is None else max(0, total - len(self._omitted))

    def _is_omitted(self, element: Element) -> bool:
        before = self._omitted.get(element.number)
        if before is None:
            return False
        now = cell(shlex.join(self._template.fill(element)[0]))
        if now != before:
            raise UsageError(
                f"--resume: {self._source.place(element)} ran as {before!r:.80} before, and is "
                f"{now!r:.80} now; start again with another --joblog"
            )
        return True


def remaining(path: str, source: Source, template: Template, *, repeats_failed: bool) -> Remaining:
    """Return the elements without a line in the job log, or, with `repeats_failed`, without one
    that says that they succeeded. Raises UsageError.
    """
    return Remaining(source, _ended(path, repeats_failed=repeats_failed), template)


def _ended(path: str, *, repeats_failed: bool) -> dict[int, str]:
    """Return the command of each element to omit, by number. The last line of an element counts."""
    try:
        with open(path, "rb") as file:
            lines = file.read().splitlines()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise UsageError(f"--joblog {path}: {error.strerror}") from None
    found: dict[int, str] = {}
    for number, line in enumerate(lines, 1):
        cells = os.fsdecode(line).split("\t")
        if number == 1 and cells == list(COLUMNS):
            continue
        if len(cells) != len(COLUMNS) or not cells[0].isdecimal():
            raise UsageError(f"--joblog {path}: line {number} is not a line of a job log")
        row = dict(zip(COLUMNS, cells, strict=True))
        found.pop(int(row["Seq"]), None)
        if not repeats_failed or (row["Exitval"], row["Signal"]) == _SUCCEEDED:
            found[int(row["Seq"])] = row["Command"]
    return found
