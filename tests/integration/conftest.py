"""Fixtures: a home, a cluster started by hand in it, and one that the tests of a file share."""

from __future__ import annotations

import contextlib
import io
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import pytest

from ciel.cli.main import main
from ciel.testing.homes import HandCluster, Home
from ciel.testing.two_slots import TwoSlots


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path)
    yield home
    for pid in home.processes():
        os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="session")
def typed() -> Callable[..., tuple[int, str, str]]:
    """Run a command of a home in this process, which is quicker; return its status, its output and
    what it said.
    """

    def run(home: Home, *words: str | bytes) -> tuple[int, str, str]:
        out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", "backslashreplace") for _ in range(2))
        with (
            mock.patch.dict(os.environ, home.environ, clear=True), contextlib.chdir(home.path),
            contextlib.redirect_stdout(out), contextlib.redirect_stderr(err),
        ):  # fmt: skip
            status = main([os.fsdecode(word) for word in words])
        for stream in (out, err):
            stream.seek(0)
        return status, out.read(), err.read()

    return run


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


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoSlots]:
    with TwoSlots(tmp_path_factory.mktemp("two-slots")) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared_cluster: TwoSlots) -> Iterator[TwoSlots]:
    """A cluster of two slots that must be as it was before when a test has ended."""
    yield shared_cluster
    shared_cluster.expect_as_before()
