"""Provides a cluster that runs test suites of other projects, in processes that can import those
suites.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ciel import Client
from ciel.testing.homes import HandCluster, Home, wait_for
from ciel_tests.installed import borrowed

SLOTS = 3

LIBRARY_TESTS = ("test_concurrent_futures.py", "_test_multiprocessing.py")


def pytest_configure(config: pytest.Config) -> None:
    for name in ("thread_unsafe", "no_cover"):
        config.addinivalue_line("markers", f"{name}: a mark of joblib's tests")


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HandCluster]:
    library = tmp_path_factory.mktemp("library")
    borrowed.lend(LIBRARY_TESTS, library)
    home = Home(tmp_path_factory.mktemp("ecosystem"))
    home.environ["PYTHONPATH"] = str(library)
    cluster = HandCluster.start(home, 1, "--slots", str(SLOTS))
    yield cluster
    cluster.stop()
    # files of failed tasks are kept
    wait_for(lambda: not home.processes(), "the end of all processes")


@pytest.fixture(scope="module")
def client(cluster: HandCluster) -> Iterator[Client]:
    """Connect a client for one test file; started programs find the cluster, too."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("CIEL_ACCESS", "PYTHONPATH"):
            patch.setenv(name, cluster.home.environ[name])
        with Client() as client:
            yield client
