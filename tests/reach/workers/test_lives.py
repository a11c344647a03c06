"""Tests workers that end at a time limit, when they are idle, or by SIGTERM: with real daemons."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ciel.testing.homes import HandCluster, Home, wait_for

UNTIL_GO = "echo $$ >> runs; until test -e go; do sleep 0.05; done; echo done"
LARGE = "head -c 100000 /dev/zero | tr '\\0' x"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[HandCluster]:
    """A cluster without workers."""
    cluster = HandCluster.start(Home(tmp_path), 0)
    yield cluster
    (tmp_path / "go").touch()
    cluster.stop()


def out(cluster: HandCluster, *words: str) -> str:
    done = cluster.home.run("ciel", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_detached(cluster: HandCluster, program: str, *options: str) -> None:
    out(cluster, "submit", "--detach", *options, "--", "sh", "-c", program)


def has_started(cluster: HandCluster, count: int) -> None:
    path = cluster.home.path / "runs"
    wait_for(lambda: path.exists() and len(path.read_text().split()) >= count, "a running task")


def has_left(worker: subprocess.Popen[str]) -> None:
    assert worker.wait(timeout=20) == 0


@pytest.mark.slow
def test_an_idle_worker_ends_and_another_one_has_its_results(cluster: HandCluster) -> None:
    run_detached(cluster, LARGE)
    idle = cluster.start_worker("--idle-timeout", "0.5s")
    out(cluster, "job", "wait", "last")
    assert idle.poll() is None  # nobody else has the result
    cluster.start_worker()
    has_left(idle)
    assert "this worker was drained: it leaves, and ends" in cluster.log("worker1")
    assert out(cluster, "job", "output", "last") == 100_000 * "x"


@pytest.mark.slow
def test_the_last_idle_worker_ends_if_nobody_needs_it(cluster: HandCluster) -> None:
    has_left(cluster.start_worker("--idle-timeout", "0.3s"))


@pytest.mark.slow
def test_a_task_waits_for_a_worker_that_lives_long_enough(cluster: HandCluster) -> None:
    cluster.start_worker("--time-limit", "1h")
    run_detached(cluster, "echo done", "--timeout", "2h")
    explained = out(cluster, "task", "explain", "last")
    assert "no worker lives long enough for it, and it waits for another one" in explained
    assert "the task needs 7200 s by its --timeout" in explained
    cluster.start_worker("--time-limit", "3h")
    out(cluster, "job", "wait", "last")


@pytest.mark.slow
def test_at_its_time_limit_a_worker_has_handed_everything_over(cluster: HandCluster) -> None:
    run_detached(cluster, LARGE)
    run_detached(cluster, UNTIL_GO)
    short = cluster.start_worker("--time-limit", "10s", "--drain-grace", "5s")
    has_started(cluster, 1)
    cluster.start_worker()
    has_left(short)
    has_started(cluster, 2)  # on the second worker
    (cluster.home.path / "go").touch()
    out(cluster, "job", "wait", "last")
    assert out(cluster, "job", "output", "1") == 100_000 * "x"
    assert out(cluster, "job", "output", "last") == "done\n"
    info = json.loads(out(cluster, "task", "explain", "last", "--json"))
    assert "was drained during attempt 1: the task runs again" in json.dumps(info)


@pytest.mark.slow
def test_after_sigterm_a_worker_lets_its_task_end(cluster: HandCluster) -> None:
    worker = cluster.start_worker("--drain-grace", "40s")
    run_detached(cluster, UNTIL_GO)
    has_started(cluster, 1)
    cluster.start_worker()
    worker.send_signal(signal.SIGTERM)
    wait_for(lambda: "drains for 40 s at most" in cluster.log("worker1"), "the drain")
    (cluster.home.path / "go").touch()
    has_left(worker)
    assert out(cluster, "job", "output", "last") == "done\n"
    assert len((cluster.home.path / "runs").read_text().split()) == 1


@pytest.mark.slow
@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_a_worker_at_once(cluster: HandCluster, second: int) -> None:
    worker = cluster.start_worker("--drain-grace", "1h")
    run_detached(cluster, UNTIL_GO)
    has_started(cluster, 1)
    worker.send_signal(signal.SIGTERM)
    wait_for(lambda: "drains for 3600 s at most" in cluster.log("worker1"), "the drain")
    worker.send_signal(second)
    has_left(worker)


@pytest.mark.slow
def test_daemons_report_to_the_service_manager(tmp_path: Path) -> None:
    home = Home(tmp_path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
        notified.bind(str(tmp_path / "notify"))
        notified.settimeout(20)
        home.environ |= {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "5000000"}
        cluster = HandCluster.start(home, 0)
        try:
            assert notified.recv(1000) == b"READY=1\nSTATUS=0 workers, 0 active jobs"
            assert notified.recv(1000) == b"WATCHDOG=1"
            worker = cluster.start_worker()
            while not (found := notified.recv(1000)).startswith(b"READY=1"):
                pass
            assert found == b"READY=1\nSTATUS=0 of 1 slots taken, 0 tasks queued"
            variables = out(cluster, "submit", "--clean-env", "--", "env")
            assert "NOTIFY_SOCKET" not in variables
            assert "WATCHDOG_USEC" not in variables
            worker.send_signal(signal.SIGTERM)
            while notified.recv(1000) != b"STOPPING=1":
                pass
            has_left(worker)
        finally:
            cluster.stop()
