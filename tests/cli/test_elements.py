import io
import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciel.cli.outcome import UsageError
from ciel.cli.submission import elements
from ciel.cli.submission.elements import (
    WORD_MAX_BYTES,
    Element,
    Grouped,
    Known,
    Lines,
    Pieces,
    Template,
    combined,
    known,
    substitute,
)
from ciel.cli.submission.numbers import number_ranges

PLACES = [
    ("{}", "el"),
    ("{#}", "4"),
    ("a{}b{#}c{}", "aelb4cel"),
    ("{ }", "{ }"),
    ("{{}}", "{el}"),
    ("{##}", "{##}"),
    ("plain", "plain"),
]


@pytest.mark.parametrize("word, result", PLACES)
def test_places_take_the_element_and_its_number(word: str, result: str) -> None:
    assert substitute(word, Element(4, "el")) == result


@given(st.text())
def test_what_an_element_brings_is_not_looked_at_again(text: str) -> None:
    assert substitute("<{}>", Element(1, text)) == f"<{text}>"


def test_arguments_take_the_element_and_the_program_does_not() -> None:
    words, env = Template(["{}", "a", "{}{#}", "{}"]).fill(Element(7, "x"))
    assert words == ["{}", "a", "x7", "x"]
    assert env == {"CIEL_INDEX": "7", "CIEL_ELEMENT": "x"}


def test_without_an_array_nothing_is_touched() -> None:
    assert Template(["p", "{}", "{#}"]).fill(Element(1, None)) == (["p", "{}", "{#}"], {})


@pytest.mark.parametrize(
    "word, length, fits",
    [
        ("plain", WORD_MAX_BYTES - len("CIEL_ELEMENT="), True),
        ("plain", WORD_MAX_BYTES - len("CIEL_ELEMENT=") + 1, False),
        ("--option-value={}", WORD_MAX_BYTES - len("--option-value="), True),
        ("--option-value={}", WORD_MAX_BYTES - len("--option-value=") + 1, False),
        ("{}" * 100, WORD_MAX_BYTES // 100, True),
        ("{}" * 100, WORD_MAX_BYTES // 100 + 1, False),
    ],
)
def test_what_is_too_long_for_a_program_is_found_to_the_byte(
    word: str, length: int, fits: bool
) -> None:
    for text in ("x" * length, "\u00e9" * (length // 2) + "x" * (length % 2)):
        if fits:
            Template(["p", word]).fill(Element(1, text))
        else:
            with pytest.raises(ValueError, match=f"a program can receive {WORD_MAX_BYTES}"):
                Template(["p", word]).fill(Element(1, text))


def test_many_numbers_in_an_argument_count_as_well() -> None:
    template = Template(["p", "{#}" * 43000])
    template.fill(Element(999, "999"))
    with pytest.raises(ValueError, match="172000 bytes"):
        template.fill(Element(1000, "1000"))


def test_an_array_numbers_itself() -> None:
    source = Known.numbers(number_ranges("3-8:2"))
    assert source.total == 3
    assert source.take(2) == [Element(3, "3"), Element(5, "5")]
    assert not source.ended
    assert source.take(2) == [Element(7, "7")]
    assert source.ended
    assert source.place(Element(7, "7")) == "element 7"


# --- lines ----------------------------------------------------------------------------------------


def open_lines(path: Path) -> Lines:
    lines = Lines(str(path))
    lines.start(lambda: None)
    return lines


def wait_until_ready(lines: Lines) -> None:
    until_s = time.monotonic() + 10
    while not lines.is_ready():
        assert time.monotonic() < until_s
        time.sleep(0.001)


def all_of(lines: Lines, count: int = 7) -> list[Element]:
    found: list[Element] = []
    while not lines.ended:
        wait_until_ready(lines)
        found += lines.take(count)
    return found


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Writes to a pipe that is standard input."""
    read_fd, write_fd = os.pipe()
    with open(write_fd, "wb") as writer, open(read_fd, "rb"):
        monkeypatch.setattr(elements, "_open", lambda option, name: read_fd)
        yield write_fd
        writer.close()


def test_lines_are_numbered_from_one(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes("a\n\n\u00e9 b\nlast".encode())
    lines = open_lines(path)
    assert lines.total is None
    assert all_of(lines) == [
        Element(1, "a"),
        Element(2, ""),
        Element(3, "\u00e9 b"),
        Element(4, "last"),
    ]
    assert lines.total == 4


def test_lines_are_bytes_and_a_carriage_return_is_one_of_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"a\r\n\xff\nb\r\n")
    found = [element.text or "" for element in all_of(open_lines(path))]
    assert [os.fsencode(text) for text in found] == [b"a\r", b"\xff", b"b\r"]
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "line 1 ends with a carriage return" in said


def test_names_may_end_with_nul_and_hold_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "names"
    path.write_bytes(b"a\0b\nc\r\0\0last")
    lines = Lines(str(path), b"\0")
    lines.start(lambda: None)
    assert [element.text for element in all_of(lines)] == ["a", "b\nc\r", "", "last"]


def test_variables_take_the_element_too() -> None:
    template = Template(["p"], {"X": "<{}>{#}", "Y": "{ }"})
    assert template.fill(Element(7, "x")) == (
        ["p"], {"X": "<x>7", "Y": "{ }", "CIEL_INDEX": "7", "CIEL_ELEMENT": "x"}
    )  # fmt: skip
    assert template.fill(Element(1, None)) == (["p"], {"X": "<{}>{#}", "Y": "{ }"})
    with pytest.raises(ValueError, match="a program can receive"):
        template.fill(Element(1, "x" * (WORD_MAX_BYTES - 4)))


@given(
    st.lists(st.binary(max_size=40).map(lambda line: line.replace(b"\n", b""))),
    st.integers(1, 60),
    st.integers(1, 60),
)
def test_pieces_end_with_lines_and_are_all_there_is(
    lines: list[bytes], size_bytes: int, block_bytes: int
) -> None:
    content = b"".join([line + b"\n" for line in lines])
    pieces = Pieces.__new__(Pieces)
    pieces._size_bytes, pieces._rest, pieces._searched_bytes = size_bytes, bytearray(), 0
    blocks = [content[at : at + block_bytes] for at in range(0, len(content), block_bytes)]
    found = [piece for block in (*blocks, b"") for piece in pieces._whole(block)]
    assert b"".join(found) == content
    assert all(piece.endswith(b"\n") for piece in found)
    # One is longer than asked for only if it is a single line.
    assert all(len(piece) <= size_bytes or piece.count(b"\n") == 1 for piece in found)


def test_an_empty_file_has_no_lines(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert all_of(open_lines(tmp_path / "empty")) == []


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\n\0"))), st.booleans())
def test_lines_come_as_they_are(texts: list[str], last_ends: bool) -> None:
    if texts and not texts[-1]:
        last_ends = True  # else it is none
    content = "\n".join(texts) + ("\n" if texts and last_ends else "")
    fd = os.memfd_create("lines")
    with open(fd, "r+b") as file:
        file.write(content.encode())
        file.seek(0)
        lines = open_lines(Path(f"/proc/self/fd/{fd}"))
        assert [element.text for element in all_of(lines)] == texts


def test_a_line_can_be_taken_before_the_next_is_there(pipe: int) -> None:
    woken = threading.Event()
    lines = Lines("-")
    lines.start(woken.set)
    os.write(pipe, b"one\ntw")
    assert woken.wait(10)
    assert lines.take(100) == [Element(1, "one")]
    assert not lines.is_ready()
    assert not lines.ended
    os.write(pipe, b"o\n")
    wait_until_ready(lines)
    assert lines.take(100) == [Element(2, "two")]


def test_it_does_not_read_on_while_nobody_takes(pipe: int) -> None:
    os.set_blocking(pipe, False)
    lines = Lines("-")
    lines.start(lambda: None)
    written = refused = 0
    while refused < 20:
        try:
            written += os.write(pipe, b"line\n" * 1000)
            refused = 0
        except BlockingIOError:
            refused += 1
            time.sleep(0.005)
    assert written < (elements._BLOCKS_MAX + 2) * elements._BLOCK_BYTES + (64 << 10)


BAD = [(b"a\0b", "contains a NUL byte"), (b"x" * 200_000, "is longer")]


@pytest.mark.parametrize("line, said", BAD)
def test_lines_that_no_program_can_be_given_are_said(
    tmp_path: Path, line: bytes, said: str
) -> None:
    path = tmp_path / "some-lines"
    path.write_bytes(b"fine\n" + line)
    with pytest.raises(UsageError, match=f"some-lines line 2 {said}"):
        all_of(open_lines(path))


def test_a_line_without_an_end_is_not_read_to_its_end() -> None:
    lines = Lines("/dev/zero")
    lines.start(lambda: None)
    with pytest.raises(UsageError, match="line 1 is longer"):
        all_of(lines)


def test_what_cannot_be_read_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="absent: No such file"):
        Lines(str(tmp_path / "absent"))
    with pytest.raises(UsageError, match="it is a directory"):
        Lines(str(tmp_path))
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(UsageError, match="standard input is closed"):
        Lines("-")


def test_a_failing_read_is_raised_where_lines_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(fd: int, size: int) -> Any:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(sys, "stdin", io.StringIO())
    lines = Lines("-")
    monkeypatch.setattr(os, "read", fail)
    lines.start(lambda: None)
    with pytest.raises(OSError, match="Input/output error: 'standard input'"):
        all_of(lines)


def _all(source: elements.Source) -> list[Element]:
    return [element for batch in elements.batches(source) for element in batch]


def _file(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    return str(path)


def test_a_separator_splits_lines_into_values(tmp_path: Path) -> None:
    name = _file(tmp_path / "lines", b"a, b\nc\n,\n")
    found = _all(Lines(name, separator=re.compile(", ?")))
    assert [each.values for each in found] == [("a", "b"), ("c",), ("", "")]
    assert [each.text for each in found] == ["a, b", "c", ","]


def test_lines_are_grouped_and_the_last_group_may_be_shorter(tmp_path: Path) -> None:
    name = _file(tmp_path / "lines", b"a\nb\nc\nd\ne\n")
    found = _all(Grouped(Lines(name), 2))
    assert [(each.number, each.text, each.values) for each in found] == [
        (1, "a b", ("a", "b")),
        (2, "c d", ("c", "d")),
        (3, "e", ("e",)),
    ]
    assert _all(Grouped(Lines(_file(tmp_path / "none", b"")), 2)) == []


def test_inputs_are_combined_and_the_last_varies_fastest() -> None:
    first = [Element(1, "a"), Element(2, "b")]
    second = [Element(1, "c,d", None, ("c", "d")), Element(2, "e", None, ("e",))]
    source = combined([first, second])
    assert source.total == 4
    assert [each.values for each in _all(source)] == [
        ("a", "c", "d"),
        ("a", "e"),
        ("b", "c", "d"),
        ("b", "e"),
    ]


def test_a_source_that_is_read_to_its_end_knows_its_size(tmp_path: Path) -> None:
    source = known(Lines(_file(tmp_path / "lines", b"a\0b\0"), b"\0"))
    assert (source.total, [each.text for each in _all(source)]) == (2, ["a", "b"])
