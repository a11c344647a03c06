"""Fixtures: a home, a cluster started by hand in it, and one that the tests of a file share."""

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
    """A master and two workers, as a person would start them."""
    cluster = HandCluster.start(home)
    yield cluster
    cluster.stop()


@pytest.fixture(scope="session")
def lasting_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HandCluster]:
    """Such a cluster, for all tests that leave it as it was; its `home` is theirs."""
    cluster = HandCluster.start(Home(tmp_path_factory.mktemp("lasting")))
    yield cluster
    cluster.stop()
    assert not cluster.home.processes()


@pytest.fixture(scope="session")
def jars(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Jars of what lies in `java`: `com`, the bindings' stand-in, and `apps`, what runs on it."""
    return build_jars(Path(__file__).parent / "java", tmp_path_factory.mktemp("java"))


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoSlots]:
    with TwoSlots(tmp_path_factory.mktemp("two-slots")) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared_cluster: TwoSlots) -> Iterator[TwoSlots]:
    """A cluster of two slots that must be as it was before when a test has ended."""
    yield shared_cluster
    shared_cluster.expect_as_before()
