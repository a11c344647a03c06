"""Tests programs that cannot start, do not end, tamper with their files or fail: each costs only
its own task.
"""

from __future__ import annotations

import json
import re
import shlex
import signal
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from ciel.testing.homes import wait_for
from ciel_tests.clusters.two_slots import Ends, TwoSlots

# --- programs that cannot start -------------------------------------------------------------------

FILES = {
    "no-interpreter": ("#!/no/such -x\necho hi\n", 0o755),
    "dos-script": ("#!/bin/sh\r\necho hi\r\n", 0o755),
    "no-first-line": ("echo hi\n", 0o755),
    "empty": ("", 0o755),
    "no-right": ("#!/bin/sh\necho hi\n", 0o644),
}

NOT_STARTED = {
    "no-such-program": (
        "its PATH contains no program of that name; install the program there, or use its path"
    ),
    "./absent": "there is no such file",
    "/tmp": "it is a directory",
    "./no-right": "it is not executable; chmod +x makes it so",
    "./no-interpreter": (
        "the interpreter that its first line names, '/no/such', does not exist there"
    ),
    "./dos-script": (
        "the interpreter that its first line names, '/bin/sh\\r', does not exist there"
    ),
    "./no-first-line": (
        "it is neither a program for that machine nor a script that begins with '#!'"
    ),
    "./empty": "it is empty",
}


@pytest.mark.slow
def test_a_program_that_cannot_start(cluster: TwoSlots) -> None:
    for name, (content, mode) in FILES.items():
        cluster.add_program(name, content, mode)
    kept = cluster.kept()
    for program, why in NOT_STARTED.items():
        named = program.replace("./", "HOME/")
        said = f"ciel: '{named}' could not be started on worker W: {why}\n"
        assert cluster.ends(cluster.submit("--", program)) == Ends(1, "", said)
    assert cluster.kept() == kept


# --- programs that do not end, or leave processes -------------------------------------------------


@pytest.mark.slow
def test_standard_input_is_empty(cluster: TwoSlots) -> None:
    assert cluster.ends(cluster.submit("--", "cat")) == Ends(0, "", "")


WITHOUT_END = {
    "sleeps": ("sleep inf", "SIGTERM"),
    "reads": ("cat /dev/zero >/dev/null", "SIGTERM"),
    "has descendants": ("setsid sleep inf & (sleep inf &); sleep inf; :", "SIGTERM"),
    "ignores SIGTERM": ("trap '' TERM; sleep inf; sleep inf", "SIGKILL"),
    "has stopped": ("kill -STOP $$", "SIGKILL"),
}


LIMITS = ("--timeout", "0.7", "--kill-grace", "0.3")


@pytest.mark.slow
def test_programs_are_killed_at_their_time_limit(cluster: TwoSlots) -> None:
    scripts = [script for script, _ in WITHOUT_END.values()]
    lines = submit_each(cluster, scripts, "sh", "-c", "eval $0", "{}", options=LIMITS)
    for (name, (script, signal_name)), line in zip(WITHOUT_END.items(), lines, strict=True):
        assert cluster.plain(line["story"]) == (
            f"sh -c 'eval $0' {shlex.quote(script)} was killed by {signal_name} on worker W: "
            "it ran longer than its limit of 0.7 s\n"
            "its files are kept in SPOOL/kept/TASK.1"
        ), name


CANCELLED = {
    "job cancel": Ends(4, "", "ciel: job N is cancelled: cancelled by its user\n"),
    "Ctrl-C": Ends(
        130,
        "",
        "ciel: cancelling job N; Ctrl-C again ends the command at once\nciel: interrupted\n",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("how", CANCELLED)
def test_a_program_that_ignores_signals_is_cancelled(cluster: TwoSlots, how: str) -> None:
    mark = cluster.home.path / how
    script = f"trap '' TERM INT HUP; (setsid sleep inf &); touch '{mark}'; sleep inf; sleep inf"
    process = cluster.home.start("ciel", "submit", "--kill-grace", "0.3", "--", "sh", "-c", script)
    wait_for(mark.exists, "the program to run")
    if how == "Ctrl-C":
        process.send_signal(signal.SIGINT)
    else:
        cancelled = cluster.run("job", "cancel", "last")
        assert cancelled.returncode == 0, cancelled.stderr
    stdout, stderr = process.communicate(timeout=20)
    said = re.sub(r"job (\d+|sh)\b", "job N", cluster.plain(stderr))
    assert Ends(process.returncode, stdout, said) == CANCELLED[how]


def submit_each(
    cluster: TwoSlots, elements: Iterable[str], *argv: str, options: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Run a program for each element; return the results in order."""
    (cluster.home.path / "elements").write_text("\n".join(elements))
    done = cluster.submit("--json", *options, "--each-line", "elements", "--", *argv)
    return [json.loads(line) for line in done.stdout.splitlines()[:-1]]


CHILDREN = {
    "in the background": "sleep inf &",
    "without its output": "sleep inf >&- 2>&- <&- &",
    "twice forked": "(sleep inf &)",
    "in a session of their own": "setsid sleep inf &",
    "twice forked, in a session, closed": "(setsid sleep inf >/dev/null 2>&1 </dev/null &)",
    "that ignore signals": "(trap '' TERM HUP; setsid sh -c 'trap \"\" TERM; sleep inf; :' &)",
}


@pytest.mark.slow
def test_children_end_with_their_program(cluster: TwoSlots) -> None:
    script = 'eval "$1"\necho done; sleep 0.1'
    lines = submit_each(cluster, CHILDREN.values(), "sh", "-c", script, "sh", "{}")
    for name, line in zip(CHILDREN, lines, strict=True):
        assert (line["state"], line.get("output")) == ("done", "done\n"), name


# --- programs that tamper with their files --------------------------------------------------------

MEDDLING = {
    "its directory": 'rm -rf "$CIEL_SCRATCH"',
    "the rights of its directory": 'mkdir -p a/b; chmod 0 a/b a "$CIEL_SCRATCH"',
    "a link for its directory": 'cd /; rmdir "$CIEL_SCRATCH"; ln -s /etc "${CIEL_SCRATCH%/}"',
    "a file for its directory": 'cd /; rmdir "$CIEL_SCRATCH"; touch "${CIEL_SCRATCH%/}"',
    "no complaints": 'rm -f "$err"',
    "a directory for its complaints": 'rm -f "$err"; mkdir "$err"',
    "a pipe for its complaints": 'rm -f "$err"; mkfifo "$err"',
    "a link for its complaints": 'rm -f "$err"; ln -s /etc/passwd "$err"',
    "no output": 'rm -f "$out"',
    "a directory for its output": 'rm -f "$out"; mkdir "$out"',
    "a pipe for its output": 'rm -f "$out"; mkfifo "$out"',
    "a link for its output": 'rm -f "$out"; ln -s /etc/passwd "$out"',
}


MEDDLE = """#!/bin/sh
out=$(readlink /proc/$$/fd/1)
err=$(readlink /proc/$$/fd/2)
eval "$1"
exit "$2"
"""


@pytest.mark.slow
@pytest.mark.parametrize("status", [0, 3])
def test_programs_that_tamper_with_their_files(cluster: TwoSlots, status: int) -> None:
    """A file that replaces another is neither followed, nor waited for, nor left behind."""
    cluster.add_program("meddle", MEDDLE)
    lines = submit_each(cluster, MEDDLING.values(), "./meddle", "{}", str(status))
    stories = [cluster.plain(line.get("story", line["state"])) for line in lines]
    for name, way, story in zip(MEDDLING, MEDDLING.values(), stories, strict=True):
        command = f"HOME/meddle {shlex.quote(way)} {status}"
        if status:
            expected = (
                f"{command} ended with exit status 3 on worker W\n"
                "its files are kept in SPOOL/kept/TASK.1"
            )
        elif "output" in name:
            expected = (
                f"the output of {command} on worker W is lost: "
                "the program deleted or replaced the file that it was given for this output"
            )
        else:
            expected = "done"
        assert story == expected, name


# --- programs that fail ---------------------------------------------------------------------------

COUNTING = """#!/bin/sh
echo "$CIEL_SCRATCH" >>"$1"
echo "attempt $CIEL_ATTEMPT" >&2
touch "attempt-$CIEL_ATTEMPT"
[ "$CIEL_ATTEMPT" -gt "$2" ] || exit 7
echo done
"""


@pytest.fixture
def counting(cluster: TwoSlots) -> str:
    """Return a program that records its directory in a file, and fails a given number of times."""
    return cluster.add_program("counting", COUNTING)


def deleted(name: str) -> str:
    """Return the message about a file in a private directory."""
    what = (
        f"ciel: files that a program creates in its private directory are deleted with it: {name}"
    )
    return f"{what}; without --scratch the program runs in this directory, where they stay\n"


@pytest.mark.slow
def test_a_program_that_fails_twice_runs_a_third_time(cluster: TwoSlots, counting: str) -> None:
    notes, before = cluster.home.path / "thrice", set(cluster.kept())
    done = cluster.submit("--scratch", "--retries", "2", "--", counting, str(notes), "2")
    assert cluster.ends(done) == Ends(0, "done\n", deleted("attempt-3"))
    assert len(notes.read_text().splitlines()) == 3
    first, second = sorted(set(cluster.kept()) - before, key=lambda path: path.suffix)
    assert (first / "scratch" / "attempt-1").exists()
    assert (second / "scratch" / "attempt-2").exists()
    assert (second / "stderr").read_text() == "attempt 2\n"


@pytest.mark.slow
def test_a_program_that_always_fails_is_reported_with_its_attempts(
    cluster: TwoSlots, counting: str
) -> None:
    notes = cluster.home.path / "always"
    done = cluster.submit("--scratch", "--retries", "2", "--", counting, str(notes), "9")
    said = (
        "ciel: HOME/counting HOME/always 9 ended with exit status 7 on worker W\n"
        "the end of its standard error:\n"
        "  attempt 3\n"
        "its files are kept in SPOOL/kept/TASK.3\n"
        "(attempt 3 of 3)\n"
    )
    assert cluster.ends(done) == Ends(1, "", said)
    named = Path(re.findall(r"kept in (\S+)", done.stderr)[0])
    assert (named / "scratch" / "attempt-3").exists()
    assert len(notes.read_text().splitlines()) == 3


@pytest.mark.slow
def test_the_directory_of_a_successful_program_is_deleted(cluster: TwoSlots, counting: str) -> None:
    notes, before = cluster.home.path / "once", cluster.kept()
    done = cluster.submit("--scratch", "--", counting, str(notes), "0")
    assert cluster.ends(done) == Ends(0, "done\n", deleted("attempt-1"))
    wait_for(lambda: not Path(notes.read_text().strip()).exists(), "the directory to go")
    assert cluster.kept() == before
