"""Tests that a master which is killed and started again continues its jobs: finished tasks do not
run again, running programs are not disturbed, and waiting clients get their answers.
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ciel.client import Client
from ciel.testing.homes import HandCluster, Home, wait_for

PROGRAM = "echo {} >> runs; sleep 0.3; echo result {}"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[HandCluster]:
    journal = str(tmp_path / "journal")
    cluster = HandCluster.start(Home(tmp_path), 2, of_master=("--journal", journal))
    yield cluster
    cluster.stop()


def kill_master(cluster: HandCluster) -> None:
    cluster.master.send_signal(signal.SIGKILL)
    cluster.master.communicate()


def start_master(cluster: HandCluster) -> None:
    netloc = cluster.url.removeprefix("http://")
    before = cluster.log("master").count("access file:")
    cluster.master = cluster.home.start(
        "ciel-master", "--listen", netloc, "--access", str(cluster.access),
        "--log", str(cluster.home.path / "master.log"),
        "--journal", str(cluster.home.path / "journal"),
    )  # fmt: skip
    wait_for(lambda: cluster.log("master").count("access file:") > before, "the master is back")


def runs(cluster: HandCluster) -> list[str]:
    path = cluster.home.path / "runs"
    return path.read_text().split() if path.exists() else []


def wait_for_runs(cluster: HandCluster, count: int) -> None:
    wait_for(lambda: len(runs(cluster)) >= count, "some tasks have run")


def submit(cluster: HandCluster, *options: str) -> subprocess.Popen[str]:
    return cluster.home.start("ciel", "submit", *options, "--", "sh", "-c", PROGRAM)


def test_a_waiting_submit_returns_as_if_the_master_had_not_died(cluster: HandCluster) -> None:
    waiting = submit(cluster, "--array", "1-30")
    for count in (5, 15):
        wait_for_runs(cluster, count)
        kill_master(cluster)
        time.sleep(0.5)
        start_master(cluster)
    printed, complaints = waiting.communicate(timeout=60)
    assert waiting.returncode == 0, complaints
    assert sorted(printed.split("\n")) == sorted(["", *[f"result {n}" for n in range(1, 31)]])
    assert sorted(runs(cluster)) == sorted(str(n) for n in range(1, 31))  # each ran once


def test_a_detached_job_goes_on(cluster: HandCluster) -> None:
    submit(cluster, "--detach", "--array", "1-10").communicate(timeout=30)
    wait_for_runs(cluster, 3)
    kill_master(cluster)
    time.sleep(1.5)  # meanwhile running programs end
    start_master(cluster)
    done = cluster.home.run("ciel", "job", "wait", "last")
    assert done.returncode == 0, done.stderr
    assert sorted(runs(cluster), key=int) == [str(n) for n in range(1, 11)]


def test_futures_of_a_python_program_get_their_values(cluster: HandCluster) -> None:
    path = str(cluster.home.path / "runs")

    def work(number: int) -> int:
        import time

        with open(path, "a") as file:
            file.write(f"{number}\n")
        time.sleep(0.2)
        return number * number

    with Client(cluster.url, access=str(cluster.access)) as client:
        futures = [client.submit(work, number) for number in range(20)]
        wait_for_runs(cluster, 4)
        kill_master(cluster)
        time.sleep(0.5)
        start_master(cluster)
        assert [future.result(timeout=60) for future in futures] == [n * n for n in range(20)]
        assert sorted(runs(cluster), key=int) == [str(n) for n in range(20)]
        assert client.submit(work, 30).result(timeout=30) == 900


def test_a_journal_is_compacted_while_its_master_serves(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    options = ("--journal", str(journal), "--journal-compact-from", "20000")
    cluster = HandCluster.start(Home(tmp_path), 2, of_master=options)
    try:
        with Client(cluster.url, access=str(cluster.access)) as client:
            waiting = client.submit(pow, 2, 3)
            for _ in range(5):
                assert list(client.map(abs, range(1000))) == list(range(1000))
            wait_for(lambda: "journal: compacted" in cluster.log("master"), "a base is there")
            later = client.submit(pow, 3, 3)
            kill_master(cluster)
            start_master(cluster)
            assert (waiting.result(timeout=60), later.result(timeout=60)) == (8, 27)
        assert list(journal.glob("*.base"))
        size_bytes = sum(path.stat().st_size for path in journal.iterdir())
        assert size_bytes < 200_000
    finally:
        cluster.stop()
