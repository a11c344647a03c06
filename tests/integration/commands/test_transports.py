"""Compares `ciel status --transports` with real daemons (CIB-53)."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ciel.core.transports import CORES_MIN, NOT_OPEN, RING, SOCKET
from ciel.testing.homes import HandCluster, Home, wait_for
from ciel_tests.clusters.hosts import Hosts, TwoHosts


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path)
    home.environ.pop("CIEL_STORE", None)  # these tests name the store of each worker
    yield home
    for pid in home.processes():  # of a test that failed
        os.kill(pid, signal.SIGKILL)
    home.expect_nothing_left()


def transports(home: Home) -> list[dict[str, Any]]:
    done = home.run("ciel", "status", "--transports", "--json")
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)["transports"]
    return found


def channel_of(home: Home) -> str:
    """Wait until the daemons have agreed; return what carries the messages of the only worker."""
    wait_for(lambda: NOT_OPEN not in str(transports(home)), "an agreement")
    (worker,) = transports(home)
    assert worker["objects"] == []
    return str(worker["control"]["way"])


def is_mapped(pid: int, kind: str) -> bool:
    return f"memfd:ciel-{kind}" in Path(f"/proc/{pid}/maps").read_text()


@pytest.mark.requirement("CIB-53")
@pytest.mark.parametrize(
    "of_master, of_worker, expected",
    [
        ((), (), RING if len(os.sched_getaffinity(0)) >= CORES_MIN else SOCKET),
        ((), ("--channel", "ring"), "ring"),
        (("--channel", "mpb"), (), "mpb"),
        (("--channel", "socket"), (), "socket"),
        (("--channel", "ring"), ("--channel", "mpb"), "socket"),
    ],
    ids=["auto", "the worker's", "the master's", "the master's socket", "different ones"],
)
def test_a_choice_of_either_user_wins_and_is_shown(
    home: Home, of_master: tuple[str, ...], of_worker: tuple[str, ...], expected: str
) -> None:
    cluster = HandCluster.start(home, 1, *of_worker, of_master=of_master)
    assert channel_of(home) == expected
    for daemon in (cluster.master, cluster.workers[0]):
        kinds = [kind for kind in ("ring", "mpb") if is_mapped(daemon.pid, kind)]
        assert kinds == ([expected] if expected != "socket" else [])
    shown = home.run("ciel", "status", "--transports").stdout
    assert f"  messages: {expected}, because " in shown
    chosen = [*of_master, *of_worker]
    assert all(word in shown for word in chosen)
    cluster.stop()


@pytest.mark.requirement("CIB-53")
@pytest.mark.slow
def test_workers_of_two_hosts_use_the_network(tmp_path: Path) -> None:
    with Hosts(tmp_path) as (here, there):
        hosts = TwoHosts(here, there)
        for host in (here, there):
            hosts.start_worker(host)
        shown = here.run("ciel", "status", "--transports", "--json")
        near, far = sorted(
            json.loads(shown.stdout)["transports"], key=lambda w: w["control"]["way"] == "tcp"
        )
        assert near["control"]["way"] != "tcp"
        assert far["control"]["way"] == "tcp"
        assert near["objects"][0]["way"] == far["objects"][0]["way"] == "http"
        for host in (here, there):
            host.kill_all()
