"""Runs the examples of a document, which are blocks of commands and of Python, in their order.

CONTRIBUTING.md tells writers how a block is marked.
"""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from ciel.testing.homes import Home

STEP_TIMEOUT_S: Final = 60.0
DEFAULT_ADDRESS: Final = "127.0.0.1:8000"
"""The address that pages show. Commands get a free port, as another cluster may listen there."""

SHELLS: Final = ("console", "sh", "bash")
PRINTING: Final = ("python", "sh", "bash")
"""Blocks that a block of output may follow."""
PARSERS: Final[Mapping[str, Callable[[str], Any]]] = {"json": json.loads, "toml": tomllib.loads}
NO_EXAMPLES: Final = ("text", "yaml")
"""Blocks that show a form, a diagram or a message; they hold no command."""
REASONS: Final = ("another host", "minutes", "network", "other software")
"""Why a block may be marked as not run."""

PROMPTS: Final = ("sw> ", "... ")
_BLOCK = re.compile(r"^```([^\n`]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FENCE = re.compile(r"^[ >]*(```|~~~)", re.MULTILINE)
_MARK = re.compile(r"<!-- not run: (.*?) -->\n\Z")
_FILES = re.compile(r"^<!-- files: (.*?) -->$", re.MULTILINE)
_NEEDS = re.compile(r"^<!-- needs: (.*?) -->$", re.MULTILINE)
_COMMAND = re.compile(r"^(\$ |(ciel|ciel-\w+|sw-job|shm\w+|make|pip|python3?) )", re.MULTILINE)

# Runs blocks of Python as parts of one file that is there, so that tracebacks show its lines.
_PYTHON: Final = """
import contextlib, io, json, sys, traceback

script = sys.argv.pop()
sys.argv[0] = script
__file__ = script
def run(source):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        try:
            exec(compile(source, script, "exec"), globals())
        except BaseException as error:
            error.__traceback__ = error.__traceback__.tb_next
            traceback.print_exception(error, file=printed)
    print(json.dumps(printed.getvalue()), flush=True)

if __name__ == "__main__":
    for line in sys.stdin:
        run(json.loads(line))
"""


class Block(NamedTuple):
    """The text between two fences. `line` is the number of its first line. `name` is the file that
    it shows, `not_run` the reason why it is left out; both may be empty.
    """

    line: int
    language: str
    name: str
    not_run: str
    text: str


class Step(NamedTuple):
    """A command, the input that a user types while it runs, and the output that the page shows."""

    line: int
    command: str
    typed: str
    shown: str


class Page:
    """A document with examples. `name` is its path in the source tree."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.blocks = [
            Block(
                text.count("\n", 0, found.start(2)) + 1,
                *_words(found[1]),
                mark[1] if (mark := _MARK.search(text, 0, found.start())) else "",
                found[2],
            )
            for found in _BLOCK.finditer(text)
        ]
        prose = _BLOCK.sub(lambda block: "\n" * block[0].count("\n"), text)
        self._stray = [prose.count("\n", 0, at.start()) + 1 for at in _FENCE.finditer(prose)]
        self.files = " ".join(_FILES.findall(text)).split()
        self.needs = " ".join(_NEEDS.findall(text)).split()

    @classmethod
    def read(cls, root: Path, path: Path) -> Self:
        return cls(str(path.relative_to(root)), path.read_text())

    def runs(self) -> bool:
        """Say whether the page holds a block that is run."""
        kinds = {block.language for block in self.blocks if not (block.not_run or block.name)}
        return bool(kinds & {*SHELLS, "python"})

    def mistakes(self, tested_elsewhere: Sequence[str] = ()) -> list[str]:
        """Name the blocks that are neither run, nor read, nor marked as something else."""
        found = [(line, "a fence must begin and end a block at the margin") for line in self._stray]
        for before, block in zip([None, *self.blocks], self.blocks, strict=False):
            if mistake := _mistake(block, tested_elsewhere):
                found.append((block.line, mistake))
            if block.language == "output" and not (before and before.language in PRINTING):
                found.append((block.line, "an output belongs to a block of Python or sh before it"))
        return [f"{self.name}:{line}: {mistake}" for line, mistake in found]

    def run(self, home: Home, root: Path) -> list[str]:
        """Run all blocks in an empty directory of a home; return a text for each failure, with
        file and line. `files` of the source tree in `root` are copied there first.
        """
        place = home.path / "here"
        place.mkdir()
        for name in self.files:
            shown = place / name
            shown.parent.mkdir(parents=True, exist_ok=True)
            copy = shutil.copytree if (root / name).is_dir() else shutil.copy
            copy(root / name, shown)
        with Shell(home, place) as shell, Interpreter(home, place) as interpreter:
            return list(self._failures(shell, interpreter))

    def _failures(self, shell: Shell, interpreter: Interpreter) -> Iterator[str]:
        for block, after in zip(self.blocks, [*self.blocks[1:], None], strict=True):
            shown = after.text if after is not None and after.language == "output" else ""
            try:
                for line, failure in _failures_of(block, shown, shell, interpreter):
                    yield f"{self.name}:{line}: {failure}"
            except ShellEndedError as error:
                yield f"{self.name}:{block.line}: {error}"
                return


def _failures_of(
    block: Block, shown: str, shell: Shell, interpreter: Interpreter
) -> Iterator[tuple[int, str]]:
    if block.not_run:
        return
    if block.name:
        if failure := _show_file(shell.directory() / block.name, block.text):
            yield block.line, failure
    elif block.language == "python":
        printed = interpreter.run(block)
        if not matches(shown, printed):
            yield block.line, _difference("the block", shown, printed)
    elif block.language == "console":
        for step in steps(block):
            _, printed = shell.run(step.command, step.typed)
            if not matches(step.shown, printed):
                yield step.line, _difference(f"$ {step.command}", step.shown, printed)
    elif block.language in SHELLS:
        everything = ""
        for step in commands(block):
            status, printed = shell.run(step.command)
            everything += printed
            if status != 0:
                yield step.line, f"$ {step.command}\nended with status {status}:\n{printed}"
        if shown and not matches(shown, everything):
            yield block.line, _difference("the block", shown, everything)


def _words(info: str) -> tuple[str, str]:
    """Split the words after a fence: a language, and the name of a file."""
    language, _, name = info.strip().partition(" ")
    return language, name.strip()


def _mistake(block: Block, tested_elsewhere: Sequence[str]) -> str:
    kind = block.language
    if block.not_run:
        known = block.not_run in REASONS
        return "" if known else f"'not run' takes one of these reasons: {', '.join(REASONS)}"
    if kind.startswith("{"):
        return ""  # a directive of the site
    if block.name or kind in (*SHELLS, "python", "output", *tested_elsewhere):
        return ""
    if kind in NO_EXAMPLES:
        found = _COMMAND.search(block.text)
        return f"this is a command: {found[0]!r} (write ```console or ```sh)" if found else ""
    if kind not in PARSERS:
        return f"a block must say what it is; {kind!r} needs the name of its file"
    try:
        PARSERS[kind](block.text)
    except ValueError as error:
        return f"this is not {kind}: {error}"
    return ""


def _show_file(path: Path, text: str) -> str:
    """Write a file that a page shows; if it is there, say how its content differs."""
    if not path.exists():
        path.write_text(text)
    elif path.read_text() != text:
        return f"{path.name} has another content:\n{path.read_text()}"
    return ""


def steps(block: Block) -> Iterator[Step]:
    """Yield the commands of a console, each a line after `$ `, with the output below it."""
    line, command, typed, shown = 0, "", "", ""
    for number, text in enumerate([*block.text.splitlines(keepends=True), "$ "], block.line):
        if text.startswith("$ "):
            if command:
                yield Step(line, command, typed, shown)
            line, command, typed, shown = number, text[2:].rstrip("\n"), "", ""
        elif text.startswith(PROMPTS):
            entry = text[len(PROMPTS[0]) :].rstrip()
            typed += entry + ("\n" if entry.endswith((";", "{", "}")) else ";\n")  # for a pipe
        else:
            shown += text


def commands(block: Block) -> Iterator[Step]:
    """Yield the commands of a script, each of as many lines as the shell needs."""
    pending: list[str] = []
    for number, text in enumerate(block.text.splitlines(), block.line):
        pending.append(text)
        command = "\n".join(pending)
        is_whole = not text.endswith("\\") and _is_whole(command)
        if is_whole:
            if command.strip():
                yield Step(number + 1 - len(pending), command, "", "")
            pending.clear()
    if pending:
        yield Step(block.line, "\n".join(pending), "", "")


def _is_whole(command: str) -> bool:
    done = subprocess.run(
        ["bash", "-n"], input=command, capture_output=True, text=True, check=False
    )
    return done.returncode == 0 and "here-document" not in done.stderr


def matches(shown: str, printed: str) -> bool:
    """Compare a printed text with the text that a page shows; `…` and `...` stand for any text."""
    pattern = re.sub(r"…|\\\.\\\.\\\.", ".*?", re.escape(shown))
    return re.fullmatch(pattern, printed, re.DOTALL) is not None


def _difference(what: str, shown: str, printed: str) -> str:
    return f"{what}\nprinted:\n{printed}--- but the page shows:\n{shown}---"


class ShellEndedError(Exception):
    """A command ended the shell, or was ended with it since it took too long."""


class Shell:
    """A bash that runs the commands of a page in their order, so that `cd` and `export` last.
    `ciel up` listens at a free port.
    """

    def __init__(self, home: Home, place: Path) -> None:
        self._own = home.path / "steps"
        self._own.mkdir()
        self._address = f"127.0.0.1:{_free_port()}"
        self._status_fd, written_fd = os.pipe()
        self._bash = subprocess.Popen(
            ["bash", "--noprofile", "--norc"], env=home.environ, cwd=place, text=True,
            stdin=subprocess.PIPE, pass_fds=[written_fd], start_new_session=True,
        )  # fmt: skip
        os.close(written_fd)
        self._tell = f"echo $? >&{written_fd}"
        self._closed = f"{written_fd}>&-"
        up = f'if [ "$1" = up ]; then shift; set -- up --listen {self._address} "$@"; fi'
        # `ciel flight &` is killed by its process id, so that must not be the id of a shell.
        up += '; case "$1$BASH_SUBSHELL" in flight1 | shmd1) exec ciel "$@";; esac'
        self.run(f'ciel() {{ {up}; command ciel "$@"; }}; export -f ciel')

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """End a cluster that is up, and what still runs in the background."""
        with suppress(ShellEndedError, BrokenPipeError):
            self.run("ciel down --force; kill $(jobs -p); wait")
        self._bash.communicate()
        os.close(self._status_fd)

    def directory(self) -> Path:
        """Return the directory in which the next command runs."""
        return Path(f"/proc/{self._bash.pid}/cwd").resolve()

    def run(self, command: str, typed: str = "") -> tuple[int, str]:
        """Run a command; return its status and what a terminal would show."""
        script, given, printed = (self._own / name for name in ("command", "input", "output"))
        script.write_text(command.replace(DEFAULT_ADDRESS, self._address) + "\n")
        given.write_text(typed)
        printed.unlink(missing_ok=True)  # one in the background may still write to the old
        assert self._bash.stdin is not None
        files = f"<{given} >>{printed} 2>&1 {self._closed}"
        self._bash.stdin.write(f". {script} {files}; {self._tell}\n")
        self._bash.stdin.flush()
        status = self._read_status(command)
        text = printed.read_text(errors="replace").replace(self._address, DEFAULT_ADDRESS)
        return status, text

    def _read_status(self, command: str) -> int:
        ready, _, _ = select.select([self._status_fd], [], [], STEP_TIMEOUT_S)
        status = os.read(self._status_fd, 100) if ready else b""
        if not status:
            os.killpg(self._bash.pid, signal.SIGKILL)
            what = "has ended the shell" if ready else f"did not end within {STEP_TIMEOUT_S:g} s"
            raise ShellEndedError(f"$ {command}\n{what}")
        return int(status)


class Interpreter:
    """A Python that runs the blocks of a page as one script. It starts with the first of them."""

    def __init__(self, home: Home, place: Path) -> None:
        self._home, self._place = home, place
        self._script = place / "script.py"
        self._lines: list[str] = []
        self._python: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._python is not None:
            self._python.communicate(timeout=STEP_TIMEOUT_S)

    def run(self, block: Block) -> str:
        """Run a block; return its output, with the traceback if it raised an exception."""
        self._lines += [""] * (block.line - 1 - len(self._lines))
        source = "\n" * len(self._lines) + block.text
        self._lines += block.text.splitlines()
        self._script.write_text("\n".join(self._lines) + "\n")
        if self._python is None:
            self._python = subprocess.Popen(
                [sys.executable, "-c", _PYTHON, str(self._script)], text=True,
                env=self._home.environ, cwd=self._place,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )  # fmt: skip
        assert self._python.stdin is not None
        assert self._python.stdout is not None
        self._python.stdin.write(json.dumps(source) + "\n")
        self._python.stdin.flush()
        ready, _, _ = select.select([self._python.stdout], [], [], STEP_TIMEOUT_S)
        if not ready:
            self._python.kill()
        printed = self._python.stdout.readline()
        return str(json.loads(printed)) if printed else "Python has ended, or did not end in time\n"


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
