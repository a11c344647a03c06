"""`ciel sw check` and `ciel sw fmt`, and the reading of scripts."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from ciel.cli.main import main
from ciel.cli.skywriting import source as sw_source

GOOD = "x = [1,2];\nreturn len(x);  // how many\n"
FORMATTED = "x = [1, 2];\nreturn len(x);  // how many\n"
BAD = "x = 1 +;\ny = f(2;\nreturn x;\n"


@pytest.fixture(autouse=True)
def _in_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in {"good.sw": GOOD, "bad.sw": BAD, "done.sw": FORMATTED}.items():
        Path(name).write_text(text)


# --- check ----------------------------------------------------------------------------------------


def test_a_script_without_fault_is_passed_over_in_silence(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert main(["sw", "check", "good.sw", "done.sw"]) == 0
    assert capfd.readouterr() == ("", "")


def test_every_error_is_told_at_once_with_its_place(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["sw", "check", "bad.sw", "good.sw"]) == 1
    out, err = capfd.readouterr()
    assert "  bad.sw, line 1, column 8\n    x = 1 +;\n           ^\n" in out
    assert "  bad.sw, line 2, column 8\n    y = f(2;\n           ^\n" in out
    assert out.count("error: ") == 2
    assert err == "ciel: 2 errors\n"


def test_a_warning_is_no_error(capfd: pytest.CaptureFixture[str]) -> None:
    Path("odd.sw").write_text("return lenght([1]);\n")
    assert main(["sw", "check", "odd.sw"]) == 0
    out, err = capfd.readouterr()
    assert out.startswith('warning: unknown name "lenght"')
    assert "  odd.sw, line 1, column 8\n" in out
    assert err == "ciel: 1 warning\n"


def test_problems_are_told_as_json(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["sw", "check", "--json", "bad.sw"]) == 1
    out, err = capfd.readouterr()
    first, second = map(json.loads, out.splitlines())
    assert (first["file"], first["line"], first["column"], first["kind"]) == (
        "bad.sw", 1, 8, "error",
    )  # fmt: skip
    assert second["line"] == 2
    assert "\n" not in first["message"]
    assert err == ""


def test_what_cannot_be_read_keeps_no_other_from_being_looked_through(
    capfd: pytest.CaptureFixture[str],
) -> None:
    Path("bytes.sw").write_bytes(b"// fine\nx = '\xff';\n")
    assert main(["sw", "check", "absent.sw", "bad.sw", ".", "bytes.sw"]) == 2
    out, err = capfd.readouterr()
    assert out.count("error: ") == 2
    assert err.splitlines() == [
        "ciel: absent.sw: No such file or directory",
        "ciel: .: Is a directory",
        "ciel: bytes.sw: line 2 is not UTF-8",
        "ciel: 2 errors",
    ]


def test_a_script_may_come_on_standard_input(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = os.dup(0)
    with open("bad.sw") as file:
        os.dup2(file.fileno(), 0)
    try:
        assert main(["sw", "check", "-"]) == 1
    finally:
        os.dup2(before, 0)
        os.close(before)
    assert "  standard input, line 1, column 8\n" in capfd.readouterr().out


def test_what_steers_a_terminal_is_shown_escaped(capfd: pytest.CaptureFixture[str]) -> None:
    Path("a\x1b[31m.sw").write_text("x = '\x1b[2J' 3;")
    assert main(["sw", "check", "a\x1b[31m.sw"]) == 1
    out, _ = capfd.readouterr()
    assert "\x1b" not in out
    assert "a\\x1b[31m.sw" in out


def test_a_script_of_any_length_is_read_but_for_what_no_script_is(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sw_source, "SOURCE_MAX_BYTES", 1 << 20)
    Path("long.sw").write_text("// " + "x" * (1 << 20))
    assert main(["sw", "check", "long.sw"]) == 2
    assert capfd.readouterr().err == "ciel: long.sw: longer than 1 MiB, the limit for scripts\n"


def test_line_ends_of_other_systems_are_read(capfd: pytest.CaptureFixture[str]) -> None:
    Path("dos.sw").write_bytes(b"\xef\xbb\xbfx = 1;\r\nreturn x;\r\n")
    assert main(["sw", "check", "dos.sw"]) == 0
    assert capfd.readouterr() == ("", "")


# --- fmt ------------------------------------------------------------------------------------------


def test_a_script_is_printed_formatted_and_stays_as_it_is(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert main(["sw", "fmt", "good.sw", "done.sw"]) == 0
    assert capfd.readouterr() == (FORMATTED * 2, "")
    assert Path("good.sw").read_text() == GOOD


def test_a_script_is_written_back_with_its_mode_and_through_a_link(
    capfd: pytest.CaptureFixture[str],
) -> None:
    Path("good.sw").chmod(0o750)
    Path("link.sw").symlink_to("good.sw")
    assert main(["sw", "fmt", "-w", "link.sw", "done.sw"]) == 0
    assert capfd.readouterr() == ("", "")
    assert Path("link.sw").is_symlink()
    assert Path("good.sw").read_text() == FORMATTED
    assert stat.S_IMODE(Path("good.sw").stat().st_mode) == 0o750
    assert sorted(os.listdir()) == ["bad.sw", "done.sw", "good.sw", "link.sw"]


def test_what_is_formatted_already_is_not_written() -> None:
    before = Path("done.sw").stat()
    assert main(["sw", "fmt", "--write", "done.sw"]) == 0
    after = Path("done.sw").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_those_that_are_not_formatted_are_named(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["sw", "fmt", "--check", "good.sw", "done.sw"]) == 1
    assert capfd.readouterr() == ("good.sw\n", "")
    assert main(["sw", "fmt", "--check", "done.sw"]) == 0
    assert Path("good.sw").read_text() == GOOD


def test_a_script_with_errors_is_not_formatted(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["sw", "fmt", "-w", "bad.sw", "good.sw"]) == 1
    out, err = capfd.readouterr()
    assert out == ""
    assert err.count("ciel: error: ") == 2
    assert Path("bad.sw").read_text() == BAD
    assert Path("good.sw").read_text() == FORMATTED


def test_a_script_that_cannot_be_written_stays_whole_and_is_said(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    assert main(["sw", "fmt", "-w", "good.sw", "done.sw"]) == 2
    said = "ciel: good.sw: it cannot be written: No space left on device\n"
    assert capfd.readouterr() == ("", said)
    assert Path("good.sw").read_text() == GOOD
    assert sorted(os.listdir()) == ["bad.sw", "done.sw", "good.sw"]


@pytest.mark.parametrize(
    "words, said",
    [
        (["check"], "required: FILE"),
        (["fmt"], "required: FILE"),
        (["fmt", "-w", "-"], "standard input cannot be written back"),
        (["fmt", "-w", "--check", "a"], "not allowed with argument"),
        (["check", "--bogus", "a"], "unrecognized arguments: --bogus"),
    ],
)
def test_a_wrong_command_line_is_said(
    words: list[str], said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["sw", *words]) == 2
    err = capfd.readouterr().err
    assert said in err
    assert err.startswith(f"ciel sw {words[0]}: ")


def test_a_word_like_a_verb_is_no_missing_script(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["sw", "chek", "a.sw"]) == 2
    assert capfd.readouterr().err == "ciel: chek: the file does not exist (did you mean check?)\n"
    assert main(["sw", "none.sw"]) == 2
    assert capfd.readouterr().err == "ciel: none.sw: No such file or directory\n"


def test_help_is_on_standard_output(capfd: pytest.CaptureFixture[str]) -> None:
    for words in (["sw", "--help"], ["sw", "check", "--help"], ["sw", "fmt", "-h"]):
        assert main(words) == 0
        out, err = capfd.readouterr()
        assert out.startswith("usage: ciel sw")
        assert err == ""
