"""The commands on pages for users: each is run, and prints what the page says."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ciel.testing.homes import Home

DOCS = Path(__file__).parent.parent.parent / "docs"
BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)


def commands(page: str) -> list[tuple[str, str]]:
    """Every command of a page with the output shown for it, in order."""
    found: list[tuple[str, str]] = []
    for block in BLOCK.findall((DOCS / page).read_text()):
        for line in block.splitlines(keepends=True):
            if line.startswith("$ "):
                found.append((line[2:].rstrip("\n"), ""))
            else:
                command, shown = found[-1]
                found[-1] = (command, shown + line)
    return found


@pytest.fixture
def cluster(home: Home) -> Iterator[Home]:
    up = home.run("ciel", "up", "--workers", "1", "--slots", "2", "--listen", "127.0.0.1:0")
    assert up.returncode == 0, up.stderr
    yield home
    home.run("ciel", "down")
    home.expect_nothing_left()


def test_coming_from_xargs_and_parallel(cluster: Home) -> None:
    for number, name in enumerate(("ant", "bee", "cat"), 1):
        (cluster.path / f"{name}.txt").write_text("line\n" * number)
    mark = cluster.path / "fixed"
    page = commands("from-xargs-and-parallel.md")
    assert len(page) > 15
    for command, shown in page:
        done = subprocess.run(
            ["sh", "-c", command.replace("/tmp/fixed", str(mark))],
            env=cluster.environ, cwd=cluster.path, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.stdout == shown, f"{command}\n{done.stdout}{done.stderr}"
