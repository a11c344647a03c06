"""Provides a fixture that runs a page, and imports the benchmarks, which are not installed, by a
path that is added for a moment.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ciel.testing.homes import Home
from ciel_tests.documents.pages import Page
from ciel_tests.installed.languages import is_there

ROOT = str(Path(__file__).parents[2])

sys.path.insert(0, ROOT)
importlib.import_module("benchmarks")
sys.path.remove(ROOT)


@pytest.fixture
def run_page(tmp_path: Path) -> Iterator[Callable[[Page, Path], None]]:
    """Run a page with files of a source tree; fail with a text for each failed example."""
    home = Home(tmp_path)

    def run(page: Page, root: Path) -> None:
        missing = [name for name in page.needs if not is_there(name)]
        if missing:
            pytest.skip(f"{', '.join(missing)}: missing, but {page.name} needs it ('make deps')")
        if failures := page.run(home, root):
            pytest.fail("\n\n".join(failures), pytrace=False)
        home.expect_nothing_left()

    yield run
    for pid in home.processes():
        os.kill(pid, signal.SIGKILL)
