import argparse
import os
import subprocess
from pathlib import Path

import pytest

from ciel.cli.commands import submit
from ciel.cli.outcome import UsageError
from ciel.cli.submission.numbers import number_ranges
from ciel.cli.submission.options import parse
from ciel.cli.submission.programs import files_of, program_of


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
    assert [number for number, _ in number_ranges(text)] == numbers


@pytest.mark.parametrize(
    "text, texts",
    [
        ("001-003", ["001", "002", "003"]),
        ("08-10", ["08", "09", "10"]),
        ("1-010:9", ["001", "010"]),
        ("0-2", ["0", "1", "2"]),
        ("1,3,5-7", ["1", "3", "5", "6", "7"]),
        ("7,01", ["7", "01"]),
    ],
)
def test_numbers_keep_their_leading_zeros_and_their_order(text: str, texts: list[str]) -> None:
    assert [shown for _, shown in number_ranges(text)] == texts


def test_a_percent_sign_says_how_many_run_at_once() -> None:
    numbers = number_ranges("1-100%4")
    assert (len(numbers), numbers.at_once) == (100, 4)
    assert number_ranges("1-100").at_once == 0
    with pytest.raises(argparse.ArgumentTypeError, match="at least 1"):
        number_ranges("1-100%0")


@pytest.mark.parametrize("text", ["1,1", "1-5,3", "1-9:2,2-9:3"])
def test_no_number_is_taken_twice(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="twice"):
        number_ranges(text)
    assert len(number_ranges("1-9:2,2-8:2")) == 9


@pytest.mark.parametrize(
    "text", ["", "a", "3-1", "1-", "-1", "1-2:0", "1-2-3", "1.5", "1-1e9", "²", "9" * 99]
)
def test_what_is_no_range_is_said(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is neither a range A-B"):
        number_ranges(text)


def test_an_array_of_more_than_can_be_meant_is_refused() -> None:
    assert len(number_ranges("1-10000000")) == 10_000_000
    for text in ("1-10000001", f"0-{'9' * 18}", "1-9000000,10000000-19000000"):
        with pytest.raises(argparse.ArgumentTypeError, match="10,000,000 are allowed"):
            number_ranges(text)


def test_a_program_with_a_slash_is_found_from_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert program_of(["./run", "./arg"]) == [f"{tmp_path}/run", "./arg"]
    assert program_of(["run"]) == ["run"]


def test_what_cannot_be_a_program_is_said() -> None:
    with pytest.raises(UsageError, match="name is empty"):
        program_of([""])


def test_files_are_checked_before_anything_starts(tmp_path: Path) -> None:
    for name in ("a/f", "b/f"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    first, second = tmp_path / "a/f", tmp_path / "b/f"
    assert files_of([first]) == {"f": first}
    with pytest.raises(UsageError, match="has the same name"):
        files_of([first, second])
    with pytest.raises(UsageError, match="does not exist"):
        files_of([tmp_path / "none"])
    with pytest.raises(UsageError, match="is not a regular file"):
        files_of([tmp_path])


@pytest.mark.parametrize(
    "words, said",
    [
        ([], "no program"),
        (["--array", "1-2", "--each-line", "f", "--", "p"], "not allowed with argument"),
        (["--detach", "--out", "d", "--", "p"], "--out needs a command that waits"),
        (["--detach", "-j", "2", "--", "p"], "-j (or %N in --array) needs a command that waits"),
        (["--array", "1-2", "--name", "n{}", "p"], "--name is the name of the job"),
        (["-0", "p"], "-0 is only valid with --each-line"),
        (["--colsep", ",", "p"], "--colsep is only valid with --each-line"),
        (["--each-line", "f", "--colsep", "(,)", "p"], "write (?:…) instead of (…)"),
        (["--each-line", "f", "--colsep", "x*", "p"], "matches nothing, so it separates nothing"),
        (["--each-line", "f", "--colsep", "[", "p"], "'[' is not a regular expression"),
        (["--each-line", "-", "--each-line", "-", "p"], "standard input can be read only once"),
        (["--each-line", "f", "-n", "2", "-C", ",", "p"], "-n takes whole lines of one input"),
        (["--resume", "p"], "--resume needs the log of the earlier run"),
        (["--halt", "often", "p"], "'often': write never, or now or soon with a condition"),
        (["--pipe", "--halt", "now,fail=1%", "p"], "--pipe does not know how many pieces there"),
        (["--detach", "--halt", "now,fail=1", "p"], "--halt (--max-fails holds also then) needs a"),
        (["--results", "r", "--out", "o", "p"], "not allowed with argument"),
        (["--results", "r", "--stderr", "p"], "--results writes all that a run prints to files"),
        (["--check", "p"], "--check examines a job file"),
        (["--file", "f", "p"], "the job file says what runs: remove the program"),
        (["--file", "f", "--slots", "2"], "the job file takes the place of --slots: remove it"),
        (["--block", "1M", "p"], "--block is only valid with --pipe"),
        (["--pipe", "--array", "1-2", "p"], "not allowed with argument"),
        (["--slots", "0", "--", "p"], "'0' is not a number from 1 to 1024"),
        (["--slots", "5000", "--", "p"], "'5000' is not a number from 1 to 1024"),
        (["--retries", "-1", "--", "p"], "'-1' is not a number from 0 to 1000"),
        (["--priority", "1001", "--", "p"], "'1001' is not a number from -1000 to 1000"),
        (["--priority", "high", "--", "p"], "'high' is not a number from -1000 to 1000"),
        (["--policy", "best", "--", "p"], "invalid choice: 'best'"),
        (
            ["--retry-on", "SIGNAL", "--", "p"],
            "'SIGNAL' is not a kind of failure: use RUNTIME_EXCEPTION",
        ),
        (["--retry-on", "", "--", "p"], "'' is not a kind of failure"),
        (["--retry-delay", "2d", "--", "p"], "'2d' is more than a day"),
        (["--memory", "lots", "--", "p"], "'lots' is not a size; write a size such as 8GiB"),
        (["--memory", "9999999999GiB", "--", "p"], "'9999999999GiB' is more than 9"),
        (["--timeout", "soon", "--", "p"], "'soon' is not a time span"),
        (["--timeout", "0", "--", "p"], "'0' must be more than 0"),
        (["--timeout", "99999d", "--", "p"], "at most 1000000000s"),
        (["--bogus", "--", "p"], "unrecognized arguments: --bogus"),
    ],
)
def test_wrong_usage_is_one_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(words)
    assert caught.value.code == 2
    text = capsys.readouterr().err
    assert said in text
    assert text.count("\n") == 1


@pytest.mark.parametrize(
    "words, program",
    [
        (
            ["./sim.sh", "--name", "run7", "--out", "results"],
            ["./sim.sh", "--name", "run7", "--out", "results"],
        ),
        (["ls", "-l"], ["ls", "-l"]),
        (["--slots", "2", "ls", "--json"], ["ls", "--json"]),
        (["--name", "x", "--", "--odd", "--"], ["--odd", "--"]),
        (["p", "--", "-x"], ["p", "--", "-x"]),
        (["--array=1-2", "--", "p", "--", "{}"], ["p", "--", "{}"]),
        (["--stderr", "p", "--help"], ["p", "--help"]),
    ],
)
def test_the_first_word_that_is_no_option_ends_ours(words: list[str], program: list[str]) -> None:
    assert parse(words).program == program


def test_options_of_the_program_are_its_own() -> None:
    assert parse(["--", "grep", "--json", "-m", "1"]).program == [
        "grep",
        "--json",
        "-m",
        "1",
    ]


def test_a_name_that_cannot_be_sent_is_said() -> None:
    with pytest.raises(UsageError, match="--name is not UTF-8"):
        parse(["--name", "\udcff", "--", "p"])


def test_a_dry_run_prints_the_commands_for_a_shell_and_needs_no_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CIEL_MASTER", "http://127.0.0.1:1")
    (tmp_path / "files").write_bytes(b"a.txt\0d/b c.tar.gz\0it's\xff\0")
    (tmp_path / "convert").write_text("#!/bin/sh\nprintf '<%s>' \"$@\"\n")
    (tmp_path / "convert").chmod(0o755)
    words = ["--after", "last", "--each-line", "files", "-0", "--max-fails", "10", "--dry-run"]
    assert submit.main("ciel submit", [*words, "--", "./convert", "{}", "{/.}.png"]) == 0
    commands = capfdbinary.readouterr().out
    program = os.fsencode(tmp_path) + b"/convert"
    assert commands.splitlines() == [
        program + b" a.txt a.png",
        program + b" 'd/b c.tar.gz' 'b c.tar.png'",
        program + b" 'it'\"'\"'s\xff' 'it'\"'\"'s\xff.png'",
    ]
    shell = subprocess.run(["sh"], input=commands, capture_output=True, check=True)
    assert shell.stdout == b"<a.txt><a.png><d/b c.tar.gz><b c.tar.png><it's\xff><it's\xff.png>"


def test_a_dry_run_names_the_directory_and_the_variables(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["--dry-run", "--cwd", str(tmp_path), "--env", "A=x {}", "--array", "1-1", "echo", "{}"]
    assert submit.main("ciel submit", words) == 0
    assert capfd.readouterr().out == f"cd {tmp_path} && A='x 1' echo 1\n"
