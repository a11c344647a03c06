"""A real store, and every hand that a worker needs to act."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ciel.storage.files import FileStore, open_disk


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FileStore]:
    with open_disk({}, tmp_path / "store") as store:
        yield store
