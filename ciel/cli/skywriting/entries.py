"""Reads entries of the prompt: joins lines from a terminal or a pipe until they are statements."""

from __future__ import annotations

import os
import re
import select
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from ciel.cli.outcome import UsageError
from ciel.cli.skywriting.source import SOURCE_MAX_BYTES
from ciel.skywriting.errors import Source, SourceError
from ciel.skywriting.syntax import grammar, lexer

_OPEN, _CLOSE = frozenset("([{"), frozenset(")]}")
_CHUNK_BYTES: Final = 1 << 16
_HISTORY_MAX_LINES: Final = 1000
_PROMPT, _MORE = "sw> ", "... "
_word_in = re.compile(r"(?:#!.*\n)?\s*(exit|quit|help)\s*(?:\(\s*\))?\s*;?\s*").fullmatch


def word_in(entry: Source) -> str:
    """Return the command to the prompt in an entry, such as `exit`; "" if it contains none."""
    found = _word_in(entry.text)
    return found[1] if found else ""


class Lines:
    """Lines that may become an entry.

    `is_blank`: they contain only comments. `is_open`: a bracket or a comment in them is not closed.
    """

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._depth = 0
        self._in_comment = False
        self.is_blank = True

    @property
    def text(self) -> str:
        return "".join(self._lines)

    @property
    def is_open(self) -> bool:
        return self._in_comment or self._depth > 0

    def add(self, line: str) -> None:
        """Add a line, with its line end."""
        self._lines.append(line)
        if self._in_comment:
            _, closed, line = line.partition("*/")
            if not closed:
                return
        tokens = lexer.tokenize(Source("", line))
        last = tokens.problems[-1].offset if tokens.problems else len(line)
        self._in_comment = line.startswith("/*", last)
        self.is_blank &= tokens.kinds == [lexer.END] and (self._in_comment or last == len(line))
        for kind in tokens.kinds:
            self._depth += (kind in _OPEN) - (kind in _CLOSE)

    def whole(self, name: str, head: str, *, is_last: bool, adds_end: bool) -> Source | None:
        """Return the lines as a script, which may have errors; None if further lines must follow.

        Lines must follow if a bracket is open, or if the last statement could continue. `is_last`:
        no line follows. `adds_end`: the last `;` may be missing.
        """
        if self.is_open and not is_last:
            return None
        source = Source(name, head + self.text)
        end = len(source.text.rstrip())
        try:
            grammar.parse(source)
            return source
        except SourceError as error:
            could_continue = error.problems[0].offset >= end
        if adds_end or is_last:
            for end_of_statement in (";", "\n;"):  # the lines may end in a comment
                with suppress(SourceError):
                    ended = Source(name, source.text[:end] + end_of_statement)
                    grammar.parse(ended)
                    return ended
        return None if could_continue and not is_last else source


class Entries(ABC):
    """A source of entries, which are numbered from 1."""

    adds_end: bool

    def __init__(self) -> None:
        self._count = 0
        self._head = ""  # a line `#!skywriting 2` applies to all later entries
        self._lines = Lines()

    @abstractmethod
    def __iter__(self) -> Iterator[Source]:
        """Yield each entry as soon as it is complete."""

    def _take(self, line: str, *, is_last: bool) -> Source | None:
        """Add a line; return the entry that it completes, if any."""
        lines = self._lines
        if line.startswith("#!") and not (lines.text or lexer.tokenize(Source("", line)).problems):
            self._head = line
            return None
        lines.add(line)
        if lines.is_blank and not (lines.is_open and is_last):
            if not lines.is_open:
                self._lines = Lines()
            return None
        if self._continues(line):
            return None
        name = f"entry {self._count + 1}"
        entry = lines.whole(name, self._head, is_last=is_last, adds_end=self.adds_end)
        if entry is not None:
            self._count += 1
            self._lines = Lines()
        return entry

    def _continues(self, line: str) -> bool:
        """Return whether the next line has been read already and continues this one."""
        return False


class PipedEntries(Entries):
    """Entries from a descriptor, one statement each."""

    adds_end = False

    def __init__(self, fd: int) -> None:
        super().__init__()
        self._fd = fd
        self._rest = b""
        self._has_ended = False

    def __iter__(self) -> Iterator[Source]:
        line = "\n"
        while line:
            line = self._next_line()
            entry = self._take(line, is_last=not line)
            if entry is not None:
                yield entry

    def _continues(self, line: str) -> bool:
        """Return whether the next line has been read already and starts with `else`."""
        if not line.rstrip().endswith("}"):
            return False
        while b"\n" not in self._rest and not self._has_ended:
            if not select.select([self._fd], [], [], 0)[0]:
                break
            self._read()
        return self._rest.lstrip().startswith(b"else")

    def _next_line(self) -> str:
        """Return the next line with its line end; "" at the end.

        Bytes that are not valid UTF-8 become a character that no script may contain.
        """
        while b"\n" not in self._rest and not self._has_ended:
            self._read()
        line, end, self._rest = self._rest.partition(b"\n")
        return (line + end).decode(errors="replace")

    def _read(self) -> None:
        if len(self._rest) > SOURCE_MAX_BYTES:
            raise UsageError(f"a line of standard input is longer than {SOURCE_MAX_BYTES} bytes")
        chunk = os.read(self._fd, _CHUNK_BYTES)
        self._rest += chunk
        self._has_ended = not chunk


class TypedEntries(Entries):
    """Entries from a terminal, with a history of lines.

    The last `;` of an entry may be missing. A blank line completes an entry that could continue,
    unless brackets are open.
    """

    adds_end = True

    def __init__(self, history: Path) -> None:
        super().__init__()
        self._history = history

    def __iter__(self) -> Iterator[Source]:
        import readline  # `input` then has line editing

        readline.parse_and_bind("tab: self-insert")
        readline.set_history_length(_HISTORY_MAX_LINES)
        with suppress(OSError):  # the file does not exist yet
            readline.read_history_file(self._history)
        try:
            yield from self._typed()
        finally:
            with suppress(OSError):  # the history is lost
                self._history.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                os.close(os.open(self._history, os.O_CREAT | os.O_WRONLY, 0o600))
                readline.write_history_file(self._history)

    def _typed(self) -> Iterator[Source]:
        while True:
            try:
                line = input(_MORE if self._lines.text else _PROMPT)
            except KeyboardInterrupt:  # discard the lines of this entry
                print()
                self._lines = Lines()
                continue
            except EOFError:
                print()
                return
            entry = self._take(f"{line}\n", is_last=not line.strip() and not self._lines.is_open)
            if entry is not None:
                yield entry
