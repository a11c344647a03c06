from pathlib import Path

import pytest

from ciel.access.access_file import AccessFile
from ciel.access.keys import Key
from ciel.launchers.interface import Site


@pytest.fixture
def site(tmp_path: Path) -> Site:
    access = AccessFile("http://127.0.0.1:1", "127.0.0.1:1", "c1", Key.new(), 1, 1)
    return Site(access, tmp_path / "access.json", tmp_path)
