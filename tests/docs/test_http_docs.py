"""Checks that the tables of `docs/http.md` name every route of the master and of a worker."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ciel.testing.homes import HandCluster, Home
from ciel_tests.http.master_rows import master_table
from ciel_tests.http.worker_rows import worker_table

PAGE = Path(__file__).parents[2] / "docs" / "http.md"
SPOKEN_OF = frozenset(
    ("ping", "stopping", "report", "failed", "publish", "log", "unsubscribe", "advert")
)
"""The last components of paths that only a sentence mentions."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[HandCluster]:
    cluster = HandCluster.start(Home(tmp_path), 1)
    yield cluster
    cluster.stop()


@pytest.mark.slow
def test_a_role_key_is_written_to_a_private_file(cluster: HandCluster) -> None:
    home, file = cluster.home, cluster.home.path / "read.key"
    assert home.run("ciel", "key", "read", "-o", str(file)).stdout == ""
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.read_text() == home.run("ciel", "key", "read").stdout
    done: subprocess.CompletedProcess[str] = home.run("ciel", "key", "admin")
    assert done.returncode == 2
    assert home.run("ciel", "key", "read", "-o", str(home.path)).returncode == 2


def test_every_route_of_the_master_is_on_the_page() -> None:
    text = PAGE.read_text()
    for path, route in master_table():
        shown = re.sub(r"\{(\w+)\}", lambda name: name[1].upper(), path)
        shown = shown.replace("stopwatch/NAME", "stopwatch/…").replace(
            "/worker/WORKER", "/worker/ID"
        )
        last = path.rpartition("/")[2]
        known = last in SPOKEN_OF or last in ("gethostname", "backup") or "browse" in path
        assert known or shown in text, (path, type(route).__name__)
        assert not known or last in text or "browse" in path


def test_every_route_of_a_worker_is_on_the_page() -> None:
    text = PAGE.read_text().partition("## The worker")[2]
    for path, _ in worker_table():
        shown = re.sub(r"\{(\w+)\}", lambda name: name[1].upper(), path)
        assert shown in text or shown.rpartition("/")[2] in SPOKEN_OF, path
