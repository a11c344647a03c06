"""Runs the tests of this directory, which take minutes, only with CIEL_LONG=1."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from ciel.testing.homes import HandCluster, Home

collect_ignore_glob = [] if os.environ.get("CIEL_LONG") == "1" else ["test_*.py"]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[HandCluster]:
    """Start a master and two workers with a slot each, in their own home."""
    home = Home(tmp_path)
    cluster = HandCluster.start(home)
    yield cluster
    cluster.stop()
    for pid in home.processes():
        os.kill(pid, signal.SIGKILL)
