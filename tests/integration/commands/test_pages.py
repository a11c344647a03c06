"""Tests the tables of `docs/coming-from.md`: the commands of GNU parallel's tutorial and their ciel
counterparts print the same, and the counterparts of HyperQueue's commands run.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ciel.testing.homes import Home

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[3] / "docs" / "coming-from.md"
TUTORIAL = re.compile(
    r"^\| `(parallel .*?|cat .*?|env .*?)` \| `(.*?)` \| (yes|sorted) \|$", re.MULTILINE
)


@pytest.fixture
def cluster(home: Home) -> Iterator[Home]:
    up = home.run("ciel", "up", "--workers", "1", "--slots", "2", "--listen", "127.0.0.1:0")
    assert up.returncode == 0, up.stderr
    yield home
    home.run("ciel", "down", "--force")
    home.expect_nothing_left()


def test_f_ciel_counterparts_of_parallels_tutorial_print_the_same(cluster: Home) -> None:
    """Run both commands of each row of the table, and compare their output."""
    if shutil.which("parallel") is None:
        pytest.skip("GNU parallel is not installed (make deps)")
    (cluster.path / "abc-file").write_text("A\nB\nC\n")
    (cluster.path / "abc0-file").write_text("A\0B\0C\0")
    (cluster.path / "num30000").write_text("".join([f"{n}\n" for n in range(1, 30001)]))
    rows = TUTORIAL.findall(PAGE.read_text())
    assert len(rows) >= 20
    for *pair, same in rows:
        printed = []
        for command in pair:
            done = subprocess.run(
                ["bash", "-c", command.replace("\\|", "|")], env=cluster.environ, cwd=cluster.path,
                stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False,
            )  # fmt: skip
            lines = done.stdout.splitlines()
            printed.append((sorted(lines) if same == "sorted" else lines, done.stderr))
        assert printed[0][0] == printed[1][0], (pair, printed)


HYPERQUEUE = re.compile(r"^\| `hq .*? \| (`.*`) \|$", re.MULTILINE)


def test_f_ciel_counterparts_of_hyperqueues_commands_run(cluster: Home) -> None:
    for name in ("program", "sim"):
        (cluster.path / name).write_text("#!/bin/sh\necho $*\n")
        (cluster.path / name).chmod(0o755)
    (cluster.path / "names").write_text("ant\nbee\n")
    (cluster.path / "file").write_text("a line\n")
    rows = HYPERQUEUE.findall(PAGE.read_text())
    assert len(rows) >= 10
    for command in re.findall("`(.*?)`", " ".join(rows)):
        done = cluster.run("sh", "-c", command)
        assert done.returncode == 0, f"{command}\n{done.stderr}"
