"""Tests that each call gets its own result, whichever workers die and whatever objects they held.

A user saw a call get the result of another call, a job that never ended, and an object that could
not be read, each after a worker with results in memory was killed.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import ciel
from ciel.client.cluster import LocalCluster
from ciel.testing.homes import HandCluster, Home, processes_below

RESULT_TIMEOUT_S = 60.0
STORES = ("disk", "shm:capacity=200MiB", "scc:capacity=256MiB")


def make(number: int) -> bytes:
    time.sleep(0.003)
    return bytes([number]) * 200_000


def look(content: bytes) -> tuple[int, int]:
    time.sleep(0.01)
    return content[0], len(content)


@pytest.fixture(params=STORES)
def cluster(request: pytest.FixtureRequest) -> Iterator[LocalCluster]:
    with LocalCluster(workers=2, slots=1, store=request.param) as cluster:
        yield cluster


def answers(readers: list[ciel.Future[tuple[int, int]]]) -> list[tuple[int, int]]:
    return [reader.result(timeout=RESULT_TIMEOUT_S) for reader in readers]


@pytest.mark.parametrize("cluster", ["shm:capacity=200MiB"], indirect=True)
def test_calls_get_their_own_results_after_workers_were_lost(cluster: LocalCluster) -> None:
    with ciel.Client(cluster) as client:
        made = [client.submit(make, number) for number in range(96)]
        ciel.wait(made)
        cluster.restart(0)
        readers = [client.submit(look, result) for result in made]
        time.sleep(0.2)  # so that some run when the next worker dies
        cluster.restart(1)
        cluster.restart(0)
        assert answers(readers) == [(number, 200_000) for number in range(96)]


@pytest.mark.slow
def test_results_are_produced_again_after_all_workers_died(cluster: LocalCluster) -> None:
    with ciel.Client(cluster) as client:
        made = [client.submit(make, number) for number in range(24)]
        ciel.wait(made)
        cluster.restart(0)
        cluster.restart(1)
        readers = [client.submit(look, result) for result in made]
        assert answers(readers) == [(number, 200_000) for number in range(24)]


@pytest.mark.slow
@pytest.mark.parametrize("cluster", ["shm:capacity=200MiB"], indirect=True)
def test_results_are_produced_again_after_a_worker_was_killed(cluster: LocalCluster) -> None:
    with ciel.Client(cluster) as client:
        made = [client.submit(make, number) for number in range(24)]
        ciel.wait(made)
        os.kill(_pids_of_workers()[0], signal.SIGKILL)
        readers = [client.submit(look, result) for result in made]
        assert answers(readers) == [(number, 200_000) for number in range(24)]


@pytest.mark.slow
@pytest.mark.parametrize("cluster", ["shm:capacity=200MiB"], indirect=True)
def test_a_map_returns_all_results_although_workers_are_restarted(cluster: LocalCluster) -> None:
    with ciel.Client(cluster) as client:
        results = client.map(make, range(24))
        time.sleep(0.1)
        cluster.restart(0)
        cluster.restart(1)
        assert [content[0] for content in results] == list(range(24))


def _pids_of_workers() -> list[int]:
    """List the worker daemons that this test's process started."""
    return [
        pid
        for pid, command in processes_below(os.getpid()).items()
        if "ciel.cli.daemons.worker" in command
    ]


PLANTED = """
import sys
if any("master" in word for word in sys.orig_argv):
    from ciel.core.events import TaskReported
    from ciel.master.service import MasterService

    class Failing:
        def __init__(self, service):
            self.service, self.machine = service, service.machine

        def worker_sent(self, *said):
            if self.service.machine is self.machine:
                return self.machine.worker_sent(*said)
            self.service.machine = self.machine
            raise KeyError("planted")

    usual, failed = MasterService.peer_said, []

    def peer_said(self, peer, messages):
        if not failed and any(type(message) is TaskReported for message in messages):
            failed.append(True)
            self.machine = Failing(self)
        usual(self, peer, messages)

    MasterService.peer_said = peer_said
"""


@pytest.mark.slow
def test_a_report_that_makes_the_master_raise_costs_only_one_attempt(tmp_path: Path) -> None:
    (tmp_path / "planted").mkdir()
    (tmp_path / "planted" / "sitecustomize.py").write_text(PLANTED)
    home = Home(tmp_path)
    home.environ["PYTHONPATH"] = str(tmp_path / "planted")
    home.environ["CIEL_PURE"] = "1"  # compiled modules cannot be patched
    cluster = HandCluster.start(home, workers=1)
    try:
        done = home.run("ciel", "submit", "--", "echo", "served")
        assert (done.returncode, done.stdout) == (0, "served\n"), done.stderr
        assert "KeyError: 'planted'" in cluster.log("master")
        done = home.run("ciel", "submit", "--array", "1-20", "--", "echo", "{}")
        assert done.stdout.split() == [str(number) for number in range(1, 21)], done.stderr
    finally:
        cluster.stop()
