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
    home.run("ciel", "down", "--force")
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
    assert run_page("coming-from.md", cluster, {"/tmp/fixed": mark}) > 15


TUTORIAL = re.compile(
    r"^\| `(parallel .*?|cat .*?|env .*?)` \| `(.*?)` \| (yes|sorted) \|$", re.MULTILINE
)


def test_f_what_parallels_tutorial_does_ours_does(cluster: Home) -> None:
    """Both commands of each row of the table are run, and print the same."""
    if shutil.which("parallel") is None:
        pytest.skip("GNU parallel is not installed (make deps)")
    (cluster.path / "abc-file").write_text("A\nB\nC\n")
    (cluster.path / "abc0-file").write_text("A\0B\0C\0")
    (cluster.path / "num30000").write_text("".join([f"{n}\n" for n in range(1, 30001)]))
    rows = TUTORIAL.findall((DOCS / "coming-from.md").read_text())
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


def test_where_programs_run(cluster: Home) -> None:
    (cluster.path / "words.txt").write_text("pear\napple\n")
    assert run_page("where-programs-run.md", cluster, {}) == 2


def test_a_task_in_any_language(cluster: Home) -> None:
    require_jansson()
    require_perl()
    for example in EXAMPLES.iterdir():
        shutil.copy(example, cluster.path)
    assert run_page("programs.md", cluster, {}) == 6
