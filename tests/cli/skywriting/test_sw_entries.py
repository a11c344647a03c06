"""Lines become entries of the prompt."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ciel.cli.outcome import UsageError
from ciel.cli.skywriting.entries import Entries, PipedEntries, TypedEntries
from ciel.skywriting.errors import Source


class GivenEntries(Entries):
    """Entries of lines that are given; `adds_end` as for typed ones."""

    def __init__(self, lines: list[str], *, adds_end: bool) -> None:
        super().__init__()
        self._given = lines
        self.adds_end = adds_end

    def __iter__(self) -> Iterator[Source]:
        for line in self._given:
            entry = self._take(f"{line}\n", is_last=not line and not self._lines.is_open)
            if entry is not None:
                yield entry


def typed(*lines: str) -> list[str]:
    return [entry.text.rstrip() for entry in GivenEntries([*lines], adds_end=True)]


def piped(content: bytes) -> list[str]:
    read_fd, write_fd = os.pipe()
    os.write(write_fd, content)
    os.close(write_fd)
    try:
        return [entry.text.rstrip() for entry in PipedEntries(read_fd)]
    finally:
        os.close(read_fd)


# --- typed ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line", ["x = 3;", "if (x) { y = 1; }", "function f(x) { return x; }", "{ x = 1; }", "f(1);"]
)
def test_a_line_that_is_a_statement_is_an_entry(line: str) -> None:
    assert typed(line) == [line]


@pytest.mark.parametrize("line", ["x = 3", "1 + 2", "x = {}", "return", "x = 1 // one", "f(1)"])
def test_the_last_semicolon_may_be_left_out(line: str) -> None:
    assert typed(line) == [f"{line}\n;" if "//" in line else f"{line};"]


@pytest.mark.parametrize(
    "lines",
    [
        ("f(1,", "2", ");"),
        ("x = {", '"a": [', "", "1]};"),
        ("function f(x) {", "if (x) {", "return 1;", "}", "return 2;", "}"),
        ("x = 1 /* a", "b", "c */ + 2;"),
        ("x = (1 // )", ");"),
        ("do { x = 1; }", "while (x < 1);"),
        ("x = 1 +", "2;"),
    ],
)
def test_lines_follow_while_something_is_open(lines: tuple[str, ...]) -> None:
    assert typed(*lines) == ["\n".join(lines)]


def test_brackets_within_texts_and_comments_open_nothing() -> None:
    assert typed('x = "(";', "y = 1; // {", "z = 2; /* [ */") == [
        'x = "(";', "y = 1; // {", "z = 2; /* [ */",
    ]  # fmt: skip


def test_blank_lines_and_comments_are_no_entries() -> None:
    assert typed("", "  ", "// nothing", "/* nothing", "", "at all */", "x;") == ["x;"]


def test_a_blank_line_ends_what_could_go_on() -> None:
    assert typed("x = 1 +", "", "y;") == ["x = 1 +", "y;"]


@pytest.mark.parametrize("line", ["x = }", "else { }", '"abc', "x = 3 4", "x = )("])
def test_what_no_line_could_mend_is_an_entry_with_errors(line: str) -> None:
    assert typed(line) == [line]


def test_entries_are_numbered_and_no_line_counts_twice() -> None:
    entries = GivenEntries(["x;", "", "f(", ");", "// no", "y;"], adds_end=True)
    assert [entry.name for entry in entries] == ["entry 1", "entry 2", "entry 3"]


def test_a_first_line_that_names_the_version_holds_for_all_that_follow() -> None:
    head = "#!skywriting 2"
    assert typed("a;", head, "b;", "c;") == ["a;", f"{head}\nb;", f"{head}\nc;"]
    assert typed("#!skywriting 9", "a;")[0].startswith("#!skywriting 9")  # which is an error


def test_keys_that_interrupt_drop_what_was_typed_and_the_end_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str | type[BaseException]] = ["f(", KeyboardInterrupt, "x = 1", EOFError]
    prompts = []

    def answer(prompt: str) -> str:
        prompts.append(prompt)
        next_said = said.pop(0)
        if isinstance(next_said, str):
            return next_said
        raise next_said

    monkeypatch.setattr("builtins.input", answer)
    entries = TypedEntries(tmp_path / "state" / "history")
    assert [entry.text for entry in entries] == ["x = 1;"]
    assert prompts == ["sw> ", "... ", "sw> ", "sw> "]
    assert (tmp_path / "state" / "history").stat().st_mode & 0o777 == 0o600


# --- piped ----------------------------------------------------------------------------------------


def test_each_statement_of_a_pipe_is_an_entry() -> None:
    script = b"x = 1;\n\ny = [\n  2\n];\n// done\nf(x,\n  y);"
    assert piped(script) == ["x = 1;", "y = [\n  2\n];", "f(x,\n  y);"]


def test_in_a_pipe_a_statement_without_its_end_goes_on() -> None:
    assert piped(b"x = 1\n+ 2;\ny\n") == ["x = 1\n+ 2;", "y;"]


def test_the_other_half_of_an_if_is_waited_for_if_it_is_there() -> None:
    script = b"if (a) {\n  x = 1;\n}\nelse if (b) {\n}\nelse {\n}\ny;\n"
    assert piped(script) == [script.decode()[:-4].rstrip(), "y;"]


def test_what_is_open_at_the_end_of_a_pipe_is_an_entry_with_errors() -> None:
    assert piped(b"x;\nf(1,\n") == ["x;", "f(1,"]
    assert piped(b"x;\n/* what\n") == ["x;", "/* what"]


def test_an_entry_comes_before_the_next_is_written() -> None:
    read_fd, write_fd = os.pipe()
    entries = iter(PipedEntries(read_fd))
    os.write(write_fd, b"if (a) {\n}\n")
    assert next(entries).text == "if (a) {\n}\n"
    later = threading.Timer(0.05, os.write, (write_fd, b"x;\ny"))
    later.start()
    assert next(entries).text == "x;\n"
    later.join()
    os.close(write_fd)
    assert [entry.text for entry in entries] == ["y;"]
    os.close(read_fd)


def test_bytes_that_are_no_text_make_an_entry_with_errors() -> None:
    assert piped(b"a\xff;\nb;\n") == ["a\ufffd;", "b;"]


def test_a_line_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ciel.cli.skywriting.entries.SOURCE_MAX_BYTES", 1000)
    with pytest.raises(UsageError, match="longer than 1000 bytes"):
        piped(b"x" * 5000)
