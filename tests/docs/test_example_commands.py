"""Runs the commands in help texts, and the commands that run the programs in `examples`."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from ciel.cli.parsing.grammar import programs
from ciel_tests.documents.pages import Page
from ciel_tests.installed.languages import build_jars, require_java, require_ocaml

pytestmark = pytest.mark.timeout(300)  # enough for a busy machine

ROOT = Path(__file__).parents[2]
HELP = Path(__file__).parent / "help"
"""The files that examples of help texts name; the jars are built from its `java`."""
PROGRAMS = sorted([*ROOT.glob("examples/*/*.sw"), *ROOT.glob("examples/**/*.py")])
HEADER = re.compile(r"\| `(.*?)` \||(?://|#)? {4,5}((?:sw-job|make|python) .*)")
"""Matches a command in the first column of a table, or in the comment of an example that says how
to run it.
"""


def page_of_commands(files: Iterable[str], commands: Iterable[tuple[str, str]]) -> Page:
    """Build a page of commands with their places. Each place follows its command as a comment, so
    that a failure shows it.
    """
    first: dict[str, str] = {}
    for place, command in commands:
        first.setdefault(command, place)
    shown = [f"{command}  # {place}" for command, place in first.items()]
    lines = [f"<!-- files: {' '.join(files)} -->", "```sh", *shown, "```", ""]
    return Page("commands", "\n".join(lines))


def commands_of_help() -> Iterator[tuple[str, str]]:
    """Yield the examples of all help texts, which are the indented lines."""
    for command in (each for program in programs() for each in program.with_verbs()):
        text = "" if command.parser is None else command.parser.epilog or ""
        for example in re.findall(r"^  (\S.*)$", text, re.MULTILINE):
            yield f"{' '.join(command.words)} --help", example


def commands_of_programs() -> Iterator[tuple[str, str]]:
    """Yield the commands that run the programs in `examples`, from their table and their first
    lines.
    """
    for path in [ROOT / "examples/README.md", *PROGRAMS]:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if found := HEADER.match(line):
                command = re.sub(r" \[.*\]", "", found[1] or found[2])  # optional parts
                yield f"{path.relative_to(ROOT)}:{number}", command


@pytest.mark.slow
def test_examples_of_help_texts_run_as_printed(
    tmp_path: Path, run_page: Callable[[Page, Path], None]
) -> None:
    files = shutil.copytree(HELP, tmp_path / "files")
    build_jars(files / "java", files)["com"].rename(files / "pi.jar")
    names = [path.name for path in files.iterdir()]
    run_page(page_of_commands(names, commands_of_help()), files)


@pytest.mark.slow
def test_example_programs_run_with_their_documented_commands(
    run_page: Callable[[Page, Path], None],
) -> None:
    require_java()
    require_ocaml()
    commands = [("before all", "ciel up"), *commands_of_programs()]
    files = ("examples", "executors/sdk/c", "executors/sdk/ocaml", "LICENSE", "README.md")
    run_page(page_of_commands(files, commands), ROOT)
