"""Tests that a local cluster restarts its master, which continues from the journal."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ciel.client import Client, LocalCluster
from ciel.client.cluster import supervisor
from ciel.client.errors import ClusterError
from ciel.testing.homes import wait_for

WITHIN_S = 60.0


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep the logs and temporary files of the clusters in a directory of the test."""
    for name in ("tmp", "state"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    return tmp_path


@pytest.fixture
def cluster(state: Path) -> Iterator[LocalCluster]:
    with LocalCluster(workers=2, slots=1) as cluster:
        yield cluster
    assert list((state / "tmp").iterdir()) == []


def kill_master(cluster: LocalCluster) -> int:
    """Kill the master, and return the process id that it had."""
    before = cluster.master.pid
    os.kill(before, signal.SIGKILL)
    return before


def is_back(cluster: LocalCluster, before: int) -> Callable[[], bool]:
    """Return a function that returns whether the next master serves."""
    daemon = cluster._master
    return lambda: daemon.pid not in (0, before) and daemon.ready is not None


def lines(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


def wait_for_lines(path: Path, count: int) -> None:
    wait_for(lambda: len(lines(path)) >= count, "some tasks", WITHIN_S)


def test_futures_get_their_values_although_the_master_is_killed(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    ran = tmp_path / "ran"

    def work(number: int) -> int:
        import time

        with open(ran, "a") as file:
            file.write(f"{number}\n")
        time.sleep(0.1)
        return number * number

    workers = [worker.pid for worker in cluster.workers]
    location = cluster.location
    with Client(cluster) as client:
        futures = [client.submit(work, number) for number in range(30)]
        for count in (5, 15):
            wait_for_lines(ran, count)
            kill_master(cluster)
            assert client.ask("status")["cluster_id"] == location.cluster_id
        assert [future.result(WITHIN_S) for future in futures] == [n * n for n in range(30)]
        assert sorted(lines(ran), key=int) == [str(n) for n in range(30)]  # each ran once
        assert client.submit(work, 40).result(WITHIN_S) == 1600
    assert cluster.location == location
    assert [worker.pid for worker in cluster.workers] == workers
    assert cluster.master.log.read_text().count("master was ended by SIGKILL, and is restart") == 2


@pytest.mark.slow
def test_a_master_that_is_killed_twice_in_a_row_comes_back(cluster: LocalCluster) -> None:
    with Client(cluster) as client:
        future = client.submit(time.sleep, 0.1)
        before = kill_master(cluster)
        wait_for(lambda: cluster._master.pid not in (0, before), "the second master")
        kill_master(cluster)  # while it starts
        assert future.result(WITHIN_S) is None
        with Client(cluster) as another:  # opened at any moment
            assert another.submit(abs, -1).result(WITHIN_S) == 1


@pytest.mark.slow
def test_a_client_that_connects_meanwhile_waits(cluster: LocalCluster) -> None:
    kill_master(cluster)
    with Client(cluster) as client:
        assert client.submit(abs, -1).result(WITHIN_S) == 1


@pytest.mark.slow
def test_a_worker_that_ends_while_the_master_is_away_joins_again(cluster: LocalCluster) -> None:
    with Client(cluster) as client:
        before = kill_master(cluster)
        os.kill(cluster.workers[0].pid, signal.SIGKILL)
        wait_for(is_back(cluster, before), "the master")
        wait_for(lambda: len(client.ask("workers")) == 2, "both workers")


@pytest.mark.slow
def test_a_master_that_is_killed_too_often_ends_the_cluster(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "MASTER_RESTARTS_WINDOW_S", 600.0)
    cluster._supervisor._master_restarts = supervisor.RestartLimit(2, 600.0)
    with Client(cluster) as client:
        job = client.job()
        for _ in range(2):
            before = kill_master(cluster)
            wait_for(is_back(cluster, before), "the next master")
        kill_master(cluster)
        with pytest.raises(ClusterError, match="master was ended by SIGKILL; it was restarted"):
            job.wait(WITHIN_S)
        assert cluster.ended.is_set()
        assert not cluster.was_shut_down


@pytest.mark.slow
def test_a_damaged_journal_ends_the_cluster_at_once(state: Path) -> None:
    with LocalCluster() as cluster, Client(cluster) as client:
        assert client.submit(abs, -1).result(WITHIN_S) == 1
        assert client.submit(abs, -2).result(WITHIN_S) == 2
        (journal,) = (state / "tmp").glob("ciel-journal-*/00000001.journal")
        content = bytearray(journal.read_bytes())
        content[40] ^= 1  # in the first of several groups
        journal.write_bytes(content)
        kill_master(cluster)
        with pytest.raises(ClusterError, match=r"master could not start: journal .* at byte 16"):
            client.job().wait(WITHIN_S)
        assert cluster._supervisor._launch_count == 2  # no restart loop


@pytest.mark.slow
def test_a_master_that_is_told_to_end_is_not_restarted(cluster: LocalCluster) -> None:
    os.kill(cluster.master.pid, signal.SIGTERM)
    assert cluster.ended.wait(WITHIN_S)
    assert cluster.was_shut_down
    assert cluster.died == "the cluster was shut down"


def test_a_wrong_mode_of_the_journal_is_refused() -> None:
    with pytest.raises(ValueError, match="journal_sync is None or one of"):
        LocalCluster(journal_sync="sometimes")
    with pytest.raises(ValueError, match="a resumable cluster has a journal"):
        LocalCluster(resumable=True)
