"""Tests invalid command lines: each gives one message that names the cause, and status 2.

One cluster serves all of them, and is as it was before when they have ended.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import pytest

from ciel.testing.homes import Home, descriptors_of, wait_for

MORE: Final = "(ciel submit --help tells more)"


class Cluster(NamedTuple):
    """A cluster of one worker with two slots, and the process ids of its daemons."""

    home: Home
    daemons: list[int]
    typed: Callable[..., tuple[int, str, str]]

    def ciel(self, *words: str | bytes) -> tuple[int, str, str]:
        """Run a command in this process; return its status and output."""
        status, out, said = self.typed(self.home, *words)
        return status, out, said.replace(str(self.home.path), "HOME")

    def run(self, *argv: str | bytes, stdin: bytes = b"") -> tuple[int, str, str]:
        """Run a command; return its status and output."""
        done = subprocess.run(
            argv, env=self.home.environ, cwd=self.home.path, input=stdin, capture_output=True,
            timeout=40, check=False,
        )  # fmt: skip
        said = done.stderr.decode(errors="backslashreplace")
        return done.returncode, done.stdout.decode(), said.replace(str(self.home.path), "HOME")

    def descriptors(self) -> int:
        """Count the open descriptors of the daemons, except files that a store keeps for reuse."""
        return sum(descriptors_of(pid) for pid in self.daemons)


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, typed: Callable[..., tuple[int, str, str]]
) -> Iterator[Cluster]:
    home = Home(tmp_path_factory.mktemp("commands"))
    up = home.run("ciel", "up", "--slots", "2", "--listen", "127.0.0.1:0")
    assert up.returncode == 0, up.stderr
    daemons = ("ciel.cli.daemons.master", "ciel.cli.daemons.worker")
    found = home.processes().items()
    pids = [pid for pid, line in found if any(daemon in line for daemon in daemons)]
    cluster = Cluster(home, pids, typed)
    assert cluster.run("ciel", "submit", "--array", "1-99", "--", "true") == (0, "", "")
    before = cluster.descriptors()
    yield cluster
    done = cluster.run("ciel", "submit", "--slots", "2", "--", "echo", "both slots are free")
    assert done == (0, "both slots are free\n", "")
    wait_for(lambda: cluster.descriptors() <= before, "as few descriptors as before")
    assert home.run("ciel", "down").returncode == 0
    assert not home.processes()
    assert not list(home.tmp.iterdir())
    for log in (home.path / "state").rglob("*.log"):
        assert "Traceback" not in log.read_text(), log


# --- numbers and names ----------------------------------------------------------------------------

NO_RANGE: Final = (
    "is neither a range A-B of whole numbers, with A at most B, nor a list such as 1,3,5-9"
)
OPTIONS: Final = {
    "a backward array": ("--array", "5-1", f"'5-1' {NO_RANGE}"),
    "an array to a float": ("--array", "1-1e9", f"'1-1e9' {NO_RANGE}"),
    "no array": ("--array", "", f"'' {NO_RANGE}"),
    "a negative array": ("--array", "-3", f"'-3' {NO_RANGE}"),
    "an endless array": (
        "--array",
        "1-99999999999",
        "'1-99999999999' has 99,999,999,999 elements; at most 10,000,000 are allowed",
    ),
    "no slots": ("--slots", "0", "'0' is not a number from 1 to 1024"),
    "negative slots": ("--slots", "-1", "'-1' is not a number from 1 to 1024"),
    "half a slot": ("--slots", "1.5", "'1.5' is not a number from 1 to 1024"),
    "many slots": ("--slots", "100000", "'100000' is not a number from 1 to 1024"),
    "slots without end": (
        "--slots",
        "9" * 9999,
        f"'{'9' * 80}' is not a number from 1 to 1024",
    ),
    "negative retries": ("--retries", "-1", "'-1' is not a number from 0 to 1000"),
    "many retries": ("--retries", "1001", "'1001' is not a number from 0 to 1000"),
    "retries in words": ("--retries", "x", "'x' is not a number from 0 to 1000"),
    "many workers": ("--workers", "257", "'257' is not a number from 1 to 256"),
    "time in words": (
        "--timeout",
        "soon",
        "'soon' is not a time span; write 90, 1.5s, 10m, 2h or 01:00:00",
    ),
    "negative time": (
        "--timeout",
        "-1",
        "'-1' is not a time span; write 90, 1.5s, 10m, 2h or 01:00:00",
    ),
}


@pytest.mark.parametrize("option, value, said", OPTIONS.values(), ids=OPTIONS)
def test_an_invalid_option_is_named(cluster: Cluster, option: str, value: str, said: str) -> None:
    assert cluster.ciel("submit", option, value, "--", "true") == (
        2, "", f"ciel submit: argument {option}: {said} {MORE}\n",
    )  # fmt: skip


@pytest.mark.parametrize("value", ["0", "0ms", "99999999999d"])
def test_a_time_that_is_zero_or_too_long_is_named(cluster: Cluster, value: str) -> None:
    status, out, said = cluster.ciel("submit", "--timeout", value, "--", "true")
    assert (status, out) == (2, "")
    assert said.startswith(f"ciel submit: argument --timeout: '{value}' ")
    assert said.count("\n") == 1


def test_more_slots_than_any_worker_has_fail_the_job(cluster: Cluster) -> None:
    assert cluster.ciel("submit", "--slots", "3", "--", "true") == (
        1,
        "",
        "ciel: the task needs 3 slots, and no worker has more than 2: ask for fewer, or start "
        "a worker with more (ciel-worker --slots)\n",
    )


WORDS: Final = {
    "a variable without a name": (["--env", "=x"], "--env =x: expected NAME=VALUE"),
    "an unknown variable": (["--env", "NO"], "--env NO: this variable is not set; write NO=VALUE"),
    "a variable's name of bytes": ([b"--env", b"\xff=1"], "--env: a name is not UTF-8"),
    "a name of bytes": ([b"--name", b"\xff"], "--name is not UTF-8"),
    "a missing file": (["--in", "absent"], "--in absent: the file does not exist"),
    "a directory to send": (["--in", "/etc"], "--in /etc: it is not a regular file"),
    "a file for outputs": (["--out", "/etc/passwd"], "--out /etc/passwd: it is not a directory"),
    "a place without room": (["--out", "/proc/x"], "--out /proc/x: No such file or directory"),
    "missing lines": (["--each-line", "absent"], "--each-line absent: No such file or directory"),
    "lines of a directory": (["--each-line", "/etc"], "--each-line /etc: it is a directory"),
}


@pytest.mark.parametrize("words, said", WORDS.values(), ids=WORDS)
def test_an_invalid_input_of_a_job_is_named(
    cluster: Cluster, words: list[str | bytes], said: str
) -> None:
    assert cluster.ciel("submit", *words, "--", "true") == (2, "", f"ciel: {said}\n")


PROGRAMS: Final = {
    "of no name": ([""], "the program's name is empty"),
}


@pytest.mark.parametrize("words, said", PROGRAMS.values(), ids=PROGRAMS)
def test_an_impossible_program_name_is_refused(
    cluster: Cluster, words: list[str | bytes], said: str
) -> None:
    assert cluster.ciel("submit", "--", *words) == (2, "", f"ciel: {said}\n")


# --- elements -------------------------------------------------------------------------------------

ODD_NAMES: Final = [
    "two words", " spaces ", "'single'", '"double"', "$(touch bad)", "`touch bad`", "$HOME; :",
    "back\\slash\\n", "a\ttab", "\u00fc\u00f1\u00ed \u2603 \U0001d11e", "-n", "--help", "{}", "*",
    "", "\x1b[31m", "%s", "../x", "a/b",
]  # fmt: skip


def test_odd_names_of_elements_arrive_unchanged(cluster: Cluster) -> None:
    lines = "".join(f"{name}\n" for name in ODD_NAMES).encode()
    program = ("sh", "-c", 'printf "<%s><%s>\\n" "$1" "$CIEL_ELEMENT"', "sh", "{}")
    done = cluster.run("ciel", "submit", "--each-line", "-", "--", *program, stdin=lines)
    assert done == (0, "".join(f"<{name}><{name}>\n" for name in ODD_NAMES), "")
    assert not (cluster.home.path / "bad").exists()


@pytest.mark.parametrize("content", [b"a\n\nb\n", b"a\n\nb"])
def test_lines_may_have_any_ending(cluster: Cluster, content: bytes) -> None:
    (cluster.home.path / "lines").write_bytes(content)
    done = cluster.ciel("submit", "--each-line", "lines", "--", "echo", "<{}>")
    assert done == (0, "<a>\n<>\n<b>\n", "")


def test_an_empty_file_is_an_empty_array(cluster: Cluster) -> None:
    assert cluster.ciel("submit", "--each-line", "/dev/null", "--", "echo", "{}") == (
        0, "", "",
    )  # fmt: skip


LONG: Final = b"x" * 200_000
TOO_LONG: Final = "is longer than 131071 bytes, more than a program can receive"
LINES: Final = {
    "a zero byte": (b"a\0b\n", 1, "contains a NUL byte (-0 reads elements that end with NUL)"),
    "200 kB": (b"fine\n" + LONG + b"\n", 2, TOO_LONG),
    "20 MB without an end": (LONG * 100, 1, TOO_LONG),
}


@pytest.mark.parametrize("content, number, said", LINES.values(), ids=LINES)
def test_a_line_that_cannot_be_an_argument_ends_the_job(
    cluster: Cluster, content: bytes, number: int, said: str
) -> None:
    (cluster.home.path / "lines").write_bytes(content)
    status, _, text = cluster.ciel("submit", "--each-line", "lines", "--", "echo", "{}")
    assert (status, text) == (2, f"ciel: lines line {number} {said}\n")
    state = cluster.ciel("job", "list", "--limit", "1")[1]
    assert " cancelled " in state or number == 1, state


def test_an_element_that_makes_an_argument_too_long_ends_the_job(cluster: Cluster) -> None:
    words = ("submit", "--each-line", "-", "--", "echo", "{}{}")
    status, _, text = cluster.run("ciel", *words, stdin=b"x" * 100_000)
    assert (status, text) == (
        2,
        "ciel: standard input line 1 results in an argument or variable of 200000 bytes; "
        "a program can receive 131071\n",
    )


# --- output of commands ---------------------------------------------------------------------------


def test_output_that_cannot_be_written_is_reported_once(cluster: Cluster) -> None:
    script = "ciel submit --array 1-3 -- seq {}000 >/dev/full"
    assert cluster.run("sh", "-c", script) == (
        1, "", "ciel: standard output: No space left on device\n",
    )  # fmt: skip
    assert cluster.run("sh", "-c", "ciel status >/dev/full") == (
        1, "", "ciel: standard output: No space left on device\n",
    )  # fmt: skip


@pytest.mark.slow
def test_messages_that_cannot_be_written_do_not_change_the_status(cluster: Cluster) -> None:
    assert cluster.run("sh", "-c", "ciel submit -- echo out 2>/dev/full") == (0, "out\n", "")
    assert cluster.run("sh", "-c", "ciel submit --slots 0 -- true 2>/dev/full")[0] == 2
    assert cluster.run("sh", "-c", "ciel job info 9999 2>&-")[0] == 2


# --- daemons --------------------------------------------------------------------------------------

NOT_AN_ADDRESS: Final = "is not an address: expected HOST:PORT"
DAEMONS: Final = {
    "listen nowhere": ("master --listen nope", f"argument --listen: 'nope' {NOT_AN_ADDRESS}"),
    "a port too high": (
        "worker --listen 127.0.0.1:99999",
        f"argument --listen: '127.0.0.1:99999' {NOT_AN_ADDRESS}",
    ),
    "a socket instead of an address": (
        "master --listen unix:@x",
        f"argument --listen: 'unix:@x' {NOT_AN_ADDRESS}",
    ),
    "advertise nowhere": (
        "worker --advertise [::1",
        f"argument --advertise: '[::1' {NOT_AN_ADDRESS}",
    ),
    "advertise everywhere": (
        "worker --advertise 0.0.0.0:1",
        "argument --advertise: '0.0.0.0:1' is not an address to connect to: expected HOST:PORT",
    ),
    "no slots": ("worker --slots 0", "argument --slots: '0' is not a number from 1 to 1024"),
    "an unknown option": ("master --bogus", "unrecognized arguments: --bogus"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("command, said", DAEMONS.values(), ids=DAEMONS)
def test_a_daemon_names_the_wrong_option(cluster: Cluster, command: str, said: str) -> None:
    name, *words = command.split()
    assert cluster.run(f"ciel-{name}", *words) == (
        2, "", f"ciel-{name}: {said} (ciel-{name} --help tells more)\n",
    )  # fmt: skip


STARTS: Final = {
    "an address that is elsewhere": (
        "master --listen 192.0.2.1:0 --new-key",
        2,
        "cannot listen on 192.0.2.1:0: 192.0.2.1 is not an address of this machine",
    ),
    "a store that is not installed": (
        "worker --store no",
        2,
        "store 'no': not installed (there is: disk, scc, shm)",
    ),
    "a URL of no master": (
        "worker --master http://a:b",
        2,
        "--master: 'http://a:b' is not a master address: expected http://HOST:PORT",
    ),
    "a spool that is a file": ("worker --spool /etc/passwd", 1, "/etc/passwd: File exists"),
    "a log in a file": (
        "worker --log /etc/passwd/x",
        1,
        "cannot log to /etc/passwd/x: File exists",
    ),
    "a state directory that is a file": (
        "master --state /etc/passwd --listen 127.0.0.1:0",
        3,
        "access file /etc/passwd/access.json: it cannot be written: File exists",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("command, status, said", STARTS.values(), ids=STARTS)
def test_a_daemon_that_cannot_start_gives_the_reason(
    cluster: Cluster, command: str, status: int, said: str
) -> None:
    name, *words = command.split()
    ended, out, text = cluster.run(f"ciel-{name}", *words)
    *log, last = text.splitlines()
    assert (ended, out, last) == (status, "", f"ciel-{name}: {said}")
    assert all("#info]" in line or "[-]" in line for line in log), log


@pytest.mark.slow
def test_an_unknown_log_level_is_reported(cluster: Cluster) -> None:
    assert cluster.run("env", "CIEL_LOG_LEVEL=loud", "ciel-worker") == (
        2,
        "",
        "ciel-worker: CIEL_LOG_LEVEL: 'loud' is not a log level; "
        "the levels are debug, info, warn, error, critical\n",
    )
