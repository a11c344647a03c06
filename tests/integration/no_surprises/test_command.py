"""Tests `ciel submit` and its output as users of xargs, GNU parallel and plain commands expect
them.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import termios
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ciel.testing.homes import HandCluster, Home

TIMEOUT_S = 60


@pytest.fixture
def shared(lasting_cluster: HandCluster) -> Home:
    """Return a home with a cluster of two workers, with a slot each."""
    return lasting_cluster.home


def run(
    home: Home, *argv: str | bytes, stdin: bytes | int | None = subprocess.DEVNULL
) -> subprocess.CompletedProcess[bytes]:
    """Run a command with bytes or a descriptor as its standard input."""
    given: dict[str, Any] = {"input": stdin} if isinstance(stdin, bytes) else {"stdin": stdin}
    done: subprocess.CompletedProcess[bytes] = subprocess.run(
        argv, env=home.environ, cwd=home.path, capture_output=True, timeout=TIMEOUT_S, **given
    )
    return done


def lines_of(done: subprocess.CompletedProcess[bytes]) -> list[str]:
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().splitlines()


# --- A: files of earlier runs, text of elements ---------------------------------------------------


def test_a_file_of_an_earlier_run_is_deleted_before_the_element_runs(shared: Home) -> None:
    command = ("ciel", "submit", "--out", "again", "--array")
    lines_of(run(shared, *command, "1-5", "echo", "old {}"))
    done = run(shared, *command, "1-3", "sh", "-c", "echo new {}; test {} != 2")
    assert done.returncode == 1
    found = {path.name: path.read_text() for path in (shared.path / "again").iterdir()}
    assert found == {
        "1": "new 1\n", "2.failed": "new 2\n", "3": "new 3\n", "4": "old 4\n", "5": "old 5\n"
    }  # fmt: skip
    lines_of(run(shared, *command, "2", "echo", "newer {}"))
    assert (shared.path / "again" / "2").read_text() == "newer 2\n"
    assert not (shared.path / "again" / "2.failed").exists()


@pytest.mark.slow
def test_zero_padding_is_kept_and_templates_work_in_variables_and_files(shared: Home) -> None:
    script = 'echo "{} $CIEL_ELEMENT $X"'
    command = ("ciel", "submit", "--array", "008-010", "--env", "X=<{}>")
    assert lines_of(run(shared, *command, "sh", "-c", script)) == [
        "008 008 <008>", "009 009 <009>", "010 010 <010>"
    ]  # fmt: skip
    lines_of(run(shared, *command, "--out", "padded/{}/{#}.txt", "sh", "-c", script))
    assert (shared.path / "padded" / "009" / "9.txt").read_text() == "009 009 <009>\n"


@pytest.mark.slow
def test_two_elements_are_never_written_to_one_file(shared: Home) -> None:
    command = ("ciel", "submit", "--each-line", "-", "--out", "same/{}", "echo", "{#}")
    done = run(shared, *command, stdin=b"a\nb\na\n")
    assert done.returncode == 2
    assert b"elements 1 and 3 would both be written to same/a" in done.stderr
    lines_of(run(shared, *command[:5], "same/{}-{#}", "echo", "{#}", stdin=b"a\nb\na\n"))
    assert sorted(os.listdir(shared.path / "same")) == ["a-1", "a-3", "b-2"]


# --- standard input -------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("count", [3, 300_000], ids=["little", "much"])
def test_standard_input_is_passed_to_a_single_program(shared: Home, count: int) -> None:
    content = "".join([f"{number}\n" for number in range(count)]).encode()
    piped = run(shared, "ciel", "submit", "cat", stdin=content)
    assert (piped.returncode, piped.stdout == content) == (0, True), piped.stderr
    (shared.path / "numbers").write_bytes(content)
    with (shared.path / "numbers").open("rb") as file:
        file.readline()
        os.lseek(file.fileno(), 2, os.SEEK_SET)
        read = run(shared, "ciel", "submit", "cat", stdin=file.fileno())
        assert read.stdout == content[2:]
        # the command has read it, as others do
        assert os.lseek(file.fileno(), 0, os.SEEK_CUR) == len(content)


@pytest.mark.slow
def test_pieces_of_standard_input_are_passed_to_elements(shared: Home) -> None:
    content = "".join([f"{number}\n" for number in range(40_000)]).encode()
    counts = lines_of(
        run(shared, "ciel", "submit", "--pipe", "--block", "50K", "wc", "-l", stdin=content)
    )
    assert len(counts) == len(content) // (50 << 10) + 1
    assert sum(map(int, counts)) == 40_000
    same = run(shared, "ciel", "submit", "--pipe", "--block", "9000", "cat", stdin=content)
    assert same.stdout == content


def test_standard_input_that_an_array_does_not_read_is_reported(shared: Home) -> None:
    (shared.path / "left").write_text("left alone\n")
    with (shared.path / "left").open("rb") as file:
        done = run(shared, "ciel", "submit", "--array", "1-2", "echo", "{}", stdin=file.fileno())
        assert os.lseek(file.fileno(), 0, os.SEEK_CUR) == 0
    assert lines_of(done) == ["1", "2"]
    assert b"do not read standard input: --each-line - starts" in done.stderr


@pytest.mark.parametrize("kind", ["null", "closed", "empty", "idle"])
def test_empty_or_idle_standard_input_does_not_disturb_an_array(shared: Home, kind: str) -> None:
    """This occurs in cron, in continuous integration, and behind ssh."""
    closed = "<&-" if kind == "closed" else ""
    command = ("sh", "-c", f"ciel submit --array 1-2 echo {{}} {closed}")
    read_fd, write_fd = os.pipe()
    if kind == "empty":
        os.close(write_fd)
    try:
        stdin = subprocess.DEVNULL if kind in ("null", "closed") else read_fd
        done = run(shared, *command, stdin=stdin)
    finally:
        os.close(read_fd)
        if kind != "empty":
            os.close(write_fd)
    assert (lines_of(done), done.stderr) == (["1", "2"], b"")


@pytest.mark.parametrize("redirect", ["</dev/null", "<&-"])
def test_a_program_without_standard_input_reads_nothing(shared: Home, redirect: str) -> None:
    done = run(shared, "sh", "-c", f"ciel submit cat {redirect}")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


@pytest.mark.slow
def test_a_command_that_waits_for_standard_input_says_so(shared: Home) -> None:
    process = shared.start("ciel", "submit", "cat", stdin=subprocess.PIPE)
    assert process.stderr is not None
    assert "waiting for the end of standard input, which cat will read" in process.stderr.readline()
    assert process.communicate("late\n", timeout=TIMEOUT_S)[0] == "late\n"


# --- options of the program -----------------------------------------------------------------------


@pytest.mark.slow
def test_options_after_the_program_belong_to_it(shared: Home) -> None:
    (shared.path / "sim.sh").write_text('#!/bin/sh\necho "$@"\n')
    (shared.path / "sim.sh").chmod(0o755)
    given = ("./sim.sh", "--name", "run7", "--out", "results")
    assert lines_of(run(shared, "ciel", "submit", *given)) == ["--name run7 --out results"]
    assert not (shared.path / "results").exists()
    assert lines_of(run(shared, "ciel", "submit", "--", *given)) == ["--name run7 --out results"]
    assert lines_of(run(shared, "ciel", "submit", "ls", "-d", "/"))[0] == "/"


# --- output of programs ---------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("size", [10, 30_000], ids=["short", "long"])
def test_output_of_a_failed_element_is_printed_in_order(shared: Home, size: int) -> None:
    script = f"head -c {size} /dev/zero | tr '\\0' {{}}; echo; test {{}} != 2"
    done = run(shared, "ciel", "submit", "--array", "1-3", "sh", "-c", script)
    assert done.returncode == 1
    assert done.stdout.decode().splitlines() == ["1" * size, "2" * size, "3" * size]
    again = run(shared, "ciel", "job", "output", "last")
    assert again.stdout == done.stdout
    assert again.returncode == 1


def test_output_of_a_program_that_timed_out_is_printed(shared: Home) -> None:
    script = "echo begun; exec sleep 60"
    done = run(shared, "ciel", "submit", "--timeout", "0.5s", "sh", "-c", script)
    assert (done.returncode, done.stdout) == (1, b"begun\n")
    assert b"longer than its limit" in done.stderr


@pytest.mark.slow
def test_standard_error_is_shown_line_by_line_while_programs_run(shared: Home) -> None:
    script = "echo one >&2; until [ -e go-{} ]; do sleep 0.02; done; echo two >&2; echo out"
    script = script.replace("go-", f"{shared.path}/go-")
    process = shared.start("ciel", "submit", "--stderr", "--array", "1-2", "sh", "-c", script)
    assert process.stderr is not None
    assert sorted(process.stderr.readline() for _ in "12") == ["[1] one\n", "[2] one\n"]
    (shared.path / "go-2").touch()
    assert process.stderr.readline() == "[2] two\n"
    (shared.path / "go-1").touch()
    out, err = process.communicate(timeout=TIMEOUT_S)
    assert (out, err) == ("out\nout\n", "[1] two\n")
    single = run(shared, "ciel", "submit", "--stderr", "sh", "-c", "echo why >&2")
    assert (single.stdout, single.stderr) == (b"", b"why\n")


@pytest.mark.slow
def test_standard_output_is_followed_line_by_line_while_programs_run(shared: Home) -> None:
    script = "echo {}-one; until [ -e on-{} ]; do sleep 0.02; done; printf {}-two; test {} = 1"
    script = script.replace("on-", f"{shared.path}/on-")
    process = shared.start("ciel", "submit", "--follow", "--array", "1-2", "sh", "-c", script)
    assert process.stdout is not None
    assert sorted(process.stdout.readline() for _ in "12") == ["1-one\n", "2-one\n"]
    (shared.path / "on-2").touch()
    assert process.stdout.read(5) == "2-two"
    (shared.path / "on-1").touch()
    out, _ = process.communicate(timeout=TIMEOUT_S)
    assert (out, process.returncode) == ("1-two", 1)


@pytest.mark.slow
def test_closing_the_output_of_submit_follow_ends_the_programs(shared: Home) -> None:
    command = "ciel submit --quiet --follow yes | head -n 1; echo ${PIPESTATUS[0]}"
    done = run(shared, "bash", "-c", command)
    assert done.stdout.split() == [b"y", b"141"]
    assert run(shared, "ciel", "job", "wait", "last").returncode == 4  # cancelled
    full = run(shared, "bash", "-c", "ciel submit --quiet --follow yes > /dev/full")
    assert full.returncode != 0
    assert full.stderr.endswith(b"standard output: No space left on device\n")
    whole = run(shared, "ciel", "submit", "--follow", "--json", "true")
    assert (whole.returncode, whole.stdout) == (2, b"")


@pytest.mark.slow
def test_another_command_can_follow_a_job_line_by_line(shared: Home) -> None:
    size = 30_000  # of a line without an end, which is printed with the rest
    script = f"echo {{}}-one; until [ -e also-{{}} ]; do sleep 0.02; done; printf %0{size}d 7"
    script = script.replace("also-", f"{shared.path}/also-") + "; test {} = 1"
    command = ("ciel", "submit", "--detach", "--follow", "--array", "1-2", "sh", "-c", script)
    begun = run(shared, *command)
    number = lines_of(begun)[0]
    assert begun.stderr.decode() == f"ciel: the job continues; ciel job output --follow {number}\n"
    early = shared.start("ciel", "job", "output", "--follow", number)
    assert early.stdout is not None
    assert sorted(early.stdout.readline() for _ in "12") == ["1-one\n", "2-one\n"]
    (shared.path / "also-2").touch()
    rest = "7".zfill(size)
    assert early.stdout.read(size) == rest
    late = shared.start("ciel", "job", "output", "-f", number)
    assert late.stdout is not None
    there = late.stdout.read(len("1-one\n2-one\n") + size)
    assert there.replace("1-one\n", "") == f"2-one\n{rest}"
    (shared.path / "also-1").touch()
    for process in (early, late):
        out, err = process.communicate(timeout=TIMEOUT_S)
        assert (out, process.returncode) == (rest, 1)
        assert f"1 of 2 results of job {number} failed:\nciel: 2: " in err
    again = run(shared, "ciel", "job", "output", "--follow", number)
    assert (again.stdout.decode(), again.returncode) == (f"1-one\n{rest}2-one\n{rest}", 1)


@pytest.mark.slow
def test_lines_of_an_attempt_that_failed_are_not_printed_again(shared: Home) -> None:
    script = "echo one; until [ -e tries ]; do sleep 0.02; done; echo two; rmdir tries/first || "
    script = script.replace("tries", f"{shared.path}/tries") + "{ echo three; exit 0; }; exit 1"
    options = ("--detach", "--follow", "--retries", "1")
    lines_of(run(shared, "ciel", "submit", *options, "sh", "-c", script))
    process = shared.start("ciel", "job", "output", "--follow", "last")
    assert process.stdout is not None
    assert process.stdout.readline() == "one\n"
    (shared.path / "new" / "first").mkdir(parents=True)
    (shared.path / "new").rename(shared.path / "tries")
    assert process.communicate(timeout=TIMEOUT_S) == ("two\nthree\n", "")
    assert process.returncode == 0


def test_output_that_cannot_be_followed_is_printed_when_its_program_ends(shared: Home) -> None:
    script = "echo {}; until [ -e end-{} ]; do sleep 0.02; done; echo {}"
    script = script.replace("end-", f"{shared.path}/end-")
    command = ("ciel", "submit", "--detach", "--array", "1-2", "sh", "-c", script)
    number = lines_of(run(shared, *command))[0]
    process = shared.start("ciel", "job", "output", "--follow", number)
    assert process.stderr is not None
    assert process.stdout is not None
    assert process.stderr.readline() == (
        f"ciel: job {number} was submitted without --follow: the output of a program "
        "is printed only when the program has ended\n"
    )
    (shared.path / "end-2").touch()
    assert process.stdout.read(4) == "2\n2\n"
    (shared.path / "end-1").touch()
    assert process.communicate(timeout=TIMEOUT_S) == ("1\n1\n", "")
    assert process.returncode == 0


@pytest.mark.slow
def test_a_command_that_stops_following_does_not_end_the_job(shared: Home) -> None:
    slow = ("sh", "-c", "while echo y; do sleep 0.01; done")  # so that its output fits into memory
    number = lines_of(run(shared, "ciel", "submit", "--detach", "--follow", "--", *slow))[0]
    command = f"ciel job output --follow {number} | head -n 1; echo ${{PIPESTATUS[0]}}"
    done = run(shared, "bash", "-c", command)
    assert (done.stdout.split(), done.stderr) == ([b"y", b"141"], b"")
    stays, leaves = [shared.start("ciel", "job", "output", "-f", number) for _ in "12"]
    for process in (stays, leaves):
        assert process.stdout is not None
        assert process.stdout.readline() == "y\n"
    leaves.send_signal(signal.SIGINT)
    _, err = leaves.communicate(timeout=TIMEOUT_S)
    assert err == f"ciel: job {number} continues; ciel job wait {number}\nciel: interrupted\n"
    assert leaves.returncode == 130
    (job,) = json.loads(run(shared, "ciel", "job", "list", "--limit", "1", "--json").stdout)
    assert (job["number"], job["state"]) == (int(number), "active")
    lines_of(run(shared, "ciel", "job", "cancel", number))
    _, err = stays.communicate(timeout=TIMEOUT_S)
    assert (stays.returncode, "cancelled by its user" in err) == (4, True)


@pytest.mark.slow
def test_follow_is_refused_with_options_that_need_whole_outputs(shared: Home) -> None:
    begun = run(shared, "ciel", "submit", "--detach", "--follow", "--json", "true")
    number = json.loads(lines_of(begun)[0])["job"]["number"]
    for option in (["--json"], ["--out", "followed"]):
        done = run(shared, "ciel", "job", "output", "--follow", *option, str(number))
        assert (done.returncode, done.stdout) == (2, b"")
        said = (
            f"ciel: --follow prints outputs while they grow, but {option[0]} needs complete ones\n"
        )
        assert done.stderr.decode() == said


# --- standard output that cannot be written -------------------------------------------------------


COMMANDS = (
    "ciel --help", "ciel --version", "ciel submit --help", "ciel job list --help",
    "ciel-worker --help", "ciel submit echo hello", "ciel job list --all", "ciel status",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_output_that_cannot_be_written_is_an_error(shared: Home, command: str) -> None:
    full = run(shared, "sh", "-c", f"{command} >/dev/full")
    assert full.returncode == 1
    assert full.stderr.endswith(b": standard output: No space left on device\n")
    assert full.stderr.count(b"\n") == 1
    if not command.startswith("ciel-worker"):
        closed = run(shared, "sh", "-c", f"{command} >&-")
        assert closed.returncode == 1
        assert closed.stderr.endswith(b": standard output: Bad file descriptor\n")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_closed_pipe_is_not_reported_as_an_error(shared: Home, command: str) -> None:
    script = f"{command} | true; echo ${{PIPESTATUS[0]}}"
    done = run(shared, "bash", "-c", script)
    assert done.stderr == b""
    assert done.stdout in (b"141\n", b"0\n")  # the second one if it was faster


# --- names as bytes -------------------------------------------------------------------------------


@pytest.mark.slow
def test_names_are_passed_as_bytes_everywhere(shared: Home) -> None:
    name = b"caf\xe9"
    (Path(os.fsdecode(os.fsencode(shared.path) + b"/" + name))).write_bytes(b"inside\n")
    assert run(shared, "ciel", "submit", "printf", "%s", name).stdout == name
    script = 'printf "%s." "$1" "$CIEL_ELEMENT"'
    listed = run(
        shared, "ciel", "submit", "--each-line", "-", "sh", "-c", script, "_", "{}",
        stdin=name + b"\nplain\n",
    )  # fmt: skip
    assert listed.stdout == name + b"." + name + b"." + b"plain.plain."
    sent = run(shared, "ciel", "submit", "--in", name, "--env", b"X=" + name, "sh", "-c",
               'cat "$X"')  # fmt: skip
    assert (sent.stdout, sent.stderr) == (b"inside\n", b"")
    failed = run(shared, "ciel", "submit", "sh", "-c", "exit 7", name)
    assert failed.returncode == 1
    assert b"exit status 7" in failed.stderr


def test_names_may_end_with_nul(shared: Home) -> None:
    done = run(
        shared, "ciel", "submit", "-0", "--each-line", "-", "printf", "<%s>", "{}",
        stdin=b"a b\0c\nd\r\0",
    )  # fmt: skip
    assert done.stdout == b"<a b><c\nd\r>"


def test_a_carriage_return_belongs_to_its_line_and_is_reported_once(shared: Home) -> None:
    command = ("ciel", "submit", "--each-line", "-", "printf", "<%s>", "{}")
    done = run(shared, *command, stdin=b"a\r\nb\r\n")
    assert done.stdout == b"<a\r><b\r>"
    assert done.stderr.count(b"carriage return") == 1


# --- the progress line at a terminal --------------------------------------------------------------


def at_terminal(home: Home, argv: Sequence[str], columns: int, **environ: str) -> str:
    """Run a command with a terminal of some width as its standard error; return its output
    there.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    env = home.environ | {"TERM": "xterm"} | environ
    with subprocess.Popen(
        argv,
        env=env,
        cwd=home.path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=theirs,
    ) as process:
        os.close(theirs)
        drawn = b""
        try:
            while data := os.read(ours, 4096):
                drawn += data
        except OSError:
            pass  # the end of a terminal
    os.close(ours)
    assert process.returncode == 0
    return drawn.decode()


def drawn_lines(drawn: str) -> list[str]:
    """Return the successive contents of the progress line, without colours."""
    return re.sub("\x1b\\[[0-9]*m", "", drawn).split("\r\x1b[K")


@pytest.mark.slow
@pytest.mark.parametrize("columns", [20, 40, 200])
def test_the_progress_line_never_wraps_and_a_summary_stays(shared: Home, columns: int) -> None:
    argv = ("ciel", "submit", "--name", "a rather long name", "--array", "1-6", "sleep", "0.25")
    *pictures, last = drawn_lines(at_terminal(shared, argv, columns))
    assert len(pictures) > 2
    assert all(len(picture) < columns and "\n" not in picture for picture in pictures)
    assert re.fullmatch(r"ciel: a rather long name: 6 done in \S+\r\n", last)
    if columns == 200:
        assert any(" left" in picture for picture in pictures)
        running = [int(n) for n in re.findall(r"(\d+) running", "".join(pictures))]
        assert max(running) in (1, 2)  # of two slots


@pytest.mark.slow
def test_colours_are_used_only_on_terminals_that_support_them(shared: Home) -> None:
    argv = ("ciel", "submit", "--array", "1-2", "sleep", "0.4")
    assert "\x1b[32m" in at_terminal(shared, argv, 100)
    assert "\x1b[32m" not in at_terminal(shared, argv, 100, NO_COLOR="1")
    assert "\x1b[32m" not in at_terminal(shared, argv, 100, TERM="dumb")


def test_the_progress_line_is_redrawn_when_the_terminal_is_resized(shared: Home) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    process = shared.start(
        "ciel", "submit", "--array", "1-2", "sh", "-c",
        f"until [ -e {shared.path}/resized ]; do sleep 0.02; done", stderr=theirs,
    )  # fmt: skip
    os.close(theirs)
    drawn = b""
    while b"in all" not in drawn:
        drawn += os.read(ours, 4096)
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 12, 0, 0))
    process.send_signal(signal.SIGWINCH)
    narrow = ""
    while narrow.count("\u2026") < 2:
        narrow += os.read(ours, 4096).decode(errors="replace")
    assert all(len(line) < 12 for line in drawn_lines(narrow)[1:])
    (shared.path / "resized").touch()
    try:
        while os.read(ours, 4096):
            pass
    except OSError:
        pass
    process.communicate(timeout=TIMEOUT_S)
    os.close(ours)
    assert process.returncode == 0


# --- F: further requests --------------------------------------------------------------------------


def test_f_sizes_and_times_are_accepted_in_common_formats(shared: Home) -> None:
    options = ("--memory", "2M", "--timeout", "01:00:00")
    assert lines_of(
        run(shared, "ciel", "submit", *options, "sh", "-c", "echo $CIEL_MEMORY_BYTES")
    ) == [str(2 << 20)]


@pytest.mark.slow
def test_f_an_array_may_be_a_list_with_a_limit_of_running_elements(shared: Home) -> None:
    place = shared.path / "few"
    place.mkdir()
    script = f"touch {place}/{{}}; ls {place} | wc -l; sleep 0.05; rm {place}/{{}}"
    for words in (("--array", "1,3,5-9%1"), ("--array", "1,3,5-9", "-j", "1")):
        assert lines_of(run(shared, "ciel", "submit", *words, "sh", "-c", script)) == ["1"] * 7


def test_f_unordered_results_are_printed_as_they_are_ready(shared: Home) -> None:
    mark = shared.path / "second-is-out"
    script = f"if [ {{}} = 1 ]; then until [ -e {mark} ]; do sleep 0.02; done; fi; echo {{}}"
    process = shared.start("ciel", "submit", "--unordered", "--array", "1-2", "sh", "-c", script)
    assert process.stdout is not None
    assert process.stdout.readline() == "2\n"
    mark.touch()
    assert process.communicate(timeout=TIMEOUT_S)[0] == "1\n"


@pytest.mark.slow
def test_f_each_element_can_have_its_own_inputs(shared: Home) -> None:
    lines_of(run(shared, "ciel", "submit", "--array", "1-3", "expr", "{}", "*", "10"))
    read = ("--object", "in=last:{}", "cat", "in")
    assert lines_of(run(shared, "ciel", "submit", "--array", "1-3", *read)) == ["10", "20", "30"]
    for name in "ab":
        (shared.path / f"{name}.csv").write_text(f"data of {name}\n")
    words = ("--each-line", "-", "--in", "{}.csv", "cat", "{}.csv")
    done = run(shared, "ciel", "submit", *words, stdin=b"a\nb\n")
    assert lines_of(done) == ["data of a", "data of b"]


def test_f_a_joblog_has_a_line_for_each_element(shared: Home) -> None:
    script = "test {} != 2 || exit 3; test {} != 3 || kill -KILL $$; sleep 0.1; echo {}"
    done = run(shared, "ciel", "submit", "--joblog", "log", "--array", "1-4", "sh", "-c", script)
    assert done.returncode == 1
    heading, *rows = [line.split("\t") for line in (shared.path / "log").read_text().splitlines()]
    assert heading == [
        "Seq", "Host", "Starttime", "JobRuntime", "Send", "Receive", "Exitval", "Signal", "Command"
    ]  # fmt: skip
    found = {row[0]: (row[5], row[6], row[7]) for row in rows}
    assert found == {
        "1": ("2", "0", "0"), "2": ("0", "3", "0"), "3": ("0", "0", "9"), "4": ("2", "0", "0")
    }  # fmt: skip
    assert all(row[1] == os.uname().nodename for row in rows)
    assert all(float(row[2]) > 1e9 for row in rows)
    assert float(rows[0][3]) >= 0.1
    assert (
        rows[3][8]
        == "sh -c 'test 4 != 2 || exit 3; test 4 != 3 || kill -KILL $$; sleep 0.1; echo 4'"
    )


@pytest.mark.slow
def test_f_json_carries_binary_output_without_loss(shared: Home) -> None:
    line = run(shared, "ciel", "submit", "--json", "printf", r"\377\351").stdout.splitlines()[0]
    told = json.loads(line)
    assert (told["output"], told["encoding"]) == ("/+k=", "base64")
    text = json.loads(run(shared, "ciel", "submit", "--json", "echo", "x").stdout.splitlines()[0])
    assert (text["output"], "encoding" in text) == ("x\n", False)
    for words in (("job", "output", "last"), ("object", "get", "last:1")):
        told = json.loads(run(shared, "ciel", *words, "--json").stdout.splitlines()[0])
        assert told["output"] == "x\n"


# --- F: files that programs produced --------------------------------------------------------------


def files_below(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


@pytest.mark.slow
def test_f_files_of_an_array_are_collected_from_private_directories(shared: Home) -> None:
    (shared.path / "given.txt").write_text("given\n")
    script = (
        'mkdir parts; cat given.txt >"[$1].txt"; echo $1 >parts/a.csv; echo >parts/.hidden; echo'
    )
    command = ("ciel", "submit", "--in", "given.txt", "--array", "1-3", "--out", "brought")
    names = ("--collect", "[[]{}].txt", "--collect", "**/*.csv")
    done = run(shared, *command, *names, "sh", "-c", f"{script} printed {{}}", "sh", "{}")
    assert lines_of(done) == ["printed 1", "printed 2", "printed 3"]
    assert b".csv" not in done.stderr  # not among the deleted files
    expected = {f"{n}/[{n}].txt": b"given\n" for n in "123"}
    expected |= {f"{n}/parts/a.csv": f"{n}\n".encode() for n in "123"}
    assert files_below(shared.path / "brought") == expected
    again = run(shared, "ciel", "job", "output", "last")
    assert again.stdout == done.stdout


def test_f_a_file_of_any_name_and_size_keeps_its_bytes_and_its_executable_bit(shared: Home) -> None:
    name = b"caf\xe9 [1]\n"
    script = 'head -c 5000000 /dev/zero >"$1"; chmod 700 "$1"'
    command = ("ciel", "submit", "--scratch", "--each-line", "-", "-0", "--out", "any/{#}")
    done = run(
        shared, *command, "--collect", "{}", "sh", "-c", script, "sh", "{}", stdin=name + b"\0"
    )
    assert lines_of(done) == []
    path = os.path.join(os.fsencode(shared.path), b"any", b"1", name)
    assert (os.path.getsize(path), os.access(path, os.X_OK)) == (5_000_000, True)


def test_f_a_program_in_the_callers_directory_leaves_its_file_there(shared: Home) -> None:
    command = ("ciel", "submit", "--collect", "made.txt", "--out")
    lines_of(run(shared, *command, "one", "sh", "-c", "echo new >made.txt"))
    assert (shared.path / "one" / "made.txt").read_text() == "new\n"
    lines_of(run(shared, *command, ".", "sh", "-c", "echo more >>made.txt"))
    assert (shared.path / "made.txt").read_text() == "new\nmore\n"


def test_f_a_missing_collected_file_is_an_error_of_its_element(shared: Home) -> None:
    (shared.path / "stale.txt").write_text("old\n")
    script = "test $1 = 2 || echo $1 >made.txt"
    command = ("ciel", "submit", "--collect", "made.txt", "--out", "some")
    (shared.path / "some" / "2").mkdir(parents=True)
    (shared.path / "some" / "2" / "made.txt").write_text("of an earlier run\n")
    done = run(shared, *command, "--scratch", "--array", "1-3", "sh", "-c", script, "sh", "{}")
    assert done.returncode == 1
    assert b"1 of 3 elements failed" in done.stderr
    assert b"the program created no file 'made.txt'" in done.stderr
    assert files_below(shared.path / "some") == {"1/made.txt": b"1\n", "3/made.txt": b"3\n"}
    done = run(shared, "ciel", "submit", "--collect", "stale.txt", "--out", "some", "true")
    assert (done.returncode, b"is older than the task, and unchanged" in done.stderr) == (1, True)


@pytest.mark.parametrize("name", ["/etc/passwd", "../x", "a/../../x", ""])
def test_f_only_files_below_the_programs_directory_can_be_collected(
    shared: Home, name: str
) -> None:
    done = run(shared, "ciel", "submit", "--collect", name, "--out", "o", "true")
    assert (done.returncode, b"--collect" in done.stderr) == (2, True), done.stderr


@pytest.mark.slow
def test_f_collecting_does_not_change_how_a_program_ends(shared: Home) -> None:
    command = ("ciel", "submit", "--collect", "x", "--out", "ends", "--scratch")
    for program, told in (
        (("sh", "-c", "exit 7"), b"exit status 7"),
        (("sh", "-c", "kill -SEGV $$"), b"SIGSEGV"),
        (("no-such-program",), b"no-such-program cannot be started: No such file"),
    ):
        done = run(shared, *command, *program)
        assert (done.returncode, told in done.stderr) == (1, True), done.stderr
    graceful = "trap 'echo saved; exit 3' TERM; sleep 30 & wait"
    done = run(shared, *command, "--timeout", "0.5s", "sh", "-c", graceful)
    assert (done.returncode, done.stdout) == (1, b"saved\n"), done.stderr
