"""Checks that each reason why a program cannot be executed has its own text, after a real
attempt.
"""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from ciel.launch import LaunchSpec, ProgramExited, ProgramFailed, Stage, why_refused

Run = Callable[[LaunchSpec], ProgramExited | ProgramFailed]
Why = Callable[..., str]


@pytest.fixture
def why(run: Run, tmp_path: Path) -> Why:
    def why(*argv: str) -> str:
        event = run(LaunchSpec(argv, cwd=tmp_path, env={"PATH": str(tmp_path)}))
        assert isinstance(event, ProgramFailed)
        assert event.stage is Stage.EXEC
        return why_refused(argv[0], event.errno, cwd=str(tmp_path), path=str(tmp_path))

    return why


def make(path: Path, content: bytes = b"", mode: int = 0o700) -> None:
    path.write_bytes(content)
    path.chmod(mode)


def test_the_file_does_not_exist(why: Why, tmp_path: Path) -> None:
    assert why("./ours") == "there is no such file"
    assert why(f"{tmp_path}/deep/ours") == "there is no such file"


def test_no_program_has_that_name(why: Why) -> None:
    assert why("ours") == (
        "its PATH contains no program of that name; install the program there, or use its path"
    )


def test_the_file_is_a_dangling_link(why: Why, tmp_path: Path) -> None:
    (tmp_path / "ours").symlink_to("/nowhere/program")
    assert why("./ours") == "it is a link to '/nowhere/program', which does not exist there"


@pytest.mark.parametrize(
    "line, interpreter",
    [
        (b"#!/no/such", "/no/such"),
        (b"#! \t/no/such -x y\necho", "/no/such"),
        (b"#!/bin/sh\r\necho", "/bin/sh\r"),
        (b"#!/" + b"x" * 200, "/" + "x" * 200),
    ],
)
def test_the_interpreter_of_a_script_does_not_exist(
    why: Why, tmp_path: Path, line: bytes, interpreter: str
) -> None:
    make(tmp_path / "ours", line)
    expected = f"the interpreter that its first line names, {interpreter!r}, does not exist there"
    assert why("./ours") == why("ours") == expected


def test_the_loader_of_a_program_does_not_exist(why: Why, tmp_path: Path) -> None:
    content = Path("/bin/true").read_bytes()
    assert content.count(b"/ld-linux") == 1
    make(tmp_path / "ours", content.replace(b"/ld-linux", b"/ld-lunix"))
    expected = "its dynamic loader does not exist there; was it built for another system?"
    assert why("./ours") == expected


def test_the_file_is_not_executable(why: Why, tmp_path: Path) -> None:
    make(tmp_path / "ours", b"#!/bin/sh\n", 0o600)
    assert why("./ours") == "it is not executable; chmod +x makes it so"
    expected = "the file of that name in its PATH is not executable; chmod +x makes it so"
    assert why("ours") == expected


def test_the_file_is_a_directory_or_a_pipe(why: Why, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo", 0o700)
    assert why("/") == "it is a directory"
    assert why("./fifo") == "it is not a regular file"


def test_the_file_is_empty(why: Why, tmp_path: Path) -> None:
    make(tmp_path / "ours")
    assert why("./ours") == why("ours") == "it is empty"


@pytest.mark.parametrize("content", [b"echo text\n", b"\x7fELF" + bytes(100), b"\0"])
def test_the_file_is_not_a_program(why: Why, tmp_path: Path, content: bytes) -> None:
    make(tmp_path / "ours", content)
    assert why("./ours") == (
        "it is neither a program for that machine nor a script that begins with '#!'"
    )


def test_the_arguments_are_too_long(why: Why, tmp_path: Path) -> None:
    (tmp_path / "ours").symlink_to("/bin/true")
    expected = "its arguments and environment are longer than the system allows"
    assert why("./ours", "x" * (1 << 20)) == expected


def test_the_file_is_open_for_writing(why: Why, tmp_path: Path) -> None:
    make(tmp_path / "ours", Path("/bin/true").read_bytes())
    with (tmp_path / "ours").open("ab"):
        assert why("./ours") == "Text file busy"


def test_a_file_that_has_changed_since_gives_some_reason(tmp_path: Path) -> None:
    """The reason comes from a second look at the file, which must not fail."""
    file = tmp_path / "ours"
    for number in range(1, 40):
        assert why_refused("./ours", number, cwd=str(tmp_path), path="")
    make(file, mode=stat.S_IRWXU)
    for number in range(1, 40):
        assert why_refused("./ours", number, cwd=str(tmp_path), path="")
