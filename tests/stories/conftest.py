"""Provides the cluster that all stories share, in which the tests plant failures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ciel.testing.homes import HandCluster, Home
from ciel_tests.clusters.stories import Stage


@pytest.fixture(scope="session")
def stage(tmp_path_factory: pytest.TempPathFactory, typed: Any) -> Iterator[Stage]:
    """Start a worker of four slots, with little room for objects and little memory."""
    home = Home(tmp_path_factory.mktemp("stage"))
    options = ("--slots", "4", "--memory", "1GiB", "--store", "disk:capacity=16MiB")
    cluster = HandCluster.start(home, 1, *options)
    yield Stage(cluster, typed)
    cluster.stop()
    assert not home.processes()
