"""Prints each requirement with its code, its tests and its state: `make requirements`.

    python tests/requirements.py [--check] [ROOT]

The titles come from docs/requirements.md, and also what is missing: the last sentence of an entry
may be `*In part: what is missing.*`. These show that a requirement is met:

- tests with the mark `@pytest.mark.requirement("CIB-40")`, also of a class or a whole module;
- checks that pytest does not collect, if their head comment has the word "Shows" and the numbers:
  programs in C, models in Promela, and Python files that a target of the Makefile runs;
- benchmarks whose docstring cites the number in its first sentence, as some requirements ask for
  measurements.

Suites in `ciel.testing` have no marks: pytest would refuse a mark that the project of a user who
inherits them does not know. The class that inherits a suite has the mark.

With --check, it prints only faults, one on each line: a requirement that nothing shows, a number
that docs/requirements.md lacks, and a mark without a number or in another place. The exit status is
then 1 if there is one. No test is imported.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeGuard

PAGE = "docs/requirements.md"
CODE = ("ciel", "executors", "shm", "scc", "skywriting")
SUITES = "ciel/testing"
CHECKS = ("tests", "scc/tests", "scc/models")
MEASUREMENTS = "benchmarks"
CODE_SUFFIXES = frozenset((".py", ".c", ".h", ".cpp", ".java", ".ml"))
CHECK_SUFFIXES = frozenset((".py", ".c", ".pml"))
MARK = "requirement"

NUMBER = re.compile(r"\b(?:CIB|POOL|NET|KVB|KVM)-\d+\b")
RANGE = re.compile(r"\b(CIB|POOL|NET|KVB|KVM)-(\d+) to (?:\1-)?(\d+)\b")
ENTRY = re.compile(r"- ((?:CIB|POOL|NET|KVB|KVM)-\d+) ")
IN_PART = re.compile(r"\*In part: ([^*]+?)\.?\*$")
SHOWS = re.compile(r"\bShows ((?:[A-Z]+-\d+(?:, | and )?)+)")
HEAD_LINES_MAX = 30  # a head comment ends earlier
TITLE_WIDTH = 60
WIDTH = 100


class Requirement(NamedTuple):
    """An entry of docs/requirements.md. `missing` is empty if the requirement is met."""

    number: str
    title: str
    missing: str


class Proofs(NamedTuple):
    """The files and tests that show that a requirement is met, by number; marks without one."""

    tests: dict[str, list[str]]
    measured: dict[str, list[str]]
    faults: list[str]

    def shows(self, number: str) -> bool:
        return bool(self.tests.get(number) or self.measured.get(number))


# --- the page -------------------------------------------------------------------------------------


def requirements(page: str) -> list[Requirement]:
    """Read the entries of the page, in its order."""
    entries: list[list[str]] = []
    for line in page.splitlines():
        if ENTRY.match(line):
            entries.append([line])
        elif entries and line.startswith("  "):
            entries[-1].append(line.strip())
        elif entries and entries[-1][-1]:
            entries[-1].append("")  # ends the entry
    return [entry(" ".join(lines).strip()) for lines in entries]


def entry(text: str) -> Requirement:
    start = ENTRY.match(text)
    assert start is not None, text
    said = text[start.end() :]
    missing = IN_PART.search(said)
    said = IN_PART.sub("", said)
    title = textwrap.shorten(
        said.replace("`", "").replace("*", ""),
        TITLE_WIDTH,
        placeholder=" …",
        break_on_hyphens=False,
    )
    return Requirement(start[1], title, missing[1] if missing else "")


# --- code -----------------------------------------------------------------------------------------


def files(root: Path, tops: Iterable[str], suffixes: frozenset[str]) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each file below these directories; follow no link."""
    for top in tops:
        for path in sorted((root / top).rglob("*")):
            if path.suffix in suffixes and path.is_file() and "__pycache__" not in path.parts:
                yield path.relative_to(root).as_posix(), path.read_text(errors="replace")


def cited(text: str) -> set[str]:
    """Find the numbers in a text; `CIB-21 to CIB-24` is four."""
    found = set(NUMBER.findall(text))
    for short, first, last in RANGE.findall(text):
        found |= {f"{short}-{number}" for number in range(int(first), int(last) + 1)}
    return found


def is_code(name: str) -> bool:
    return not name.startswith((f"{SUITES}/", "scc/tests/"))


def code_by_number(root: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for name, text in files(root, CODE, CODE_SUFFIXES):
        for number in cited(text) if is_code(name) else ():
            found[number].append(name)
    return found


# --- tests ----------------------------------------------------------------------------------------


def proofs(root: Path) -> Proofs:
    """Find marked tests, checks that say `Shows`, and measurements."""
    found = Proofs(defaultdict(list), defaultdict(list), [])
    python = frozenset((".py",))
    for name, text in files(root, ("tests",), python):
        if f"mark.{MARK}" in text:
            for number, test in marked(name, ast.parse(text), found.faults):
                found.tests[number].append(test)
    for name, text in files(root, CHECKS, CHECK_SUFFIXES):
        if "Shows" in text and not Path(name).name.startswith("test_"):
            for number in sorted(shown(head(name, text))):
                found.tests[number].append(name)
    for name, text in files(root, (MEASUREMENTS,), python):
        sentence = re.split(r"\.\s", head(name, text), maxsplit=1)[0]
        for number in sorted(cited(sentence)):
            found.measured[number].append(name)
    return found


def marked(name: str, tree: ast.Module, faults: list[str]) -> Iterator[tuple[str, str]]:
    """Yield each number of a mark with its test: `FILE::test`, or `FILE` for a whole module."""
    unread = {id(node): node for node in ast.walk(tree) if is_mark(node)}
    for node, owner in statements(tree.body, ""):
        match node:
            case ast.Assign(targets=[ast.Name(id="pytestmark")], value=value):
                marks = value.elts if isinstance(value, ast.List | ast.Tuple) else [value]
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                marks, owner = node.decorator_list, f"{owner}::{node.name}"
            case _:
                continue
        for mark in marks:
            function = mark.func if isinstance(mark, ast.Call) else mark
            if unread.pop(id(function), None):
                for number in numbers_of(mark, name, faults):
                    yield number, f"{name}{owner}"
    for other in unread.values():
        faults.append(f"{name}:{other.lineno}: the mark is not that of a test, a class or a module")


def is_mark(node: ast.AST) -> TypeGuard[ast.Attribute]:
    match node:
        case ast.Attribute(
            attr=attr, value=ast.Attribute(attr="mark", value=ast.Name(id="pytest"))
        ):
            return attr == MARK
    return False


def statements(body: list[ast.stmt], owner: str) -> Iterator[tuple[ast.stmt, str]]:
    """Yield the statements of a module and of its classes, each with the names of its classes."""
    for statement in body:
        yield statement, owner
        match statement:
            case ast.ClassDef(name=name, body=inner):
                yield from statements(inner, f"{owner}::{name}")
            case ast.If(body=inner, orelse=other):
                yield from statements([*inner, *other], owner)


def numbers_of(mark: ast.expr, name: str, faults: list[str]) -> Iterator[str]:
    """Yield the numbers of a mark `pytest.mark.requirement(...)`; note one that has none."""
    values = mark.args if isinstance(mark, ast.Call) else []
    if not values:
        faults.append(f"{name}:{mark.lineno}: the mark has no number")
    for value in values:
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield value.value
        else:
            faults.append(f"{name}:{value.lineno}: the number of the mark is not a plain text")


def head(name: str, text: str) -> str:
    """Return the docstring of a Python file, or the first lines of another one."""
    if name.endswith(".py"):
        return ast.get_docstring(ast.parse(text)) or ""
    return "\n".join(text.splitlines()[:HEAD_LINES_MAX])


def shown(text: str) -> set[str]:
    """Find the numbers after `Shows`, which may continue on the next line of a comment."""
    text = re.sub(r"\n[ */#]*", " ", text)
    return {number for said in SHOWS.findall(text) for number in NUMBER.findall(said)}


# --- what is printed ------------------------------------------------------------------------------


def faults_of(known: list[Requirement], found: Proofs) -> list[str]:
    """List what `--check` complains about, one line each."""
    numbers = {requirement.number for requirement in known}
    lines = list(found.faults)
    for each in (found.tests, found.measured):
        for number, places in sorted(each.items()):
            if number not in numbers:
                lines += [f"{place}: {PAGE} has no {number}" for place in places]
    lines += [
        f"{one.number} has no test: {one.title}" for one in known if not found.shows(one.number)
    ]
    return lines


def state(requirement: Requirement, is_shown: bool) -> str:
    if not is_shown:
        return "no test"
    return f"in part: {requirement.missing}" if requirement.missing else "met"


def row(requirement: Requirement, code: list[str], found: Proofs) -> str:
    """Return the lines of a requirement: number and title, then code, tests and state."""
    number = requirement.number
    lines = [f"{number}  {requirement.title}"]
    columns = {
        "code": code,
        "tests": found.tests.get(number),
        "measured": found.measured.get(number),
    }
    for label, places in columns.items():
        for place in places or ():
            lines.append(f"  {label:8}  {place}")
            label = ""
    first, following = f"  {'state':8}  ", " " * 12
    said = state(requirement, found.shows(number))
    lines += textwrap.wrap(said, WIDTH, initial_indent=first, subsequent_indent=following)
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Print the table, or with --check the faults."""
    parser = argparse.ArgumentParser(description="Requirements with their code, tests and state.")
    parser.add_argument("--check", action="store_true", help="print faults only; exit 1 if any")
    here = Path(__file__).parent.parent
    parser.add_argument("root", nargs="?", type=Path, default=here, help="the tree to read")
    options = parser.parse_args(arguments)
    known = requirements((options.root / PAGE).read_text())
    found = proofs(options.root)
    if options.check:
        faults = faults_of(known, found)
        print("".join(f"{fault}\n" for fault in faults), end="")
        return 1 if faults else 0
    code = code_by_number(options.root)
    for requirement in known:
        print(row(requirement, code.get(requirement.number, []), found), end="\n\n")
    states = [state(one, found.shows(one.number)).partition(":")[0] for one in known]
    counts = [f"{states.count(one)} {one}" for one in ("met", "in part", "no test")]
    print(f"{len(known)} requirements: {', '.join(counts)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
