import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ciel_tests.clusters.block_stores import BlockStores
from ciel_tests.clusters.puppet_daemon import Puppet


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[BlockStores]:
    """Block stores of a test's own; their ends leave nothing."""
    stores = BlockStores(tmp_path)
    yield stores
    assert stores.end() == []


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BlockStores]:
    """Two block stores, `a` and `b`, that the tests of a file share."""
    stores = BlockStores(tmp_path_factory.mktemp("pair"))
    stores.start("a", "b")
    yield stores
    assert stores.end() == []


@pytest.fixture
def puppet(tmp_path: Path) -> Iterator[Puppet]:
    path = Path(os.path.realpath(tmp_path))
    puppet = Puppet(path)
    yield puppet
    puppet.end()
