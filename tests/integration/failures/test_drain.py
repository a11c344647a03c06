"""Tests that a drained worker leaves without loss: with real daemons, kills and restarts."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ciel.client import Client
from ciel.testing.homes import HandCluster, Home, wait_for

PROGRAM = "echo {} >> runs; sleep 0.2; echo result {}"
UNTIL_GO = "echo {} >> runs; until test -e go; do sleep 0.05; done; echo {}"
LARGE = "head -c 100000 /dev/zero | tr '\\0' x"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[HandCluster]:
    cluster = HandCluster.start(
        Home(tmp_path), 2, of_master=("--journal", str(tmp_path / "journal"))
    )
    yield cluster
    cluster.stop()


def ids(cluster: HandCluster) -> list[str]:
    """Return the ids of the workers, in the order in which they were started."""
    by_netloc = {row["netloc"]: str(row["worker"]) for row in listed(cluster)}
    return [by_netloc[netloc] for netloc in cluster.netlocs()]


def listed(cluster: HandCluster) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(
        cluster.home.run("ciel", "worker", "list", "--json").stdout
    )
    return found


def begin_drain(cluster: HandCluster, *options: str) -> subprocess.Popen[str]:
    """Drain the first worker, and wait until the master knows it."""
    worker = ids(cluster)[0]
    command = cluster.home.start("ciel", "worker", "drain", worker, *options)
    wait_for(
        lambda: [row for row in listed(cluster) if row["worker"] == worker and row["draining"]],
        "the worker drains",
    )
    return command


def drain(cluster: HandCluster, *options: str) -> subprocess.CompletedProcess[str]:
    done = cluster.home.run("ciel", "worker", "drain", ids(cluster)[0], *options)
    assert done.returncode == 0, done.stderr
    assert cluster.workers[0].wait(timeout=20) == 0
    return done


def runs(cluster: HandCluster) -> list[str]:
    path = cluster.home.path / "runs"
    return path.read_text().split() if path.exists() else []


def submit(cluster: HandCluster, *words: str) -> subprocess.Popen[str]:
    return cluster.home.start("ciel", "submit", *words)


def out(cluster: HandCluster, *words: str) -> str:
    done = cluster.home.run("ciel", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_worker_leaves_in_the_middle_of_an_array_and_no_task_runs_twice(
    cluster: HandCluster,
) -> None:
    waiting = submit(cluster, "--array", "1-30", "--", "sh", "-c", PROGRAM)
    wait_for(lambda: len(runs(cluster)) >= 4, "some tasks have run")
    done = drain(cluster, "--json")
    facts = json.loads(done.stdout)
    assert facts.keys() == {"worker", "netloc", "elapsed_s"}
    printed, complaints = waiting.communicate(timeout=60)
    assert waiting.returncode == 0, complaints
    assert sorted(printed.split("\n")) == sorted(["", *[f"result {n}" for n in range(1, 31)]])
    assert sorted(runs(cluster), key=int) == [str(n) for n in range(1, 31)]
    assert "this worker was drained: it leaves, and ends" in cluster.log("worker1")
    assert [row["worker"] for row in listed(cluster)] == [
        row["worker"] for row in listed(cluster) if row["worker"] != facts["worker"]
    ]


@pytest.mark.slow
def test_results_that_only_it_held_are_there_afterwards(cluster: HandCluster) -> None:
    words = ("--detach", "--array", "1-10", "--", "sh", "-c", f"echo {{}} >> runs; {LARGE}")
    submit(cluster, *words).communicate(timeout=30)
    out(cluster, "job", "wait", "last")
    drain(cluster)
    assert out(cluster, "job", "output", "last") == 10 * 100_000 * "x"
    assert len(runs(cluster)) == 10
    again = cluster.home.run("ciel", "worker", "drain", ids_left(cluster)[0])
    assert again.returncode == 2
    assert "no other worker can take the tasks and objects of" in again.stderr


def ids_left(cluster: HandCluster) -> list[str]:
    return [str(row["worker"]) for row in listed(cluster)]


@pytest.mark.slow
def test_what_people_put_there_is_there_afterwards(cluster: HandCluster) -> None:
    content = "y" * 50_000
    cluster.home.path.joinpath("file").write_text(content)
    for _ in range(4):  # on each of the workers
        out(cluster, "object", "put", "file")
    drain(cluster)
    kept = json.loads(out(cluster, "object", "list", "--json"))
    assert len(kept) == 4
    for each in kept:
        assert out(cluster, "object", "get", each["object"]) == content


@pytest.mark.slow
def test_tasks_that_run_too_long_run_elsewhere(cluster: HandCluster) -> None:
    first, second = ids(cluster)
    program = 'mkdir once 2>/dev/null && { touch begun; sleep inf; }; echo "$CIEL_WORKER"; echo ran'
    blocked = submit(cluster, "--name", "second", "--", "sh", "-c", "touch other; sleep inf")
    wait_for((cluster.home.path / "other").exists, "a task on one worker")
    waiting = submit(cluster, "--", "sh", "-c", program)
    wait_for((cluster.home.path / "begun").exists, "a task on the other worker")
    rows = json.loads(out(cluster, "task", "list", "last", "--json"))
    worker = rows[0]["worker"]
    other = ({first, second} - {worker}).pop()
    cluster.home.run("ciel", "job", "cancel", "second")
    blocked.communicate(timeout=20)
    done = cluster.home.run("ciel", "worker", "drain", worker, "--timeout", "0.2")
    assert done.returncode == 0, done.stderr
    printed, complaints = waiting.communicate(timeout=30)
    assert waiting.returncode == 0, complaints
    assert printed.endswith("ran\n")
    assert ids_left(cluster) == [other]
    assert f"worker {worker} was drained during attempt 1" in out(
        cluster, "task", "explain", "last"
    )


@pytest.mark.slow
def test_a_python_program_notices_nothing(cluster: HandCluster) -> None:
    def grow(text: str) -> str:
        import time

        time.sleep(0.02)
        return text + "z" * 2000

    with Client(cluster.url, access=str(cluster.access)) as client:
        chains = ["a", "b", "c", "d"]
        futures: list[Any] = [client.submit(grow, text) for text in chains]
        for _ in range(10):
            futures = [client.submit(grow, future) for future in futures]
        drain(cluster)
        assert [future.result(timeout=60) for future in futures] == [
            text + "z" * 22_000 for text in chains
        ]


@pytest.mark.slow
def test_a_drain_survives_the_master(cluster: HandCluster) -> None:
    waiting = submit(cluster, "--array", "1-2", "--", "sh", "-c", UNTIL_GO)
    wait_for(lambda: len(runs(cluster)) == 2, "both run")
    command = begin_drain(cluster)
    cluster.master.send_signal(signal.SIGKILL)
    cluster.master.communicate()
    restart_master(cluster)
    wait_for(
        lambda: [row for row in listed(cluster) if row["draining"]],
        "the worker says that it drains",
    )
    (cluster.home.path / "go").touch()
    printed, complaints = waiting.communicate(timeout=60)
    assert waiting.returncode == 0, complaints
    assert sorted(printed.split()) == ["1", "2"]
    _, complaints = command.communicate(timeout=20)
    assert command.returncode == 0, complaints
    assert cluster.workers[0].wait(timeout=20) == 0
    assert len(ids_left(cluster)) == 1


def restart_master(cluster: HandCluster) -> None:
    netloc = cluster.url.removeprefix("http://")
    before = cluster.log("master").count("access file:")
    cluster.master = cluster.home.start(
        "ciel-master", "--listen", netloc, "--access", str(cluster.access),
        "--log", str(cluster.home.path / "master.log"),
        "--journal", str(cluster.home.path / "journal"),
    )  # fmt: skip
    wait_for(lambda: cluster.log("master").count("access file:") > before, "the master is back")


@pytest.mark.slow
def test_a_worker_that_dies_while_it_drains_is_lost_as_any_other(cluster: HandCluster) -> None:
    waiting = submit(cluster, "--array", "1-2", "--", "sh", "-c", UNTIL_GO)
    wait_for(lambda: len(runs(cluster)) == 2, "both run")
    command = begin_drain(cluster)
    cluster.workers[0].send_signal(signal.SIGKILL)
    cluster.workers[0].communicate()
    _, complaints = command.communicate(timeout=20)
    assert command.returncode == 0, complaints
    (cluster.home.path / "go").touch()
    printed, complaints = waiting.communicate(timeout=60)
    assert waiting.returncode == 0, complaints
    assert sorted(printed.split()) == ["1", "2"]
    assert len(runs(cluster)) == 3


@pytest.mark.slow
def test_workers_of_ciel_up_are_not_restarted_after_a_drain(tmp_path: Path) -> None:
    home = Home(tmp_path)
    up = home.run("ciel", "up", "--workers", "2", "--slots", "1", "--listen", "127.0.0.1:0")
    assert up.returncode == 0, up.stderr
    try:
        rows = json.loads(home.run("ciel", "worker", "list", "--json").stdout)
        done = home.run("ciel", "worker", "drain", rows[0]["netloc"])
        assert done.returncode == 0, done.stderr
        assert done.stderr == f"ciel: worker {rows[0]['worker']} has left\n"
        assert home.run("ciel", "submit", "--", "echo", "fine").stdout == "fine\n"
        left = json.loads(home.run("ciel", "worker", "list", "--json").stdout)
        assert [row["worker"] for row in left] == [rows[1]["worker"]]
    finally:
        assert home.run("ciel", "down").returncode == 0
    home.expect_nothing_left()


@pytest.mark.slow
def test_an_unknown_worker_is_named(cluster: HandCluster) -> None:
    done = cluster.home.run("ciel", "worker", "drain", "nobody")
    assert done.returncode == 2
    assert done.stderr == "ciel: there is no worker nobody; `ciel worker list` lists all workers\n"
