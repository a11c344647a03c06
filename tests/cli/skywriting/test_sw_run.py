"""The command line of `sw-job` and `ciel sw`, and the printing of values."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ciel.cli.skywriting import sw_job
from ciel.cli.skywriting.script import parse, print_value, variables
from ciel.client.errors import TaskFailedError


def test_options_come_before_the_script_and_all_after_it_are_its_arguments() -> None:
    args = parse("sw-job", ["-E", "A=1", "-e", "-v", "a.sw", "-E", "B", "--json", "--", "-h", "-"])
    assert args.script == ["a.sw", "-E", "B", "--json", "--", "-h", "-"]
    assert (args.variables, args.env, args.verbose, args.json) == (["A=1"], True, True, False)


@pytest.mark.parametrize("late", ["-E", "-EN=3", "--name=x", "-h", "--quiet"])
def test_an_option_after_the_script_is_told_of_unless_it_is_meant(
    late: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (["--", "a.sw", late], ["a.sw", "--", late], ["a.sw", "-5", "-", "--nothing"]):
        parse("sw-job", words)
    assert capsys.readouterr().err == ""
    assert parse("sw-job", ["a.sw", "x", late]).script == ["a.sw", "x", late]
    said = capsys.readouterr().err
    assert said.startswith(f"ciel: {late} follows a.sw, so it is an argument of that program, not")


def test_all_options_of_the_original_are_known() -> None:
    words = ["--master", "u", "--id", "i", "--env", "--verbose", "--package-file", "k", "f"]
    short = ["-m", "u", "-i", "i", "-e", "-v", "-p", "k", "f"]
    for given in (words, short):
        args = parse("sw-job", [*given, "-p", "l", "g", "s.sw"])
        assert (args.master, args.name, args.env, args.verbose) == ("u", "i", True, True)
        assert args.package == [["k", "f"], ["l", "g"]]


def test_a_script_may_be_standard_input_or_look_like_an_option() -> None:
    assert parse("sw-job", ["-", "a"]).script == ["-", "a"]
    assert parse("sw-job", ["--", "-odd.sw", "--"]).script == ["-odd.sw", "--"]


def test_only_the_prompt_needs_no_script() -> None:
    for words in ([], ["-m", "u"]):
        assert parse("ciel sw", words, needs_script=False).script is None
        with pytest.raises(SystemExit) as caught:
            parse("sw-job", words)
        assert caught.value.code == 2


@pytest.mark.parametrize(
    "words, said",
    [
        (["--bogus", "a.sw"], "unrecognized arguments: --bogus (sw-job --help"),
        (["--verbos", "a.sw"], "unrecognized arguments: --verbos (did you mean --verbose?)"),
        (["-p", "key"], "-p/--package-file: expected 2 arguments"),
        (["-m"], "-m/--master: expected one argument"),
        (["--workers", "0", "a.sw"], "'0' is not a number from 1 to 256"),
        ([], "sw-job: a SCRIPT is required (sw-job --help"),
        (["--"], "a SCRIPT is required"),
        (["-p", "key", "a.sw"], "a SCRIPT is required; -p took key and a.sw (sw-job"),
    ],
)
def test_a_wrong_command_line_is_said(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sw_job.main(words) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert said in err
    assert err.startswith("sw-job: ")


OURS = {"HOME": "/h", "CIEL_ACCESS": "a", "MY_TOKEN": "t", "ODD": "\udcff", "A": "ours"}


def test_the_environment_of_a_script_is_what_it_was_given() -> None:
    assert variables(["A=1=2", "B="], OURS, whole=False) == {"A": "1=2", "B": ""}
    assert variables(["MY_TOKEN"], OURS, whole=False) == {"MY_TOKEN": "t"}


def test_our_whole_environment_goes_without_secrets_and_what_is_no_text() -> None:
    assert variables(["A=1"], OURS, whole=True) == {"HOME": "/h", "A": "1"}
    assert variables(["MY_TOKEN"], OURS, whole=True) == {"HOME": "/h", "A": "ours", "MY_TOKEN": "t"}


@pytest.mark.parametrize(
    "words, said",
    [
        (["-E", "=x", "{}"], "-E =x: expected NAME=VALUE"),
        (
            ["-E", "ABSENT_HERE", "{}"],
            "-E ABSENT_HERE: this variable is not set; write ABSENT_HERE=VALUE",
        ),
        (["-p", "k", "absent", "{}"], "-p k absent: the file does not exist"),
        (["-p", "k", "/etc", "{}"], "-p k /etc: it is not a regular file"),
        (["-p", "k", "{}", "-p", "k", "{}", "{}"], "-p k {}: {} has the same key"),
        (["-p", "\udcff", "{}", "{}"], "-p: a key is not UTF-8"),
        (["-i", "\udcff", "{}"], "--name is not UTF-8"),
        (["{}", "a", "\udcff"], "argument 2 is not UTF-8"),
        (["absent.sw"], "absent.sw: No such file or directory"),
        (["/etc"], "/etc: Is a directory"),
    ],
)
def test_what_a_script_cannot_be_given_is_said_before_anything_starts(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "script.sw"
    script.write_text("return 1;")
    assert sw_job.main([word.replace("{}", str(script)) for word in words]) == 2
    assert capsys.readouterr().err == f"ciel: {said.replace('{}', str(script))}\n"


# --- values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content, shown",
    [
        (b"42", "42"),
        (b"null", "null"),
        (b'{"a":[1,2.5,true],"b":"\xc3\xbc\\n"}', '{"a": [1, 2.5, true], "b": "\u00fc\\n"}'),
        (b'{"__ref__":["f2","x"]}', '{"__ref__": ["f2", "x"]}'),
        (b'{"__ref__":"mine"}', '{"__ref__": "mine"}'),
        (b"9" * 100_000, "9" * 100_000),
        (b"[" * 5000 + b"]" * 5000, "[" * 5000 + "]" * 5000),
    ],
)
def test_a_value_is_shown_as_json(
    content: bytes, shown: str, capfd: pytest.CaptureFixture[str]
) -> None:
    print_value(content)
    assert capfd.readouterr().out == f"{shown}\n"


def test_a_value_with_an_error_in_it_is_one() -> None:
    with pytest.raises(TaskFailedError, match="the story"):
        print_value(b'{"a":[{"__ref__":["err","x","WORD","the story"]}]}')


def test_the_command_is_there() -> None:
    assert Path(sys.executable).with_name("sw-job").exists()
