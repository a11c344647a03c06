"""Checks that each mistake gives one clear message, the right exit status, and no traceback."""

import pytest

from ciel.testing.homes import Home

PACKAGES = {
    "not JSON": ('{"start": {"handler": "stdinout",}', 2, ["bad.pack:1: not JSON"]),
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


USAGE = {
    "an unknown option": (["submit", "--bogus", "--", "true"], ["--bogus"]),
    "an unknown command": (["fly"], ["fly"]),
    "no program": (["submit"], ["no program"]),
    "a missing package": (["run", "absent.pack"], ["absent.pack"]),
}


@pytest.mark.parametrize("argv, words", USAGE.values(), ids=USAGE)
def test_a_wrong_command_line(home: Home, argv: list[str], words: list[str]) -> None:
    _expect(home, ["ciel", *argv], 2, words)


@pytest.mark.slow
def test_daemons_need_a_master_and_a_key(home: Home) -> None:
    _expect(home, ["ciel-worker"], 3, ["no master"])
    everywhere = ["ciel-master", "--listen", "0.0.0.0:0"]
    _expect(home, everywhere, 2, ["--advertise HOST:0"])
    _expect(home, [*everywhere, "--advertise", "192.0.2.1:0"], 3, ["--new-key"])


def _expect(home: Home, argv: list[str], status: int, words: list[str]) -> None:
    done = home.run(*argv)
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr, done.stderr
