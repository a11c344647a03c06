"""Fixtures: a home, and a cluster started by hand in it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from ciel.testing.homes import HandCluster, Home, wait_for


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path)
    yield home
    for pid in home.processes():
        os.kill(pid, signal.SIGKILL)


@pytest.fixture
def hand_cluster(home: Home) -> Iterator[HandCluster]:
    """A master and two workers, as a person would start them."""
    access = home.path / "access.json"
    log = str(home.path / "master.log")
    master = home.start(
        "ciel-master", "--listen", "127.0.0.1:0", "--access", str(access), "--log", log
    )
    wait_for(access.exists, "the master's access file")
    cluster = HandCluster(home, access, master, [])
    cluster.start_worker()
    cluster.start_worker()
    home.environ["CIEL_ACCESS"] = str(access)
    yield cluster
    cluster.stop()
