"""Each mistake gets one clear message, the right exit status, and no traceback."""

from pathlib import Path

import pytest

from ciel.testing.homes import Home

PACKAGES = {
    "not JSON": ('{"start": {"handler": "stdinout",}', 2, ["line 1"]),
    "no start": ('{"package": {}}', 2, ["start"]),
    "no handler": ('{"start": {"args": {}}}', 2, ["handler"]),
    "a missing file": (
        '{"package": {"x": {"filename": "absent"}}, "start": {"handler": "sync"}}',
        2,
        ["absent"],
    ),
    "an unknown executor": ('{"start": {"handler": "cobol", "args": {}}}', 1, ["cobol"]),
    "no command line": ('{"start": {"handler": "stdinout", "args": {}}}', 1, ["command_line"]),
}


@pytest.mark.parametrize("text, status, words", PACKAGES.values(), ids=PACKAGES)
def test_a_bad_package(home: Home, text: str, status: int, words: list[str]) -> None:
    package = home.path / "bad.pack"
    package.write_text(text)
    _expect(home, ["ciel", "run", str(package)], status, words)


COMMANDS = {
    "a missing program": (["no-such-program"], 1, ["no-such-program", "No such file", "worker"]),
    "a missing program by path": (["./absent"], 1, ["absent", "No such file"]),
    "not executable": (["/etc/passwd"], 1, ["/etc/passwd", "Permission denied"]),
    "a directory": (["/tmp"], 1, ["/tmp", "Permission denied"]),
    "an exit status": (["sh", "-c", "echo why >&2; exit 3"], 1, ["exit status 3", "why"]),
    "a signal": (["sh", "-c", "kill -SEGV $$"], 1, ["SIGSEGV"]),
}


@pytest.mark.parametrize("argv, status, words", COMMANDS.values(), ids=COMMANDS)
def test_a_program_that_fails(home: Home, argv: list[str], status: int, words: list[str]) -> None:
    _expect(home, ["ciel", "submit", "--", *argv], status, words)


USAGE = {
    "an unknown option": (["submit", "--bogus", "--", "true"], ["--bogus"]),
    "an unknown command": (["fly"], ["fly"]),
    "no program": (["submit"], ["no program"]),
    "a backward array": (["submit", "--array", "5-1", "--", "true"], ["5-1"]),
    "zero slots": (["submit", "--slots", "0", "--", "true"], ["0"]),
    "a missing package": (["run", "absent.pack"], ["absent.pack"]),
}


@pytest.mark.parametrize("argv, words", USAGE.values(), ids=USAGE)
def test_a_wrong_command_line(home: Home, argv: list[str], words: list[str]) -> None:
    _expect(home, ["ciel", *argv], 2, words)


def test_a_master_where_something_else_listens(home: Home, tmp_path: Path) -> None:
    done = home.run("ciel", "--master", "http://127.0.0.1:9", "status")
    assert done.returncode in (2, 3)
    assert "Traceback" not in done.stderr


def test_daemons_refuse_bad_options(home: Home) -> None:
    _expect(home, ["ciel-master", "--bogus"], 2, ["--bogus"])
    _expect(home, ["ciel-worker", "--slots", "many"], 2, ["many"])
    _expect(home, ["ciel-worker"], 3, ["no master"])
    _expect(home, ["ciel-master", "--listen", "0.0.0.0:0"], 3, ["--new-key"])


def _expect(home: Home, argv: list[str], status: int, words: list[str]) -> None:
    done = home.run(*argv)
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr, done.stderr
