r"""Finds the line of each key in a TOML file, since `tomllib` tells lines of syntax errors only.

key_lines('[[task]]\nname = "a"') == {("task", 0): 1, ("task", 0, "name"): 2}
"""

from __future__ import annotations

import re
from typing import Final

Path = tuple[str | int, ...]
_BLANK: Final = re.compile(r"(?:\s|#[^\n]*)*")
_KEY: Final = re.compile(r"\"((?:[^\"\\]|\\.)*)\"|'([^']*)'|([A-Za-z0-9_-]+)")
_STRING: Final = re.compile(
    r'"""(?:[^\\]|\\.)*?"{3,5}|\'\'\'.*?\'{3,5}|"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\'', re.DOTALL
)
_PLAIN: Final = re.compile(r"[^,\]}\n#]*")


def key_lines(text: str) -> dict[Path, int]:
    """Return the line of each key, table and element by its path. The text is valid TOML."""
    return _Scanner(text).scan()


class _Scanner:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._lines: dict[Path, int] = {}
        self._table: Path = ()
        self._counts: dict[Path, int] = {}  # of the elements of arrays of tables

    def scan(self) -> dict[Path, int]:
        self._skip_blank()
        while self._at < len(self._text):
            if self._text[self._at] == "[":
                self._header()
            else:
                self._assignment(self._table)
            self._skip_blank()
        return self._lines

    def _header(self) -> None:
        is_array = self._text.startswith("[[", self._at)
        line = self._line()
        self._at += 2 if is_array else 1
        *parents, last = self._keys()
        self._at += 2 if is_array else 1
        path: Path = ()
        for key in parents:
            path = self._inside((*path, key))
        path = (*path, last)
        if is_array:
            number = self._counts.get(path, 0)
            self._counts[path] = number + 1
            self._lines.setdefault(path, line)
            path = (*path, number)
        self._table = path
        self._lines[path] = line

    def _inside(self, path: Path) -> Path:
        """Return the path of the last element if an array of tables has this path."""
        return (*path, self._counts[path] - 1) if path in self._counts else path

    def _assignment(self, table: Path) -> None:
        line = self._line()
        path = table
        for key in self._keys():
            path = (*path, key)
            self._lines.setdefault(path, line)
        self._at += 1  # the equals sign
        self._value(path)

    def _keys(self) -> list[str]:
        keys = []
        while True:
            self._skip_spaces()
            match = _KEY.match(self._text, self._at)
            if match is None:  # not valid TOML
                raise ValueError(f"no key in line {self._line()}")
            keys.append(match[1] or match[2] or match[3] or "")
            self._at = match.end()
            self._skip_spaces()
            if not self._text.startswith(".", self._at):
                return keys
            self._at += 1

    def _value(self, path: Path) -> None:
        self._skip_blank()
        match self._text[self._at : self._at + 1]:
            case "[":
                self._array(path)
            case "{":
                self._inline_table(path)
            case '"' | "'":
                found = _STRING.match(self._text, self._at)
                self._at = found.end() if found is not None else len(self._text)
            case _:
                found = _PLAIN.match(self._text, self._at)
                self._at = found.end() if found is not None else len(self._text)

    def _array(self, path: Path) -> None:
        self._at += 1
        number = 0
        while not self._closes("]"):
            self._lines[(*path, number)] = self._line()
            self._value((*path, number))
            number += 1

    def _inline_table(self, path: Path) -> None:
        self._at += 1
        while not self._closes("}"):
            self._assignment(path)

    def _closes(self, bracket: str) -> bool:
        """Skip a comma; return whether the closing bracket, or the end of the text, follows."""
        self._skip_blank()
        if self._text.startswith(",", self._at):
            self._at += 1
            self._skip_blank()
        if self._at < len(self._text) and self._text[self._at] != bracket:
            return False
        self._at += 1
        return True

    def _skip_blank(self) -> None:
        found = _BLANK.match(self._text, self._at)
        self._at = found.end() if found is not None else self._at

    def _skip_spaces(self) -> None:
        while self._text[self._at : self._at + 1] in (" ", "\t"):
            self._at += 1

    def _line(self) -> int:
        return self._text.count("\n", 0, self._at) + 1
