"""Each reason for which a program is not executed has words of its own, after a real attempt."""

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


def test_nothing_is_there(why: Why, tmp_path: Path) -> None:
    assert why("./ours") == "there is no such file"
    assert why(f"{tmp_path}/deep/ours") == "there is no such file"


def test_no_program_has_that_name(why: Why) -> None:
    assert why("ours") == (
        "no program of that name is in its PATH; install it there, or give a path to it"
    )


def test_a_link_leads_nowhere(why: Why, tmp_path: Path) -> None:
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
def test_a_script_names_an_interpreter_that_is_not_there(
    why: Why, tmp_path: Path, line: bytes, interpreter: str
) -> None:
    make(tmp_path / "ours", line)
    expected = f"the interpreter that its first line names, {interpreter!r}, does not exist there"
    assert why("./ours") == why("ours") == expected


def test_a_program_needs_a_loader_that_is_not_there(why: Why, tmp_path: Path) -> None:
    content = Path("/bin/true").read_bytes()
    assert content.count(b"/ld-linux") == 1
    make(tmp_path / "ours", content.replace(b"/ld-linux", b"/ld-lunix"))
    assert why("./ours") == (
        "the loader that it was linked for does not exist there; was it built for that system?"
    )


def test_it_is_not_executable(why: Why, tmp_path: Path) -> None:
    make(tmp_path / "ours", b"#!/bin/sh\n", 0o600)
    assert why("./ours") == "it is not executable; chmod +x makes it so"
    assert why("ours") == ("what has that name in its PATH is not executable; chmod +x makes it so")


def test_it_is_no_file_to_execute(why: Why, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo", 0o700)
    assert why("/") == "it is a directory"
    assert why("./fifo") == "it is no regular file"


def test_it_is_empty(why: Why, tmp_path: Path) -> None:
    make(tmp_path / "ours")
    assert why("./ours") == why("ours") == "it is empty"


@pytest.mark.parametrize("content", [b"echo text\n", b"\x7fELF" + bytes(100), b"\0"])
def test_it_is_no_program(why: Why, tmp_path: Path, content: bytes) -> None:
    make(tmp_path / "ours", content)
    assert why("./ours") == (
        "it is neither a program for that machine nor a script that begins with '#!'"
    )


def test_its_arguments_are_too_long(why: Why, tmp_path: Path) -> None:
    (tmp_path / "ours").symlink_to("/bin/true")
    expected = "its arguments and environment are longer than the system takes"
    assert why("./ours", "x" * (1 << 20)) == expected


def test_somebody_writes_to_it(why: Why, tmp_path: Path) -> None:
    make(tmp_path / "ours", Path("/bin/true").read_bytes())
    with (tmp_path / "ours").open("ab"):
        assert why("./ours") == "Text file busy"


def test_a_file_that_has_changed_since_is_told_of_as_it_is(tmp_path: Path) -> None:
    """The words come from a second look, which must not fail."""
    file = tmp_path / "ours"
    for number in range(1, 40):
        assert why_refused("./ours", number, cwd=str(tmp_path), path="")
    make(file, mode=stat.S_IRWXU)
    for number in range(1, 40):
        assert why_refused("./ours", number, cwd=str(tmp_path), path="")
