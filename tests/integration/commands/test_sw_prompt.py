"""Tests the prompt of `ciel sw`, on a terminal and in a pipe."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

import pytest

from ciel.testing.homes import Home, wait_for
from ciel_tests.clusters.two_slots import TwoSlots

WAIT_S = 20.0
PROMPT, MORE = "sw> ", "... "


class Terminal:
    """A user at the prompt, who types and reads the output."""

    def __init__(self, home: Home, *words: str, quiet: bool = True) -> None:
        words = ("--quiet", *words) if quiet else words
        self._fd, theirs = pty.openpty()
        self.process = subprocess.Popen(
            ["ciel", "sw", *words], env=home.environ | {"TERM": "dumb"}, cwd=home.path,
            stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
        )  # fmt: skip
        os.close(theirs)
        self._shown = ""

    def __enter__(self) -> Self:
        self.greeting = self.until(PROMPT)
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._fd)

    def until(self, mark: str) -> str:
        """Return the output before a mark, which must appear."""
        until_s = time.monotonic() + WAIT_S
        while mark not in self._shown:
            left_s = until_s - time.monotonic()
            assert left_s > 0, f"no {mark!r} after {self._shown!r}"
            if select.select([self._fd], [], [], left_s)[0]:
                self._shown += os.read(self._fd, 4096).decode().replace("\r", "")
        before, _, self._shown = self._shown.partition(mark)
        return before

    def enter(self, *lines: str) -> str:
        """Type the lines of an entry; return its output."""
        for number, line in enumerate(lines, 1):
            os.write(self._fd, f"{line}\n".encode())
            self.until(f"{line}\n")  # as it is echoed
            if number < len(lines):
                self.until(MORE)
        return self.until(PROMPT)

    def type(self, line: str, mark: str) -> None:
        """Type a line; wait for a mark in the output."""
        os.write(self._fd, f"{line}\n".encode())
        self.until(mark)

    def interrupt(self) -> None:
        """Type Ctrl-C while the prompt waits: an earlier signal would take effect only with the
        next key.
        """
        stat = Path(f"/proc/{self.process.pid}/stat")
        wait_for(lambda: stat.read_text().rpartition(") ")[2][0] == "S", "the wait for a key")
        self.process.send_signal(signal.SIGINT)

    def leave(self) -> int:
        """Type Ctrl-D; return the exit status."""
        os.write(self._fd, b"\x04")
        return self.process.wait(WAIT_S)


@pytest.fixture(scope="module")
def home(shared_cluster: TwoSlots) -> Iterator[Home]:
    yield shared_cluster.home
    done = shared_cluster.submit("--slots", "2", "--timeout", "10s", "--", "echo", "free")
    assert (done.returncode, done.stdout, done.stderr) == (0, "free\n", "")


@pytest.fixture
def pipe(home: Home) -> Callable[..., tuple[int, str, str]]:
    """Run the content of a pipe; return status, output and standard error."""

    def pipe(text: str, *words: str) -> tuple[int, str, str]:
        done = subprocess.run(
            ["ciel", "sw", *words], env=home.environ, cwd=home.path, input=text, text=True,
            capture_output=True, timeout=40, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout, done.stderr

    return pipe


Pipe = Callable[..., tuple[int, str, str]]


# --- on a terminal --------------------------------------------------------------------------------


def test_values_are_shown_and_variables_stay(home: Home) -> None:
    with Terminal(home) as terminal:
        assert "Ctrl-D leaves" in terminal.greeting
        assert terminal.enter("1 + 2") == "3\n"
        assert terminal.enter("x = [1, 'a'];") == ""
        assert terminal.enter("x") == '[1, "a"]\n'
        assert terminal.enter("null") == ""
        assert terminal.enter("") == ""
        assert terminal.enter("function f(n) {", "return n + len(x);", "}") == ""
        assert terminal.enter("f(", "", "5)") == "7\n"
        assert terminal.enter("*spawn(f, [10])") == "12\n"
        assert terminal.enter("return 4") == "4\n"
        assert terminal.leave() == 0
    listed = home.run("ciel", "job", "list", "--limit", "1").stdout
    assert " prompt " in listed
    assert " completed " in listed


def test_errors_are_reported_and_do_not_end_the_prompt(home: Home) -> None:
    with Terminal(home) as terminal:
        assert terminal.enter("x = 1") == ""
        assert "entry 2, line 1" in terminal.enter("x = }")
        said = terminal.enter("x = 2; missing + 1")
        assert 'Tried to read identifier "missing", not found' in said
        assert "entry 2, line 1" in said or "entry 3, line 1" in said
        assert terminal.enter("x") == "1\n"  # the failed entry has changed nothing
        assert terminal.leave() == 0


def test_output_of_an_entry_is_shown_once_and_that_of_tasks_with_their_names(home: Home) -> None:
    with Terminal(home) as terminal:
        assert terminal.enter("x = print('hello')") == "hello\n"
        assert terminal.enter("x = print('wide'); x = print('world')") == "wide\nworld\n"
        assert terminal.enter("function f() { return print('within'); }") == ""
        assert terminal.enter("*spawn(f, [])") == "[f] within\ntrue\n"
        assert terminal.leave() == 0


def test_exit_quit_and_help_are_commands_unless_they_are_variables(home: Home) -> None:
    with Terminal(home) as terminal:
        assert "Ctrl-D, exit or quit leaves" in terminal.enter("help")
        assert "*x" in terminal.enter("help();")
        assert terminal.enter("exit = 5; help = 1; function quit() { return 7; }") == ""
        assert terminal.enter("exit") == "5\n"
        assert terminal.enter("help;") == "1\n"
        assert terminal.enter("quit()") == "7\n"
        assert terminal.leave() == 0
    with Terminal(home) as terminal:
        assert terminal.enter("x = 1") == ""
        terminal.type("exit", "exit\n")
        assert terminal.process.wait(WAIT_S) == 0


def test_ctrl_c_discards_the_typed_lines(home: Home) -> None:
    with Terminal(home) as terminal:
        terminal.type("f(1,", MORE)
        terminal.interrupt()
        terminal.until(PROMPT)
        assert terminal.enter("2") == "2\n"
        assert terminal.leave() == 0


@pytest.mark.slow
def test_ctrl_c_cancels_an_entry_and_variables_stay_as_they_were(home: Home) -> None:
    with Terminal(home) as terminal:
        assert terminal.enter("x = 5; function f(n) { return n + 1; }") == ""
        terminal.type("while (true) { x = x + 1; }", "}\n")
        wait_for(lambda: _is_busy(home), "the entry")
        terminal.interrupt()
        assert "ciel: entry 2 is cancelled\n" in terminal.until(PROMPT)
        wait_for(lambda: not _is_busy(home), "the end of its process")
        assert terminal.enter("f(x)") == "6\n"  # in another process, which has not seen the entries
        assert terminal.leave() == 0


def _is_busy(home: Home) -> bool:
    listed = home.run("ciel", "task", "list", "last", "--state", "assigned", "--json").stdout
    return listed.strip() != "[]"


def test_progress_is_drawn_while_an_entry_takes_time(home: Home) -> None:
    with Terminal(home, quiet=False) as terminal:
        terminal.enter('c = {"command_line": ["sleep", "0.5"]}')
        drawn = terminal.enter('read(spawn_exec("stdinout", c, 1)[0])')
        assert re.search(r"entry 2: \d done, \d running, \d so far", drawn)
        assert drawn.endswith('\x1b[K""\n')
        assert terminal.leave() == 0


def test_the_history_of_lines_is_private_to_the_user(home: Home) -> None:
    with Terminal(home) as terminal:
        terminal.enter("remembered = 1")
        assert terminal.leave() == 0
    (history,) = (home.path / "state").rglob("sw-history")
    assert "remembered = 1" in history.read_text()
    assert history.stat().st_mode & 0o777 == 0o600
    with Terminal(home) as terminal:
        terminal.type("\x10", "remembered = 1")  # the key for the previous line
        terminal.until(PROMPT)
        assert terminal.leave() == 0


def test_the_prompt_has_the_options_of_a_script(home: Home) -> None:
    (home.path / "data").write_text("[1, 2]")
    with Terminal(home, "-E", "A=1", "-p", "d", "data", "-i", "mine") as terminal:
        assert terminal.enter("env") == '{"A": "1"}\n'
        assert terminal.enter('*package("d")') == "[1, 2]\n"
        assert terminal.leave() == 0
    assert " mine " in home.run("ciel", "job", "list", "--limit", "1").stdout


# --- in a pipe ------------------------------------------------------------------------------------


def test_statements_of_a_pipe_run_one_by_one(pipe: Pipe) -> None:
    script = """
        // what to begin with
        x = 3;
        function f(a) {
            return a + 1;
        }
        f(x);
        if (x == 3) {
            x = "three";
        }
        else {
            x = "other";
        }
        x
    """
    assert pipe(script) == (0, '4\n"three"\n', "")


def test_an_entry_runs_before_the_next_is_written(home: Home) -> None:
    process = home.start("ciel", "sw", stdin=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    for text, value in (("x = 1; x;", "1"), ("x + 1;", "2"), ("[x];", "[1]")):
        process.stdin.write(f"{text}\n")
        process.stdin.flush()
        assert process.stdout.readline() == f"{value}\n"
    out, said = process.communicate(timeout=WAIT_S)
    assert (process.returncode, out, said) == (0, "", "")


def test_a_failed_entry_does_not_stop_the_next_but_changes_the_exit_status(pipe: Pipe) -> None:
    status, out, said = pipe("x = 1;\ny = nothing;\nx = ];\nx;\n")
    assert (status, out) == (1, "1\n")
    assert 'identifier "nothing"' in said
    assert "entry 3, line 1" in said


def test_version_2_applies_from_its_line_on(pipe: Pipe) -> None:
    assert pipe("str(true);\n#!skywriting 2\nstr(true);\n") == (0, '"True"\n"true"\n', "")


def test_variables_stay_after_an_entry_that_waited_for_tasks(pipe: Pipe) -> None:
    script = """
        function f(n) {
            x = spawn_exec("stdinout", {"command_line": ["echo", str(n)]}, 1);
            return *x[0] + 1;
        }
        a = [1];
        b = a;
        a += *spawn(f, [5]); c = 7;
        r = spawn(f, [6]);
        b += 8;
        [a, c, *r];
        spawned = spawn(f, [7]);
        *spawned;
        c;
    """
    assert pipe(script) == (0, "[[1, 6, 8], 7, 7]\n8\n7\n", "")


def test_a_pipe_has_no_commands_of_the_prompt(pipe: Pipe) -> None:
    status, out, said = pipe("exit;\n1;\n")
    assert (status, out) == (1, "1\n")
    assert 'identifier "exit", not found' in said


def test_an_empty_pipe_ends_at_once(pipe: Pipe) -> None:
    assert pipe("") == (0, "", "")
    assert pipe("// nothing\n\n") == (0, "", "")


@pytest.mark.slow
def test_ctrl_c_ends_a_prompt_in_a_pipe(home: Home) -> None:
    process = home.start("ciel", "sw", stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write("while (true) { x = 1; }\n")
    process.stdin.flush()
    wait_for(lambda: _is_busy(home), "the entry")
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=WAIT_S)
    assert process.returncode == 130
    assert "Traceback" not in said
    assert not _is_busy(home)


@pytest.mark.slow
def test_cancelling_the_job_ends_the_prompt(home: Home) -> None:
    process = home.start("ciel", "sw", stdin=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("1;\n")
    process.stdin.flush()
    assert process.stdout.readline() == "1\n"
    home.run("ciel", "job", "cancel", "last")
    process.stdin.write("2;\n")
    _, said = process.communicate(timeout=WAIT_S)
    assert process.returncode == 4
    assert re.search(r"ciel: job \d+ is cancelled", said)
