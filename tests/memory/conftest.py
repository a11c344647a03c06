"""Memory servers for tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ciel_tests.clusters.memory import Nodes


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    nodes = Nodes()
    try:
        yield nodes
    finally:
        nodes.close()
