"""Runs the commands that show and change jobs, on one cluster that all tests share."""

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
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from ciel.cli.jobs import results as job_results
from ciel.testing.homes import WORKER_ID, Home, wait_for
from ciel.worker.host import host_name

SCRIPT = "echo {}; echo why {} >&2; test $(({} % 7)) != 0"


Typed = Callable[..., tuple[int, str, str]]


class Up(Home):
    """A home in which a cluster is up."""

    def __init__(self, path: Path, typed: Typed, *options: str) -> None:
        super().__init__(path)
        self._typed = typed
        words = ("--workers", "2", "--slots", "1", "--listen", "127.0.0.1:0", *options)
        done = self.run("ciel", "up", *words)
        assert done.returncode == 0, done.stderr

    def down(self) -> None:
        self.ciel("down", "--force")
        for pid in self.processes():
            os.kill(pid, signal.SIGKILL)

    def ciel(self, *words: str) -> tuple[int, str, str]:
        """Run a command; return its status, output and standard error."""
        return self._typed(self, *words)

    def shown(self, *words: str) -> str:
        """Return the output of a command that succeeds, with names instead of parts that vary."""
        status, out, err = self.ciel(*words)
        assert (status, err) == (0, "")
        return normalised(out)

    def facts(self, *words: str) -> Any:
        status, out, _ = self.ciel(*words, "--json")
        assert status in (0, 1)
        (line,) = out.splitlines()
        return json.loads(line)

    def submit(self, *words: str) -> str:
        """Submit a detached job; return its number."""
        status, out, err = self.ciel("submit", "--detach", *words)
        assert status == 0, err
        return out.strip()

    def fail_until(self, mark: Path) -> str:
        """Submit three tasks, two of which fail as long as a file is missing."""
        script = f"echo {{}}; test {{}} = 2 || test -e {mark}"
        number = self.submit("--array", "1-3", "--", "sh", "-c", script)
        assert self.ciel("job", "wait", number)[0] == 1
        return number


def normalised(text: str) -> str:
    for pattern, name in (
        (r"\b[0-9a-f]{32}\b", "ID"),
        (WORKER_ID, "WORKER"),
        (r"\b\d\d:\d\d:\d\d\b", "CLOCK"),
        (r"127\.0\.0\.1:\d+", "ADDRESS"),
        (r"\S*/kept/\S*", "KEPT"),
        (r"\b\d+(\.\d+)? ?s\b", "TIME"),
        (r" +\n", "\n"),
        (r" {2,}(?=\S)", "  "),
    ):
        text = re.sub(pattern, name, text)
    return text


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory, typed: Typed) -> Iterator[Up]:
    up = Up(tmp_path_factory.mktemp("up"), typed)
    yield up
    up.down()
    assert list(up.tmp.iterdir()) == []


@pytest.fixture(scope="module")
def array(up: Up) -> str:
    """Run thirty elements, four of which fail."""
    number = up.submit("--name", "thirty", "--array", "1-30", "--", "sh", "-c", SCRIPT)
    assert up.ciel("job", "wait", number)[0] == 1
    return number


@pytest.fixture
def sleeper(up: Up, request: pytest.FixtureRequest) -> Iterator[str]:
    """Start a job that runs until it is cancelled."""
    number = up.submit("--name", "sleeper", "--", "sleep", "1000")
    yield number
    up.ciel("job", "cancel", number)


# --- selectors ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words, said",
    [
        (["job", "info", "999"], "no job 999; "),
        (["job", "rm", "998-999"], "no job 998-999; "),
        (["job", "cancel", "last,999"], "no job 999; "),
        (["job", "wait", "f" * 32], f"no job {'f' * 32}; "),
        (["job", "output", "9-1"], "'9-1' runs backwards"),
        (["job", "log", "1:2"], "'1:2' names a task"),
        (["task", "list", "999"], "no job 999; "),
        (["task", "info", "last:999"], "has no task 999"),
        (["task", "explain", "last:90-99"], "has no task 90-99"),
        (["task", "log", "last:90-99"], "has no task 90-99"),
        (["task", "log", "last:nobody"], "has no task nobody"),
        (["task", "info", "1-2:3"], "more than one job"),
    ],
)
def test_a_selector_without_a_match_is_reported_in_one_sentence(
    up: Up, array: str, words: list[str], said: str
) -> None:
    status, out, err = up.ciel(*words)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert said in err


def test_jobs_can_be_selected_in_every_way(up: Up, array: str) -> None:
    other = up.submit("--", "true")
    (job,) = up.facts("job", "wait", other)
    for words in ([f"{array},{other}"], [array, other], [array, "last"], [array, job["id"]]):
        _, out, _ = up.ciel("job", "info", "--json", *words)
        assert [json.loads(line)["number"] for line in out.splitlines()] == [
            int(array), int(other),
        ]  # fmt: skip


# --- jobs -----------------------------------------------------------------------------------------


def test_a_job_in_the_list(up: Up, array: str) -> None:
    _, out, _ = up.ciel("job", "list", "--all")
    heading, *rows = normalised(out).splitlines()
    assert heading.split() == [
        "JOB", "NAME", "STATE", "TASKS", "DONE", "FAILED", "CANCELLED", "TIME", "AGE"
    ]  # fmt: skip
    (row,) = [row for row in rows if row.split()[0] == array]
    assert row.split() == [array, "thirty", "failed", "30", "26", "4", "0", "TIME", "TIME"]


def test_the_list_shows_the_newest_jobs_and_the_number_of_all(up: Up, array: str) -> None:
    up.submit("--name", "newest", "--", "true")
    status, out, err = up.ciel("job", "list", "--limit", "1")
    assert status == 0
    assert len(out.splitlines()) == 2
    assert "newest" in out
    assert re.fullmatch(r"ciel: the newest 1 of \d+ jobs; --all lists them all\n", err)


def test_job_info(up: Up, array: str) -> None:
    told = up.shown("job", "info", array)
    head, _, rest = told.partition("\n\n")
    table, _, failures = rest.partition("\n\n")
    assert re.sub(r"WORKER \(\d+ attempts?\)", "WORKER (N)", head) == (
        f"job {array} (ID): thirty\n"
        "state: failed\n"
        "command: sh -c 'echo 1; echo why 1 >&2; test $((1 % 7)) != 0' (the first of 30 tasks)\n"
        "ran on: WORKER (N), WORKER (N)\n"
        "tasks: 26 done, 4 failed\n"
        "results: 30 wanted\n"
        "time: TIME, submitted at CLOCK, TIME ago, ended CLOCK\n"
        "history:\n"
        "  CLOCK created\n"
        "  CLOCK its first task was sent to worker WORKER\n"
        "  CLOCK failed: RUNTIME_EXCEPTION: sh -c 'echo 7; echo why 7 >&2; test $((7 % 7)) != 0' "
        "ended with exit status 1 on worker WORKER"
    )
    assert table.endswith(f"\n10 of 30 tasks are shown; `ciel task list {array} --all` lists all")
    first, *others = failures.split("\n\n")
    assert first == (
        "output ID:out:0 of task 7 failed (RUNTIME_EXCEPTION):\n"
        "  sh -c 'echo 7; echo why 7 >&2; test $((7 % 7)) != 0' ended with exit status 1 "
        "on worker WORKER\n"
        "  the end of its standard error:\n"
        "  why 7\n"
        "  its files are kept in KEPT"
    )
    assert len(others) == 3


def test_json_of_a_job_contains_durations_and_times(up: Up, array: str) -> None:
    job = up.facts("job", "info", array)
    assert sorted(job) == [
        "age_s", "counts", "created_at_s", "elapsed_s", "ended_at_s", "failures", "first_task",
        "handed_over", "history", "id", "name", "number", "open", "ran_on", "reason", "state",
        "tasks", "unsettled", "wanted",
    ]  # fmt: skip
    assert job["counts"] == {"done": 26, "failed": 4}
    assert 0 <= job["elapsed_s"] <= job["age_s"] < 1000
    assert [sorted(failure) for failure in job["failures"]] == [
        ["object", "reason", "story", "task"]
    ] * 4
    jobs = up.facts("job", "list", "--all")
    assert set(jobs[0]) == set(job) - {
        "failures", "first_task", "history", "open", "ran_on", "tasks",
    }  # fmt: skip


def test_status_does_not_show_the_clock_of_the_master(up: Up) -> None:
    status = up.facts("status")
    assert {key for key in status if key.endswith("_s")} == {"up_s"}
    assert 0 <= status["up_s"] < 1000


def test_a_log_that_ends_without_a_newline_is_printed_to_its_end(up: Up) -> None:
    number = up.submit("--", "sh", "-c", "echo one >&2; printf two >&2")
    assert up.ciel("job", "wait", number)[0] == 0
    status, out, err = up.ciel("job", "log", number)
    assert (status, err) == (0, "")
    assert [line.partition("] ")[2] or line for line in out.splitlines()] == ["one", "two"]


def test_browse_prints_a_link_that_lets_one_browser_in(up: Up, array: str) -> None:
    _, link, _ = up.ciel("browse", "--no-open")
    cookies = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    with cookies.open(link.strip(), timeout=20) as answer:
        assert "/control/browse/job/" in answer.url
        assert "jobs</h1>" in answer.read().decode()
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(link.strip(), timeout=20)


def test_waiting_for_several_jobs_returns_the_worst_status(up: Up, array: str) -> None:
    good = up.submit("--", "true")
    assert up.ciel("job", "wait", good) == (0, "", "")
    status, _, err = up.ciel("job", "wait", f"{array},{good}")
    assert status == 1
    assert f"job {array} is failed" in err


def test_several_jobs_are_cancelled_at_once(up: Up) -> None:
    jobs = [up.submit("--", "sleep", "1000") for _ in range(3)]
    status, out, err = up.ciel("job", "cancel", f"{jobs[0]}-{jobs[2]}")
    assert (status, out) == (0, "")
    assert err == "".join(f"ciel: job {job} is cancelled\n" for job in jobs)
    assert up.ciel("job", "wait", jobs[0])[0] == 4
    status, _, err = up.ciel("job", "cancel", jobs[0])
    assert (status, err) == (0, f"ciel: job {jobs[0]} had ended already: it is cancelled\n")


def test_failed_tasks_run_again_and_the_job_goes_on(up: Up) -> None:
    mark = up.path / "mended"
    number = up.fail_until(mark)
    mark.touch()
    status, out, err = up.ciel("job", "retry", number, "--failed", "--wait")
    assert (status, out, err) == (0, "", f"ciel: job {number}: 2 tasks run again\n")
    assert up.ciel("job", "output", number) == (0, "1\n2\n3\n", "")
    status, _, err = up.ciel("job", "retry", number)
    assert status == 1
    why = "it is completed, and no task failed"
    assert err == f"ciel: job {number} cannot be retried: {why}\n"


def test_waiting_for_a_retried_job_returns_its_status(up: Up) -> None:
    number = up.fail_until(up.path / "never")
    assert up.ciel("job", "retry", number, "--wait")[0] == 1


def test_a_job_that_is_removed_is_gone(up: Up) -> None:
    number = up.submit("--", "true")
    up.ciel("job", "wait", number)
    assert up.ciel("job", "rm", number) == (0, "", "ciel: removed 1 job\n")
    assert up.ciel("job", "info", number)[0] == 2


def test_a_job_that_runs_is_not_removed(up: Up, sleeper: str) -> None:
    status, out, err = up.ciel("job", "rm", sleeper)
    assert (status, out) == (1, "")
    assert err == f"ciel: job {sleeper} has not ended; cancel it first\n"


@pytest.mark.slow
def test_all_selects_the_jobs_to_which_a_command_applies(tmp_path: Path, typed: Typed) -> None:
    up = Up(tmp_path, typed)
    try:
        assert up.ciel("job", "list") == (0, "no jobs\n", "")
        assert up.ciel("job", "wait", "all")[0] == 0
        assert up.ciel("job", "info", "last")[0] == 2
        for program in ("true", "false"):
            up.submit("--", program)
        up.ciel("job", "wait", "1-2")
        runs = up.submit("--", "sleep", "1000")
        assert up.ciel("job", "rm", "all") == (
            0, "", f"ciel: removed 2 jobs\nciel: did not remove unfinished jobs: {runs}\n"
        )  # fmt: skip
        assert up.facts("job", "rm", "all") == {"removed": [], "left": [3]}
        assert up.ciel("job", "cancel", "all") == (0, "", f"ciel: job {runs} is cancelled\n")
        assert up.ciel("job", "cancel", "all") == (0, "", "ciel: there are no unfinished jobs\n")
    finally:
        up.down()


# --- output ---------------------------------------------------------------------------------------


def test_output_is_printed_in_order_and_failures_at_the_end(up: Up, array: str) -> None:
    status, out, err = up.ciel("job", "output", array)
    assert status == 1
    assert out.split() == [str(n) for n in range(1, 31)]  # includes the output of failed elements
    first, *lines = err.splitlines()
    assert first == f"ciel: 4 of 30 results of job {array} failed:"
    told = [line.partition(": sh -c")[0] for line in lines if line.startswith("ciel: ")]
    assert told == ["ciel: 7", "ciel: 14", "ciel: 21", "ciel: 28"]


def test_output_is_read_from_the_workers_that_hold_it(up: Up) -> None:
    number = up.submit("--array", "1-4", "--", "seq", "{}", "3000")
    expected = ["".join(f"{n}\n" for n in range(start, 3001)) for start in range(1, 5)]
    # the command waits for the job
    assert up.ciel("job", "output", number) == (0, "".join(expected), "")
    assert up.ciel("job", "output", number, "--out", "results") == (0, "", "")
    files = sorted((up.path / "results").iterdir())
    assert [(path.name, path.read_text()) for path in files] == list(
        zip("1234", expected, strict=True)
    )
    other = up.submit("--", "echo", "x")
    assert up.ciel("job", "output", f"{number},{other}", "--out", "several")[0] == 0
    assert (up.path / "several" / number / "4").read_text() == expected[3]
    assert (up.path / "several" / other / "1").read_text() == "x\n"


def test_output_as_json(up: Up, array: str) -> None:
    status, out, _ = up.ciel("job", "output", array, "--json")
    assert status == 1
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["number"] for row in rows] == list(range(1, 31))
    assert (rows[0]["state"], rows[0]["output"], rows[0]["name"]) == ("done", "1\n", "1")
    assert (rows[6]["state"], "why 7" in rows[6]["story"]) == ("failed", True)


def test_handed_over_results_cannot_be_printed_which_is_reported(up: Up) -> None:
    program = (
        "from ciel import Client\n"
        "with Client() as client, client.job('taken') as job:\n"
        "    parts = [job.run(['echo', str(n)]) for n in range(3)]\n"
        "    list(job.results(parts))\n"
        "    job.release(parts[:2], for_good=True)\n"
    )
    assert up.run("python", "-c", program).returncode == 0
    status, out, err = up.ciel("job", "output", "last")
    assert (status, out) == (1, "2\n")
    assert "handed 2 results over" in err
    assert "results: 3 wanted, 2 handed over to the client" in up.shown("job", "info", "last")


def test_the_output_of_a_cancelled_job(up: Up) -> None:
    number = up.submit("--", "sleep", "1000")
    up.ciel("job", "cancel", number)
    status, out, err = up.ciel("job", "output", number)
    assert (status, out) == (4, "")
    assert f"1 of 1 results of job {number} failed" in err


@pytest.mark.slow
def test_a_lost_result_is_reported(
    tmp_path: Path, typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_results, "LOSS_NOTICE_S", 0.1)
    up = Up(tmp_path, typed, "--store", "disk")  # here a file can be removed unnoticed
    try:
        number = up.submit("--array", "1-3", "--", "seq", "{}", "1777")
        assert up.ciel("job", "wait", number)[0] == 0
        second = up.facts("task", "info", f"{number}:2")["outputs"][0]["object"]
        begin = second.partition(":")[0]
        (held,) = [path for path in up.tmp.rglob("*") if path.name.startswith(begin)]
        held.unlink()
        status, out, err = up.ciel("job", "output", number)
        assert (status, out.count("1777\n")) == (1, 2)
        told = f"1 of 3 results of job {number} failed:\nciel: 2: cannot read object {second}"
        assert told in err
    finally:
        up.down()


@pytest.mark.slow
def test_results_lost_with_their_worker_are_recomputed(tmp_path: Path, typed: Typed) -> None:
    up = Up(tmp_path, typed)
    try:
        up.submit("--array", "1-8", "--", "seq", "{}", "1777")
        assert up.ciel("job", "wait", "1")[0] == 0
        workers = [
            pid for pid, words in up.processes().items() if "ciel.cli.daemons.worker" in words
        ]
        os.kill(workers[0], signal.SIGKILL)
        status, out, err = up.ciel("job", "output", "1")
        assert (status, out.count("1777\n"), err) == (0, 8, "")
    finally:
        up.down()


# --- logs -----------------------------------------------------------------------------------------


def test_the_log_has_the_lines_of_all_workers(up: Up, array: str) -> None:
    status, out, err = up.ciel("job", "log", array)
    assert (status, err) == (0, "")
    assert sorted(out.splitlines()) == sorted(f"[{n}] why {n}" for n in range(1, 31))
    status, out, _ = up.ciel("job", "log", array, "--json")
    lines = [json.loads(line) for line in out.splitlines()]
    assert {line["job"] for line in lines} == {int(array)}
    assert {line["worker"] for line in lines} == {
        worker["worker"] for worker in up.facts("worker", "list")
    }  # fmt: skip
    assert sorted(line["line"] for line in lines) == sorted(f"[{n}] why {n}" for n in range(1, 31))


def test_logs_of_several_jobs_name_the_job(up: Up, array: str) -> None:
    other = up.submit("--", "sh", "-c", "echo else >&2")
    up.ciel("job", "wait", other)
    out = up.ciel("job", "log", array, other)[1]
    assert f"job {array} [1] why 1\n" in out
    assert f"job {other} [1] else\n" in out


@pytest.mark.parametrize(
    "task, numbers",
    [("3", [3]), ("2-4", [2, 3, 4]), ("1-30:10", [1, 11, 21]), ("", range(1, 31))],
)
def test_the_log_of_tasks_contains_only_their_lines(
    up: Up, array: str, task: str, numbers: Sequence[int]
) -> None:
    status, out, err = up.ciel("task", "log", f"{array}:{task}" if task else array)
    assert (status, err) == (0, "")
    assert sorted(out.splitlines()) == sorted(f"[{n}] why {n}" for n in numbers)


def test_a_log_is_followed_until_the_job_has_ended(up: Up) -> None:
    gate = up.path / "gate"
    waits = f"while ! test -e {gate}; do sleep 0.05; done"
    script = f"yes {{}} | head -c 3000 | tr -d '\\n' >&2; test {{}} = 1 || {waits}"
    number = up.submit("--array", "1-12", "--", "sh", "-c", script)
    follower = up.start("ciel", "job", "log", "-f", number)
    assert follower.stdout is not None
    lines = [follower.stdout.readline()]  # it arrives while the job runs
    assert lines[0].startswith("[1] 111")
    gate.touch()
    ended_s = time.monotonic()
    out, err = follower.communicate(timeout=30)
    assert (follower.returncode, err) == (0, "")
    assert time.monotonic() - ended_s < 15  # a reader alone would wait for 20 s
    lines += out.splitlines(keepends=True)
    found = {int(line[1 : line.index("]")]): line for line in lines}
    assert sorted(found) == list(range(1, 13))
    assert all(re.fullmatch(rf"\[{n}\] ({n})+\d?\n", line) for n, line in found.items())


def test_following_can_be_interrupted_with_one_message(up: Up) -> None:
    number = up.submit(
        "--array", "1-2", "--", "sh", "-c", "echo hear >&2; test {} = 1 || sleep 1000"
    )
    follower = up.start("ciel", "job", "log", "-f", number)
    assert follower.stdout is not None
    lines = {"[1] hear\n", "[2] hear\n"}  # both are running
    lines.remove(follower.stdout.readline())
    follower.send_signal(signal.SIGINT)
    out, err = follower.communicate(timeout=20)
    assert (follower.returncode, err) == (130, "ciel: interrupted\n")
    assert out in ("", *lines)
    up.ciel("job", "cancel", number)


# --- tasks and workers ----------------------------------------------------------------------------


def command(number: int) -> str:
    return f"sh -c '{SCRIPT.replace('{}', str(number))}'"


def test_tasks_are_listed(up: Up, array: str) -> None:
    listed = up.shown("task", "list", f"{array}:5-8")  # on a busy machine a task may be given back
    assert re.sub(r"  (done|failed)  \d+  ", r"  \1  1  ", listed) == (
        "TASK  NAME  STATE  ATTEMPT  WORKER  STARTED  TIME  EXIT  RESULT  COMMAND\n"
        f"  5  5  done  1  WORKER  CLOCK  TIME  0  2 bytes  {command(5)}\n"
        f"  6  6  done  1  WORKER  CLOCK  TIME  0  2 bytes  {command(6)}\n"
        f"  7  7  failed  1  WORKER  CLOCK  TIME  1  RUNTIME_EXCEPTION  {command(7)}\n"
        f"  8  8  done  1  WORKER  CLOCK  TIME  0  2 bytes  {command(8)}\n"
    )
    assert up.shown("task", "list", array, "--state", "failed").count("RUNTIME_EXCEPTION") == 4
    assert up.shown("task", "list", array, "--state", "dormant") == "no tasks\n"
    status, out, err = up.ciel("task", "list", array, "--limit", "3")
    assert (status, out.count("\n")) == (0, 4)
    assert err == "ciel: the first 3 tasks; --all lists them all\n"


def test_a_task_is_described(up: Up, array: str) -> None:
    assert up.shown("task", "info", f"{array}:7") == (
        f"task 7 of job {array} (ID)\n"
        "state: failed, attempt 1\n"
        f"command: {command(7)}\n"
        f"ran: on {host_name()}, worker WORKER, from CLOCK, for TIME\n"
        "exit status: 1\n"
        "executor: stdinout, with 1 slot\n"
        "inputs: none\n"
        "outputs:\n"
        "  ID:out:0: failed, RUNTIME_EXCEPTION\n"
        "why:\n"
        "  RUNTIME_EXCEPTION: sh -c 'echo 7; echo why 7 >&2; test $((7 % 7)) != 0' "
        "ended with exit status 1 on worker WORKER\n"
        "  the end of its standard error:\n"
        "  why 7\n"
        "  its files are kept in KEPT\n"
    )
    task = up.facts("task", "info", f"{array}:8")
    assert (task["name"], task["state"], task["outputs"][0]["size_bytes"]) == ("8", "done", 2)
    assert up.facts("task", "info", f"{array}:{task['task']}") == task


def test_tasks_explain_why_they_run_or_wait(up: Up) -> None:
    number = up.submit("--array", "1-60", "--", "sleep", "1000")
    wait_for(
        lambda: "is running" in up.ciel("task", "explain", f"{number}:1")[1], "the first to run"
    )
    assert re.fullmatch(
        rf"task 1 of job {number} is running\nwhy:\n"
        r"  it runs on worker WORKER, as attempt 1; assigned TIME ago\n"
        r"(  placed there since .*\n)?",
        up.shown("task", "explain", f"{number}:1"),
    )
    last = up.facts("task", "explain", f"{number}:60")
    assert (last["state"], bool(last["why"])) == ("runnable", True)
    status, out, err = up.ciel("task", "explain", number)
    assert (status, out.count("\n\n") + 1) == (0, 20)
    assert err == "ciel: only the first 20 tasks are shown; name others as JOB:TASK\n"
    up.ciel("job", "cancel", number)


def test_the_workers_are_listed(up: Up) -> None:
    up.ciel("job", "cancel", "all")
    lines = up.shown("worker", "list").splitlines()
    heading = ["WORKER", "ADDRESS", "SLOTS", "RUNNING", "QUEUED", "MEMORY", "HEARD"]
    assert lines[0].split() == heading
    assert [line.split() for line in lines[1:]] == [
        ["WORKER", "ADDRESS", "1", "0", "0", lines[1].split()[5], "TIME"]
    ] * 2
    assert re.fullmatch(r"0/\S+iB", lines[1].split()[5])


# --- output on a terminal -------------------------------------------------------------------------


def test_control_characters_of_a_name_do_not_reach_the_terminal(up: Up) -> None:
    number = up.submit("--name", "a\x1b[31m\nb", "--", "true")
    for words in (["job", "list"], ["job", "info", number]):
        _, out, _ = up.ciel(*words)
        assert "\x1b" not in out
        assert "a\\x1b[31m\\nb" in out


def test_control_characters_of_a_command_do_not_reach_the_terminal(up: Up) -> None:
    number = up.submit("--", "sh", "-c", "exit 3 # \x1b[31m\tx")
    for words in (["job", "wait", number], ["job", "info", number], ["task", "info", number]):
        _, out, err = up.ciel(*words)
        assert "\x1b" not in out + err
        assert "# \\x1b[31m\tx" in out + err


def test_a_table_fits_the_terminal(up: Up) -> None:
    up.submit("--name", "long " * 30, "--", "true")
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 70, 0, 0))
    with subprocess.Popen(
        ["ciel", "job", "list"], env=up.environ, cwd=up.path, stdin=subprocess.DEVNULL,
        stdout=theirs, stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        os.close(theirs)
        shown = b""
        try:
            while data := os.read(ours, 4096):
                shown += data
        except OSError:
            pass  # the end of a terminal
    os.close(ours)
    assert process.returncode == 0
    lines = shown.decode().splitlines()
    assert max(map(len, lines)) == 70
    assert "…" in lines[-1]
    assert "long long" in up.ciel("job", "list")[1]
    assert "…" not in up.ciel("job", "list")[1]


def test_waiting_at_a_terminal_shows_the_progress_of_the_job(up: Up) -> None:
    gate = up.path / "progress"
    waits = f"test {{}} = 1 || while ! test -e {gate}; do sleep 0.05; done"
    number = up.submit("--array", "1-2", "--", "sh", "-c", waits)
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        ["ciel", "job", "wait", number], env=up.environ, cwd=up.path, stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=theirs,
    ) as process:  # fmt: skip
        os.close(theirs)
        shown = b""
        while f"job {number}: 1 done, 1 running, 2 so far".encode() not in shown:
            data = os.read(ours, 4096)
            assert data
            shown += data
        gate.touch()
        assert process.wait(timeout=20) == 0
    os.close(ours)
