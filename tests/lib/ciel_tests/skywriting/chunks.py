"""Reads files of many small programs, which are separated by lines of four dashes.

Comments of the form `// word: what` in a program state the expected result: its `value`, the
`printed` text, or an `error` on that line, as a regular expression.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

_DASHES = "----\n"
_expectations = re.compile(r"// (value|printed|error): (.+)").finditer


class Chunk(NamedTuple):
    """One program. `where` names it in messages; lines are numbered from 1 within it."""

    where: str
    text: str
    expected: list[tuple[str, int, str]]  # word, line, what

    def only(self, word: str) -> Any:
        """Return the JSON value of the only expectation of a kind; None if there is none."""
        found = [what for each, _, what in self.expected if each == word]
        assert len(found) <= 1, f"{self.where} expects more than one {word}"
        return json.loads(found[0]) if found else None

    def expects(self, word: str) -> bool:
        return any(each == word for each, _, _ in self.expected)

    @property
    def errors(self) -> list[tuple[int, str]]:
        """Return the lines with errors, and a pattern for each message."""
        return [(line, what) for word, line, what in self.expected if word == "error"]


def chunks(path: Path) -> Iterator[Chunk]:
    """Read a file; each program in it must state an expectation."""
    first = 1
    for text in path.read_text().split(_DASHES):
        lines = text.splitlines()
        expected = [
            (match[1], number, match[2].strip())
            for number, line in enumerate(lines, 1)
            for match in _expectations(line)
        ]
        where = f"{path.name}:{first}"
        assert expected, f"{where} expects nothing"
        yield Chunk(where, text, expected)
        first += len(lines) + 1
