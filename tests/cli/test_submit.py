import argparse
import io
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciel.cli import submit
from ciel.cli.outcome import UsageError
from ciel.cli.submit import Element, number_range, substitute


@pytest.mark.parametrize(
    "text, numbers",
    [
        ("1-3", [1, 2, 3]),
        ("0-0", [0]),
        ("7", [7]),
        ("1-10:4", [1, 5, 9]),
        ("5-6:9", [5]),
    ],
)
def test_a_range_holds_both_ends(text: str, numbers: list[int]) -> None:
    assert list(number_range(text)) == numbers


@pytest.mark.parametrize(
    "text", ["", "a", "3-1", "1-", "-1", "1-2:0", "1-2-3", "1.5", "²", "9" * 99]
)
def test_what_is_no_range_is_said(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not A-B"):
        number_range(text)


@pytest.mark.parametrize(
    "word, result",
    [
        ("{}", "el"),
        ("{#}", "4"),
        ("a{}b{#}c{}", "aelb4cel"),
        ("{ }", "{ }"),
        ("{{}}", "{el}"),
        ("{##}", "{##}"),
        ("plain", "plain"),
    ],
)
def test_places_take_the_element_and_its_number(word: str, result: str) -> None:
    assert substitute(word, Element(4, "el")) == result


@given(st.text())
def test_what_an_element_brings_is_not_looked_at_again(text: str) -> None:
    assert substitute("<{}>", Element(1, text)) == f"<{text}>"


def elements(*words: str) -> list[Element]:
    return submit._elements(submit._parse([*words, "--", "prog"]))


def test_one_program_is_no_array() -> None:
    assert elements() == [Element(1, None)]


def test_an_array_numbers_itself() -> None:
    assert elements("--array", "3-4") == [Element(3, "3"), Element(4, "4")]


def test_lines_are_numbered_from_one(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes("a\r\n\n\u00e9 b\nlast".encode())
    assert elements("--each-line", str(path)) == [
        Element(1, "a"),
        Element(2, ""),
        Element(3, "\u00e9 b"),
        Element(4, "last"),
    ]


def test_an_empty_file_has_no_lines(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert elements("--each-line", str(tmp_path / "empty")) == []


def test_lines_come_from_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"x\ny\n")))
    assert [element.text for element in elements("--each-line", "-")] == ["x", "y"]


@pytest.mark.parametrize("line, said", [(b"\xff", "is not UTF-8"), (b"a\0b", "holds a zero byte")])
def test_lines_that_no_program_can_be_given_are_said(
    tmp_path: Path, line: bytes, said: str
) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"fine\n" + line)
    with pytest.raises(UsageError, match=f"line 2 {said}"):
        elements("--each-line", str(path))


def test_a_program_with_a_slash_is_found_from_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert submit._program(["./run", "./arg"]) == [f"{tmp_path}/run", "./arg"]
    assert submit._program(["run"]) == ["run"]


@pytest.mark.parametrize("words, said", [([""], "name is empty"), (["p", "\udcff"], "argument 1")])
def test_what_cannot_be_a_program_is_said(words: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        submit._program(words)


def test_variables_are_set_or_taken_from_ours() -> None:
    assert submit._environment(["A=1", "B=x=y", "C="], {}) == {"A": "1", "B": "x=y", "C": ""}
    assert submit._environment(["HOME"], {"HOME": "/h"}) == {"HOME": "/h"}
    for wrong in ("=x", "NO"):
        with pytest.raises(UsageError):
            submit._environment([wrong], {})


def test_files_are_checked_before_anything_starts(tmp_path: Path) -> None:
    for name in ("a/f", "b/f"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    first, second = tmp_path / "a/f", tmp_path / "b/f"
    assert submit._files([first]) == {"f": first}
    with pytest.raises(UsageError, match="has the same name"):
        submit._files([first, second])
    with pytest.raises(UsageError, match="there is no such file"):
        submit._files([tmp_path / "none"])
    with pytest.raises(UsageError, match="is no regular file"):
        submit._files([tmp_path])


@pytest.mark.parametrize(
    "words, said",
    [
        ([], "no program"),
        (["--array", "1-2", "--each-line", "f", "--", "p"], "not allowed with argument"),
        (["--detach", "--out", "d", "--", "p"], "--out needs somebody who waits"),
        (["--slots", "0", "--", "p"], "'0' is not a number from 1"),
        (["--slots", "5000", "--", "p"], "5000 is more than 1024"),
        (["--timeout", "soon", "--", "p"], "'soon' is not a time span"),
        (["--bogus", "--", "p"], "unrecognized arguments: --bogus"),
    ],
)
def test_wrong_usage_is_one_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        submit._parse(words)
    assert caught.value.code == 2
    text = capsys.readouterr().err
    assert said in text
    assert text.count("\n") == 1


def test_options_of_the_program_are_its_own() -> None:
    assert submit._parse(["--", "grep", "--json", "-m", "1"]).program == [
        "grep",
        "--json",
        "-m",
        "1",
    ]
