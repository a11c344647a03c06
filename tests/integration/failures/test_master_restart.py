"""Tests that a master which is killed and started again continues its jobs: finished tasks do not
run again, running programs are not disturbed, and waiting clients get their answers.
"""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ciel.client import Client
from ciel.testing.homes import HandCluster, Home, descriptors_of, wait_for

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


@pytest.mark.slow
def test_a_detached_job_goes_on(cluster: HandCluster) -> None:
    submit(cluster, "--detach", "--array", "1-10").communicate(timeout=30)
    wait_for_runs(cluster, 3)
    kill_master(cluster)
    time.sleep(1.5)  # meanwhile running programs end
    start_master(cluster)
    done = cluster.home.run("ciel", "job", "wait", "last")
    assert done.returncode == 0, done.stderr
    assert sorted(runs(cluster), key=int) == [str(n) for n in range(1, 11)]


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_master_restarts_on_request_and_no_job_is_interrupted(cluster: HandCluster) -> None:
    waiting = submit(cluster, "--array", "1-20")
    wait_for_runs(cluster, 4)
    pid, url = cluster.master.pid, cluster.url
    descriptors = descriptors_of(pid)
    for _ in range(2):
        done = cluster.home.run("ciel", "master", "restart")
        assert done.returncode == 0, done.stderr
        assert f"ciel: the master at {url} was restarted, with version " in done.stderr
    printed, complaints = waiting.communicate(timeout=60)
    assert waiting.returncode == 0, complaints
    assert sorted(printed.split("\n")) == sorted(["", *[f"result {n}" for n in range(1, 21)]])
    assert sorted(runs(cluster)) == sorted(str(n) for n in range(1, 21))  # each ran once
    assert (cluster.master.poll(), cluster.url) == (None, url)
    assert json.loads(cluster.access.read_text())["pid"] == pid
    wait_for(lambda: descriptors_of(pid) <= descriptors, "the clients have left")
    restarts = cluster.log("master").count("this master restarts")
    assert (restarts, cluster.log("master").count("journal: restored")) == (2, 2)


@pytest.mark.slow
def test_a_master_without_a_journal_is_not_restarted(tmp_path: Path) -> None:
    cluster = HandCluster.start(Home(tmp_path), 1)
    try:
        done = cluster.home.run("ciel", "master", "restart")
        assert done.returncode == 2
        assert f"the master at {cluster.url} was not restarted: " in done.stderr
        assert "it has no journal, so it would lose all jobs" in done.stderr
        assert cluster.home.run("ciel", "submit", "echo", "fine").stdout == "fine\n"
    finally:
        cluster.stop()


@pytest.mark.slow
def test_the_master_of_ciel_up_is_started_again_by_its_parent(tmp_path: Path) -> None:
    home = Home(tmp_path)
    up = home.run("ciel", "up", "--slots", "1", "--listen", "127.0.0.1:0")
    assert up.returncode == 0, up.stderr
    try:
        submitted = home.run("ciel", "submit", "--detach", "--", "sh", "-c", "sleep 2; echo fine")
        assert submitted.returncode == 0, submitted.stderr
        done = home.run("ciel", "master", "restart", "--json")
        assert done.returncode == 0, done.stderr
        assert home.run("ciel", "job", "output", "last").stdout == "fine\n"
        info = home.run("ciel", "job", "info", "last").stdout
        assert "the master was restarted" in info
        doctor = json.loads(home.run("ciel", "doctor", "--json").stdout)
        assert [each["state"] for each in doctor if each["check"] == "journal"] == ["ok"]
    finally:
        assert home.run("ciel", "down", "--force").returncode == 0
