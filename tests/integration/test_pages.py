"""The commands on pages for users: each is run, and prints what the page says."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ciel.testing.homes import Home
from ciel.testing.languages import require_jansson, require_perl

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"
EXAMPLES = ROOT / "examples" / "proc"
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


def run_page(page: str, cluster: Home, instead: dict[str, str]) -> int:
    """Run the commands of a page, and compare what they print; return how many there are."""
    found = commands(page)
    for command, shown in found:
        for text, other in instead.items():
            command = command.replace(text, other)
        done = subprocess.run(
            ["sh", "-c", command], env=cluster.environ, cwd=cluster.path, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.stdout == shown, f"{command}\n{done.stdout}{done.stderr}"
    return len(found)


def test_coming_from_xargs_and_parallel(cluster: Home) -> None:
    for number, name in enumerate(("ant", "bee", "cat"), 1):
        (cluster.path / f"{name}.txt").write_text("line\n" * number)
    mark = str(cluster.path / "fixed")
    assert run_page("from-xargs-and-parallel.md", cluster, {"/tmp/fixed": mark}) > 15


def test_where_programs_run(cluster: Home) -> None:
    (cluster.path / "words.txt").write_text("pear\napple\n")
    assert run_page("where-programs-run.md", cluster, {}) == 2


def test_a_task_in_any_language(cluster: Home) -> None:
    require_jansson()
    require_perl()
    for example in EXAMPLES.iterdir():
        shutil.copy(example, cluster.path)
    assert run_page("programs.md", cluster, {}) == 6
