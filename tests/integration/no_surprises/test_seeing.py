"""Tests what users see of their jobs: which tasks ran, where, when and how they ended; and what
users can do then.
"""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ciel.testing.homes import WORKER_ID, Home, wait_for
from ciel.worker.host import host_name

Typed = Callable[..., tuple[int, str, str]]


class Cluster(Home):
    """A home in which a cluster of two workers of one slot is up."""

    def __init__(self, path: Path, typed: Typed) -> None:
        super().__init__(path)
        self._typed = typed
        self.up()

    def up(self) -> None:
        words = ("--workers", "2", "--slots", "1", "--listen", "127.0.0.1:0")
        done = self.run("ciel", "up", *words)
        assert done.returncode == 0, done.stderr

    def ciel(self, *words: str) -> tuple[int, str, str]:
        return self._typed(self, *words)

    def facts(self, *words: str) -> Any:
        """Return the JSON that a command prints."""
        status, out, err = self.ciel(*words, "--json")
        assert status in (0, 1), err
        return json.loads(out)

    def detach(self, *words: str) -> str:
        """Submit a detached job; return its number."""
        status, out, err = self.ciel("submit", "--detach", *words)
        assert status == 0, err
        return out.strip()

    def runs(self, number: str) -> bool:
        """Return whether a program of a job has started, which creates a file `began-NUMBER`."""
        return (self.path / f"began-{number}").exists()

    def python(self, script: str) -> str:
        """Run a Python program; return its output."""
        (self.path / "my.py").write_text(script)
        done = self.run("python", "my.py")
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, typed: Typed) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("seeing"), typed)
    yield cluster
    cluster.run("ciel", "down", "--force")
    assert not cluster.processes()


# --- where and when tasks ran, and how they ended -------------------------------------------------


def test_finished_tasks_show_command_host_times_and_exit_status(
    cluster: Cluster,
) -> None:
    script = "case {} in 2) exit 3;; 3) kill -KILL $$;; esac; sleep 0.05"
    before_s = time.time()
    number = cluster.detach("--array", "1-3", "--", "sh", "-c", script)
    assert cluster.ciel("job", "wait", number)[0] == 1
    rows = cluster.facts("task", "list", number)
    assert [row["exit_status"] for row in rows] == [0, 3, -signal.SIGKILL]
    for element, row in enumerate(rows, 1):
        assert row["command_line"] == ["sh", "-c", script.replace("{}", str(element))]
        assert row["hostname"] == host_name()
        assert before_s - 1 < row["started_at_s"] <= row["ended_at_s"] < time.time() + 1
        assert row["run_s"] == pytest.approx(row["ended_at_s"] - row["started_at_s"], abs=0.01)
        assert (
            cluster.facts("task", "info", f"{number}:{element}")["exit_status"]
            == (row["exit_status"])
        )
    assert rows[0]["run_s"] >= 0.045  # the clocks of the kernel and of the worker differ


def test_job_info_shows_this_with_names_of_hosts(cluster: Cluster) -> None:
    number = cluster.detach("--name", "two words", "--", "sh", "-c", "exit 3", "a b")
    assert cluster.ciel("job", "wait", number)[0] == 1
    status, text, _ = cluster.ciel("job", "info", number)
    assert status == 0
    assert "command: sh -c 'exit 3' 'a b'\n" in text
    (worker,) = cluster.facts("job", "info", number)["ran_on"]
    assert worker.startswith(host_name().partition(".")[0])
    assert f"ran on: {worker} (1 attempt)\n" in text
    row = next(line for line in text.splitlines() if line.split()[:3] == ["1", "1", "failed"])
    assert worker in row
    assert row.endswith("  3  RUNTIME_EXCEPTION  sh -c 'exit 3' 'a b'")
    told = cluster.ciel("task", "info", f"{number}:1")[1]
    assert f"ran: on {host_name()}, worker {worker}, from " in told
    assert "exit status: 3\n" in told


@pytest.mark.slow
def test_a_job_keeps_its_description_when_its_tasks_are_forgotten(cluster: Cluster) -> None:
    cluster.python(
        "import ciel\n"
        "def double(x): return 2 * x\n"
        "with ciel.Client() as client:\n"
        "    assert list(client.map(double, range(5))) == [0, 2, 4, 6, 8]\n"
    )
    found = cluster.facts("job", "info", "last")
    assert found["first_task"]["name"] == "double"
    assert sum(found["ran_on"].values()) >= 1
    assert found["created_at_s"] <= found["ended_at_s"] <= time.time() + 1


def test_http_returns_the_same_facts(cluster: Cluster) -> None:
    import urllib.request

    number = cluster.detach("--", "echo", "hello")
    cluster.ciel("job", "wait", number)
    (access,) = cluster.path.rglob("access.json")
    told = json.loads(access.read_text())
    request = urllib.request.Request(f"{told['url']}/api/v1/jobs/{number}/tasks")
    request.add_header("Authorization", f"Bearer {told['key']}")
    with urllib.request.urlopen(request, timeout=10) as answer:
        (row,) = json.loads(answer.read())["tasks"]
    assert row["command_line"] == ["echo", "hello"]
    assert (row["exit_status"], row["hostname"]) == (0, host_name())


# --- lists ----------------------------------------------------------------------------------------


def test_done_failed_and_cancelled_are_counted_separately(cluster: Cluster) -> None:
    script = f"case {{}} in 1) ;; 2) exit 1;; *) touch {cluster.path}/began-d2; sleep 60;; esac"
    number = cluster.detach("--name", "apart", "--array", "1-9", "--", "sh", "-c", script)
    wait_for(lambda: cluster.runs("d2"), "the third element")

    def counts() -> dict[str, int]:
        found: dict[str, int] = cluster.facts("job", "info", number)["counts"]
        return found

    wait_for(lambda: counts().get("failed") == counts().get("done") == 1, "the first two")
    assert cluster.ciel("job", "cancel", number)[0] == 0
    _, text, _ = cluster.ciel("job", "list")
    heading, *rows = [line.split() for line in text.splitlines()]
    assert heading[:7] == ["JOB", "NAME", "STATE", "TASKS", "DONE", "FAILED", "CANCELLED"]
    (row,) = [row for row in rows if row[0] == number]
    assert row[:7] == [number, "apart", "cancelled", "9", "1", "1", "7"]


def test_f_jobs_are_listed_by_their_state(cluster: Cluster) -> None:
    number = cluster.detach("--", "false")
    cluster.ciel("job", "wait", number)
    listed = cluster.facts("job", "list", "--state", "failed")
    assert int(number) in [job["number"] for job in listed]
    assert {job["state"] for job in listed} == {"failed"}
    assert cluster.facts("job", "list", "--state", "active") == []


def test_f_a_job_can_be_selected_by_its_name_everywhere(cluster: Cluster) -> None:
    first = cluster.detach("--name", "my run", "--", "echo", "old")
    second = cluster.detach("--name", "my run", "--array", "4-5", "--", "echo", "{}")
    assert cluster.ciel("job", "wait", "my run")[0] == 0
    assert cluster.facts("job", "info", "my run")["number"] == int(second)  # the newest
    assert cluster.ciel("job", "output", "my run") == (0, "4\n5\n", "")
    assert cluster.facts("task", "info", "my run:5")["name"] == "5"
    assert cluster.ciel("job", "rm", f"my run,{first}")[0] == 0
    status, _, said = cluster.ciel("job", "info", "my run")
    assert status == 2
    assert "no job my run; " in said


# --- cancelling and retrying ----------------------------------------------------------------------


def test_a_cancelled_job_can_be_retried(cluster: Cluster) -> None:
    """The job was cancelled by Ctrl-C; finished elements stay, and the rest runs."""
    go = cluster.path / "go-c11"
    script = f"echo run >> {cluster.path}/ran-{{}}; test {{}} = 1 || test -e {go} || sleep 60"
    words = ("submit", "--array", "1-4", "--", "sh", "-c", script)
    with cluster.start("ciel", *words) as submitted:
        wait_for(lambda: (cluster.path / "ran-2").exists(), "the second element")
        wait_for(lambda: (cluster.path / "ran-3").exists(), "the third element")
        submitted.send_signal(signal.SIGINT)
        submitted.communicate(timeout=20)
    assert submitted.returncode == 130
    number = str(cluster.facts("job", "list", "--limit", "1")[0]["number"])
    assert cluster.facts("job", "info", number)["state"] == "cancelled"
    go.touch()
    status, _, said = cluster.ciel("job", "retry", number, "--wait")
    assert (status, said) == (0, f"ciel: job {number}: 3 tasks run again\n")
    assert cluster.facts("job", "info", number)["counts"] == {"done": 4}
    assert (cluster.path / "ran-1").read_text() == "run\n"


@pytest.mark.slow
def test_a_cancelled_python_tree_can_be_retried(cluster: Cluster) -> None:
    """The parents refer to their children, which were cancelled, too."""
    script = """\
import os, sys, time, ciel
GO = {go!r}
@ciel.task
def leaf(number):
    open(f'{{GO}}-{{number}}', 'w').close()
    while not os.path.exists(GO):
        time.sleep(0.05)
    return number
@ciel.task
def tree():
    return sum([future.result() for future in [leaf.spawn(number) for number in (1, 2)]])
with ciel.Client() as client:
    future = client.submit(tree)
    print(client.calls.job.id, flush=True)
    future.result()
"""
    go = str(cluster.path / "go-tree")
    (cluster.path / "tree.py").write_text(script.format(go=go))
    with cluster.start("python", "tree.py") as client:
        assert client.stdout is not None
        job = client.stdout.readline().strip()
        wait_for(lambda: Path(f"{go}-1").exists(), "the first leaf")
        assert cluster.ciel("job", "cancel", job)[0] == 0
        client.kill()
    Path(go).touch()
    assert cluster.ciel("job", "retry", job, "--wait")[0] == 0
    assert cluster.facts("job", "info", job)["state"] == "completed"


def test_one_element_can_be_cancelled_and_the_others_go_on(cluster: Cluster) -> None:
    go = cluster.path / "go-one"
    script = f"touch {cluster.path}/began-one-{{}}; while ! test -e {go}; do sleep 0.05; done"
    number = cluster.detach("--array", "1-3", "--", "sh", "-c", script)
    wait_for(lambda: cluster.runs("one-1") and cluster.runs("one-2"), "two elements")
    for element in ("2", "3"):  # a running element, and a waiting one (or running by then)
        status, _, said = cluster.ciel("task", "cancel", f"{number}:{element}")
        assert (status, said) == (0, f"ciel: task {element} of job {number} is cancelled\n")
    go.touch()
    assert cluster.ciel("job", "wait", number)[0] == 1
    states = [row["state"] for row in cluster.facts("task", "list", number)]
    assert states == ["done", "cancelled", "cancelled"]
    status, _, said = cluster.ciel("task", "cancel", f"{number}:1")
    assert (status, said) == (1, "ciel: task 1 cannot be cancelled: it is done\n")


def test_one_element_can_be_retried(cluster: Cluster) -> None:
    go = cluster.path / "go-again"
    script = f"echo run >> {cluster.path}/again-{{}}; test {{}} = 1 || test -e {go}"
    number = cluster.detach("--array", "1-3", "--", "sh", "-c", script)
    assert cluster.ciel("job", "wait", number)[0] == 1
    go.touch()
    assert cluster.ciel("task", "retry", f"{number}:3") == (
        0, "", f"ciel: task 3 of job {number} runs again\n"
    )  # fmt: skip
    assert cluster.ciel("job", "wait", number)[0] == 1  # element 2 has still failed
    states = [row["state"] for row in cluster.facts("task", "list", number)]
    assert states == ["done", "failed", "done"]
    assert (cluster.path / "again-2").read_text() == "run\n"
    status, _, said = cluster.ciel("task", "retry", number)
    assert status == 2
    assert "JOB:TASK" in said
    status, _, said = cluster.ciel("task", "retry", f"{number}:1")
    assert (status, said) == (1, "ciel: task 1 cannot be retried: it is done\n")


@pytest.mark.slow
def test_down_ends_unfinished_jobs_only_with_force(home: Home) -> None:
    assert home.run("ciel", "up", "--listen", "127.0.0.1:0").returncode == 0
    url = home.run("ciel", "up").stdout.strip()
    assert home.run("ciel", "submit", "--", "true").returncode == 0
    home.run("ciel", "submit", "--detach", "--name", "long", "--", "sleep", "1000")
    refused = home.run("ciel", "down")
    assert (refused.returncode, refused.stderr) == (
        1,
        f"ciel: the cluster at {url} keeps running, since 1 job is unfinished: 2 (long); wait "
        "for it (ciel job wait all), or end it anyway: ciel down --force\n",
    )
    assert _answered(home, "n\n") == 1
    assert home.run("ciel", "status").returncode == 0
    assert _answered(home, "y\n") == 0
    assert home.run("ciel", "status").returncode == 3
    home.expect_nothing_left()


@pytest.mark.slow
def test_down_of_an_idle_cluster_does_not_ask(home: Home) -> None:
    """This holds although a client has a job open, as a notebook does."""
    assert home.run("ciel", "up", "--listen", "127.0.0.1:0").returncode == 0
    script = "import ciel, time; c = ciel.Client(); c.submit(abs, 1).result(); time.sleep(60)"
    facts: Any = []

    def is_open() -> bool:
        facts[:] = json.loads(home.run("ciel", "job", "list", "--json").stdout)
        return bool(facts) and facts[0]["counts"] == {"done": 1}

    with home.start("python", "-c", script) as idle:
        wait_for(is_open, "the client's job")
        done = home.run("ciel", "down")
        idle.kill()
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.endswith(" is down\n")


@pytest.mark.slow
def test_down_with_force_does_not_ask(home: Home) -> None:
    assert home.run("ciel", "up", "--listen", "127.0.0.1:0").returncode == 0
    home.run("ciel", "submit", "--detach", "--", "sleep", "1000")
    assert home.run("ciel", "down", "--force").returncode == 0
    home.expect_nothing_left()


def _answered(home: Home, answer: str) -> int:
    """Run `ciel down` at a terminal, and answer its question; return its status."""
    ours, theirs = pty.openpty()
    try:
        down = subprocess.Popen(
            home.command(["ciel", "down"]), env=home.environ, cwd=home.path, stdin=theirs,
            stdout=theirs, stderr=theirs,
        )  # fmt: skip
        said = b""
        while not said.endswith(b"[y/N] "):
            said += os.read(ours, 1000)
        assert b"1 job is unfinished: 2 (long)" in said
        os.write(ours, answer.encode())
        return down.wait(30)
    finally:
        os.close(ours)
        os.close(theirs)


def test_workers_have_ids_that_begin_with_the_names_of_their_hosts(cluster: Cluster) -> None:
    import re

    for worker in cluster.facts("worker", "list"):
        assert re.fullmatch(WORKER_ID, worker["worker"])
        assert worker["hostname"] == host_name()


# --- which task failed ----------------------------------------------------------------------------

CHAIN = """\
import ciel
def fetch(): raise OSError('the disk is on fire')
def sort(words): return words
def count(words): return len(words)
@ciel.task
def spawns(): return ciel.task(count).spawn(ciel.task(fetch).spawn()).result()
with ciel.Client() as client:
    first = client.submit(fetch)
    last = client.submit(count, client.submit(sort, first))
    for future in (last, client.submit(spawns)):
        try:
            future.result()
        except OSError as error:
            print(*error.__notes__, sep='|')
    print(client.explain(last))
"""


def test_the_failed_task_is_named_first_and_then_the_task_that_needed_it(
    cluster: Cluster,
) -> None:
    chain, spawned, *explained = cluster.python(CHAIN).splitlines()
    culprit, path = chain.split("|")
    assert culprit.startswith(f"in task fetch on worker {host_name().partition('.')[0]}-")
    assert path.startswith("its result was needed in task count (")
    culprit, path = spawned.split("|")
    assert culprit.startswith("in task fetch on worker ")
    assert path.startswith("in task spawns (")
    assert explained[0].startswith("count is failed on worker ")
    assert "it has failed: OSError: the disk is on fire" in explained[2]
    assert not any("ended well" in line for line in explained)


def test_an_error_of_a_map_names_its_element(cluster: Cluster) -> None:
    script = """\
import ciel
def inverse(number): return 1 / (number - 37)
def note(rows):
    try:
        list(rows)
    except ZeroDivisionError as error:
        print(error.__notes__[-1])
with ciel.Client() as client:
    note(client.map(inverse, range(100)))
    note(client.map(inverse, range(100), chunksize=7))
with ciel.Executor() as executor:
    note(executor.map(inverse, range(100), chunksize=10))
"""
    told = cluster.python(script).splitlines()
    assert told[:2] == ["in element 37 of the map, counted from 0"] * 2
    assert told[2] == told[0]


# --- correct messages -----------------------------------------------------------------------------


@pytest.mark.slow
def test_a_parent_that_timed_out_is_reported_as_such(home: Home) -> None:
    """The cluster is temporary; its kept files are at the reported place at once."""
    script = """\
import os, time, ciel
def child(): time.sleep(60)
@ciel.task(timeout_s=0.5)
def parent(): return ciel.task(child).spawn().result()
with ciel.Client() as client:
    try:
        client.submit(parent).result()
    except ciel.TaskTimeoutError as error:
        print(error)
        print(os.listdir(str(error).rpartition(' ')[2]))
"""
    (home.path / "my.py").write_text(script)
    done = home.run("python", "my.py")
    assert done.returncode == 0, done.stderr
    said, kept, files = done.stdout.splitlines()
    assert said.endswith(
        ": its process was killed by SIGTERM: it ran longer than its limit of 0.5 s"
    )
    assert "elsewhere" not in said
    assert "scratch" in files
    place = Path(kept.removeprefix("its files are kept in "))
    assert place.is_dir()  # also now, when the cluster is gone
    assert not place.is_symlink()


@pytest.mark.slow
def test_down_names_the_directory_of_kept_files(home: Home) -> None:
    assert home.run("ciel", "up", "--listen", "127.0.0.1:0").returncode == 0
    assert home.run("ciel", "submit", "--scratch", "sh", "-c", "touch made; exit 1").returncode == 1
    done = home.run("ciel", "down")
    assert done.returncode == 0, done.stderr
    place = done.stderr.splitlines()[-1].removeprefix("ciel: files of failed tasks are now in ")
    assert list(Path(place).glob("worker-1/*/scratch/made"))


# --- traces ---------------------------------------------------------------------------------------


def test_a_trace_has_an_event_for_each_call(cluster: Cluster) -> None:
    script = """\
import time, ciel
def pause(number):
    time.sleep(0.002)
    return number
with ciel.Client() as client:
    list(client.map(pause, range(60)))  # it is known to be short by now
    with ciel.trace('trace.json'):
        futures = [client.submit(pause, number) for number in range(60)]
        assert sum(future.result() for future in futures) == 1770
        assert sum(client.map(pause, range(60))) == 1770
"""
    cluster.python(script)
    events = json.loads((cluster.path / "trace.json").read_text())
    calls = [event for event in events if event.get("cat") == "call"]
    assert {event["name"] for event in calls} == {"pause"}
    assert sum(event["dur"] >= 2000 for event in calls) > len(calls) / 2  # durations in us
    bars = {
        (event["pid"], event["tid"], event["args"]["task"]): event
        for event in events if event["ph"] == "X" and event["cat"] == "python"
    }  # fmt: skip
    of_several = {event["args"]["task"] for event in calls}
    alone = [task for _, _, task in bars if task not in of_several]
    assert len(calls) <= 120 <= len(calls) + len(alone)
    for event in calls:
        bar = bars[event["pid"], event["tid"], event["args"]["task"]]
        assert bar["ts"] - 1 <= event["ts"]
        assert event["ts"] + event["dur"] <= bar["ts"] + bar["dur"] + 1
