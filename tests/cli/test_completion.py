"""Tests completion in bash itself; checks that the scripts for zsh and fish name everything."""

from __future__ import annotations

import contextlib
import io
import os
import pty
import select
import shlex
import signal
import subprocess
import time
from pathlib import Path

import pytest

from ciel.cli.commands.help.completion import main
from ciel.cli.parsing.grammar import Command, programs


def script_of(shell: str) -> str:
    out = io.TextIOWrapper(io.BytesIO(), "utf-8")
    with contextlib.redirect_stdout(out):
        assert main("completion", [shell]) == 0
    out.seek(0)
    return out.read()


@pytest.fixture(scope="module")
def bash_script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "ciel.bash"
    path.write_text(script_of("bash"))
    return path


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "some words.txt").touch()
    (tmp_path / "my results").mkdir()
    (tmp_path / "*").touch()
    return tmp_path


def completed(script: Path, here: Path, *words: str) -> list[str]:
    """Return the completions that bash offers for the last word."""
    typed = " ".join(map(shlex.quote, words))
    asked = (
        f"compopt() {{ :; }}; . {script}; COMP_WORDS=({typed}); COMP_CWORD={len(words) - 1}; "
        '_ciel; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    ended = subprocess.run(
        ["bash", "-uc", asked], cwd=here, capture_output=True, text=True, check=True
    )
    assert ended.stderr == ""
    return sorted(filter(None, ended.stdout.split("\n")))


@pytest.mark.parametrize(
    "words, offered",
    [
        ("ciel jo", ["job", "journal"]),
        ("ciel job l", ["list", "log"]),
        ("ciel job list --a", ["--access", "--all"]),
        ("ciel job cancel a", ["all"]),
        ("ciel task list --state a", ["assigned"]),
        ("ciel task list --state = a", ["assigned"]),
        ("ciel task list last --state f", ["failed"]),
        ("ciel job graph --format ", ["dot", "json", "svg"]),
        ("ciel object put s", ["some words.txt"]),
        ("ciel object put *", ["*"]),
        ("ciel job output last --out ", ["my results"]),
        ("ciel submit --array ", []),
        ("ciel submit -- grep s", ["some words.txt"]),
        ("ciel sw c", ["check"]),
        ("ciel completion ", ["bash", "fish", "zsh"]),
        ("/usr/bin/ciel-master --new", ["--new-key"]),
        ("sw-job --verb", ["--verbose"]),
        ("ciel nothing --a", []),
    ],
)
def test_bash_completes(bash_script: Path, here: Path, words: str, offered: list[str]) -> None:
    assert completed(bash_script, here, *words.split(" ")) == offered


def test_bash_offers_every_command_and_option(bash_script: Path, here: Path) -> None:
    for program in programs():
        verbs = [verb.words[-1] for verb in program.verbs]
        assert sorted(verbs) == sorted(
            set(completed(bash_script, here, *program.words, "")) & {*verbs}
        )
    submit = find("ciel", "submit")
    names = [name for option in submit.options for name in option.names]
    assert completed(bash_script, here, "ciel", "submit", "-") == sorted(names)


def test_bash_completes_what_is_typed(bash_script: Path, here: Path) -> None:
    pid, terminal = pty.fork()
    if pid == 0:  # pragma: no cover  # becomes bash
        os.chdir(here)
        os.execve("/bin/bash", ["bash", "--norc", "-i"], {"TERM": "dumb", "PS1": "$ "})
    try:
        os.write(
            terminal, f". {bash_script}; ciel() {{ echo ran \"$*\"; }}; echo re''ady\n".encode()
        )
        read_until(terminal, b"ready")
        os.write(terminal, b"ciel obj\tpu\tsome\t--na\tx\n")
        read_until(terminal, b"ran object put some words.txt --name x")
    finally:
        os.kill(pid, signal.SIGKILL)
        os.close(terminal)
        os.waitpid(pid, 0)


def read_until(terminal: int, expected: bytes) -> None:
    said, until_s = b"", time.monotonic() + 20
    while expected not in said:
        assert time.monotonic() < until_s, said
        if select.select([terminal], [], [], 0.1)[0]:
            said += os.read(terminal, 4096)


def find(*words: str) -> Command:
    everything = (command for program in programs() for command in program.with_verbs())
    return next(command for command in everything if command.words == words)


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_are_told_of_every_command_and_option(shell: str) -> None:
    script = script_of(shell)
    sections = script.split("\n'") if shell == "zsh" else None
    for program in programs():
        for command in program.with_verbs():
            path = " ".join(command.words)
            if sections is not None:
                (own,) = [part for part in sections if part.startswith(f"{path}')\n")]
            else:
                own = "\n".join(line for line in script.split("\n") if f"'{path}'" in line)
            for verb in command.verbs:
                assert verb.words[-1] in own
            for option in command.options:
                for name in option.names:
                    assert (name if shell == "zsh" else f" {name.lstrip('-')} ") in own, path
