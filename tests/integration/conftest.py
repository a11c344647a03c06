"""Provides a home, a cluster that is started by hand in it, and clusters that the tests of a file
share.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from ciel.testing.homes import HandCluster, Home
from ciel_tests.clusters.two_slots import TwoSlots
from ciel_tests.installed.languages import build_jars


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path)
    yield home
    for pid in home.processes():
        os.kill(pid, signal.SIGKILL)


@pytest.fixture
def hand_cluster(home: Home) -> Iterator[HandCluster]:
    """Start a master and two workers as a user would."""
    cluster = HandCluster.start(home)
    yield cluster
    cluster.stop()


@pytest.fixture(scope="session")
def lasting_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HandCluster]:
    """Start such a cluster for all tests of a file that leave it unchanged; its `home` is
    theirs.
    """
    cluster = HandCluster.start(Home(tmp_path_factory.mktemp("lasting")))
    yield cluster
    cluster.stop()
    assert not cluster.home.processes()


@pytest.fixture(scope="session")
def jars(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Build the jar `apps` of the programs in `java`."""
    return build_jars(Path(__file__).parent / "java", tmp_path_factory.mktemp("java"))


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoSlots]:
    with TwoSlots(tmp_path_factory.mktemp("two-slots")) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared_cluster: TwoSlots) -> Iterator[TwoSlots]:
    """Return a cluster of two slots, and check after the test that it is as it was before."""
    yield shared_cluster
    shared_cluster.expect_as_before()
