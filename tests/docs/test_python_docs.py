"""`docs/python`: what is on its pages runs, in order and as one script for each page, and prints
what is shown; the reference lists every public name.

Kinds of blocks: `python`; `python NAME.py`, a file that lies beside the script; `python elsewhere`,
the same in somebody else's words, which is only read; `output`, what the block before prints, with
`…` for what differs; `console`, commands and what they print.
"""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import ciel
from ciel.testing.homes import Home
from ciel.testing.two_slots import TwoSlots

PAGES = Path(__file__).parents[2] / "docs" / "python"
ON_ITS_OWN = "start.md"
"""The page that has no cluster before it begins."""
WITHOUT_BLOCKS = "reference.md"

# Runs blocks as parts of a file that is there, so that tracebacks show its lines.
RUNNER = """
import contextlib, io, json, sys, traceback

blocks, script = json.loads(sys.stdin.read()), sys.argv.pop()
sys.argv[0] = script
__file__ = script
def run(source):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        try:
            exec(compile(source, script, "exec"), globals())
        except BaseException as error:
            error.__traceback__ = error.__traceback__.tb_next
            traceback.print_exception(error, file=printed)
    print(json.dumps(printed.getvalue()), flush=True)

if __name__ == "__main__":
    for source in blocks:
        run(source)
"""


class Block(NamedTuple):
    """What stands between fences. `line` is that of its first."""

    line: int
    kind: str
    text: str


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    return [
        Block(text.count("\n", 0, found.start(2)) + 1, found[1], found[2])
        for found in re.finditer(r"^```([^\n]*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    ]


def pattern_of(shown: str) -> str:
    """`…` stands for what is different each time."""
    return re.escape(shown).replace("…", ".*?")


def pages() -> list[Path]:
    return sorted(PAGES.glob("*.md"))


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    with TwoSlots(tmp_path_factory.mktemp("docs")) as cluster:
        yield cluster.home


def place_of(home: Home, page: Path) -> Path:
    """Where the page's script lies."""
    place = home.path / page.stem
    place.mkdir()
    return place


def run_python(home: Home, place: Path, found: list[Block], page: Path) -> list[str]:
    """Run a page's blocks as one script; return what each prints."""
    script = place / "script.py"
    lines: list[str] = []
    sources = []
    for block in found:
        lines += [""] * (block.line - 1 - len(lines))
        sources.append("\n" * len(lines) + block.text)
        lines += block.text.splitlines()
    script.write_text("\n".join(lines) + "\n")
    done = subprocess.run(
        [sys.executable, "-c", RUNNER, str(script)], env=home.environ, cwd=place,
        input=json.dumps(sources), capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    printed = [json.loads(line) for line in done.stdout.splitlines()]
    assert (done.returncode, len(printed)) == (0, len(found)), f"{page.name}: {done.stderr}"
    return printed


def expect_shown(page: Path, shown: list[Block], printed: dict[int, str]) -> None:
    """Compare every block of output with what the one before it printed; what prints and shows
    nothing must have printed nothing.
    """
    left = dict(printed)
    for before, block in pairwise(shown):
        if block.kind == "output":
            found = left.pop(before.line)
            assert re.fullmatch(pattern_of(block.text), found, re.DOTALL), (
                f"{page.name}:{block.line}: it printed\n{found}"
            )
    assert {line: text for line, text in left.items() if text} == {}, page.name


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_what_is_on_a_page_runs_and_prints_what_is_shown(
    page: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if page.name == WITHOUT_BLOCKS:
        return
    is_alone = page.name == ON_ITS_OWN
    home = Home(tmp_path) if is_alone else request.getfixturevalue("up")
    place, every = place_of(home, page), blocks(page)
    for block in every:
        if match := re.fullmatch(r"python (\w+\.py)", block.kind):
            (place / match[1]).write_text(block.text)
        elif block.kind.startswith("python"):
            compile(block.text, f"{page.name}:{block.line}", "exec")
    run = [block for block in every if block.kind == "python"]
    printed = run_python(home, place, run, page)
    expect_shown(page, every, {b.line: text for b, text in zip(run, printed, strict=True)})
    for block in every:
        if block.kind == "console":
            run_console(home, place, block)
    if is_alone:
        home.expect_nothing_left()


def run_console(home: Home, place: Path, block: Block) -> None:
    """Run its commands, each after `$ `; the lines below are what it prints."""
    for command, shown in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block.text, re.MULTILINE):
        command = command.replace("ciel up", "ciel up --listen 127.0.0.1:0")  # whatever is free
        done = subprocess.run(
            ["sh", "-c", command], env=home.environ, cwd=place, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert re.fullmatch(pattern_of(shown), done.stdout, re.DOTALL), f"{command}\n{done.stdout}"


def test_blocks_are_of_known_kinds() -> None:
    known = re.compile(r"python( elsewhere| \w+\.py)?|output|console")
    for page in pages():
        for block in blocks(page):
            assert known.fullmatch(block.kind), f"{page.name}:{block.line}: {block.kind!r}"


# --- the reference --------------------------------------------------------------------------------

LISTED = re.compile(r"^- `(?:await |with )?([\w.]+)", re.MULTILINE)


def listed() -> dict[str, list[str]]:
    """What the reference lists below each heading."""
    parts = re.split(r"^## (.*)$", (PAGES / "reference.md").read_text(), flags=re.MULTILINE)
    return {
        heading.strip("`"): LISTED.findall(text)
        for heading, text in zip(parts[1::2], parts[2::2], strict=True)
    }


def public(kind: type[Any]) -> set[str]:
    """The names of a class that are for users: its own, and those of bases of ours."""
    found: set[str] = set()
    for base in kind.__mro__:
        if base.__module__.startswith("ciel."):
            found |= {name for name in vars(base) if not name.startswith("_")}
    return found


@pytest.mark.parametrize("name", ["Client", "Future", "Task", "LocalCluster"])
def test_the_reference_lists_what_a_class_has(name: str) -> None:
    found = listed()[f"ciel.{name}"]
    assert len(found) == len(set(found))
    assert set(found) == public(getattr(ciel, name))


def test_the_reference_lists_what_ciel_has() -> None:
    names: list[str] = []
    for heading, found in listed().items():
        names += [heading] if heading.startswith("ciel.") else found
    bare = [name.removeprefix("ciel.") for name in names]
    assert len(bare) == len(set(bare))
    modules = {"dask", "joblib", "multiprocessing"}
    assert {*bare} == {*ciel.__all__, *modules} - {"__version__"}


def test_every_public_name_has_a_docstring() -> None:
    for name in ciel.__all__:
        if not name.startswith("__"):
            assert inspect.getdoc(getattr(ciel, name)), name
    for name in ("Client", "Future", "Task", "LocalCluster"):
        kind = getattr(ciel, name)
        missing = [method for method in public(kind) if not inspect.getdoc(getattr(kind, method))]
        assert missing == [], name
