"""Checks rules for the source tree that no linter knows."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
TOPS = ("ciel", "executors", "scc", "shm", "skywriting", "benchmarks", "examples", "tests")
SOURCES = sorted(path for top in TOPS for path in (ROOT / top).rglob("*.py"))  # follows no link
OURS = [path for path in SOURCES if path.relative_to(ROOT).parts[0] != "tests"]
TESTS = [path for path in SOURCES if path.relative_to(ROOT).parts[0] == "tests"]

FUNCTION_LINES_MAX = 70
BANNED_WORDS = frozenset(
    ("manager", "handler", "processor", "util", "utils", "helper", "helpers", "common", "misc")
)
# Each pattern is written in parts, so that it does not match this file.
UNFINISHED = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X)\b")
MACHINE_PATH = re.compile(r"(?<![\w.])/(home|root|Users|work|mnt)" r"/\w")
SLEEP = "time.sleep("
TYPE_IGNORE = re.compile(r"#\s*type:\s*ignore(.*)")
REASONED = re.compile(r"\[[a-z-]+(, ?[a-z-]+)*\] +# \S.*")


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def text(path: Path) -> str:
    return path.read_text()


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(text(path))


def lines(paths: list[Path]) -> Iterator[tuple[str, str]]:
    """Yield every line with its file and number."""
    for path in paths:
        for number, line in enumerate(text(path).splitlines(), 1):
            yield f"{name(path)}:{number}", line


@cache
def all_definitions(path: Path) -> list[ast.AST]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    holders = (ast.stmt, ast.excepthandler, ast.match_case)  # an expression holds no statements
    found: list[ast.AST] = []
    left: list[ast.AST] = [tree(path)]
    while left:
        node = left.pop()
        if isinstance(node, kinds):
            found.append(node)
        left += [child for child in ast.iter_child_nodes(node) if isinstance(child, holders)]
    return found


def definitions(path: Path, *kinds: type[ast.AST]) -> Iterator[ast.AST]:
    return (node for node in all_definitions(path) if isinstance(node, kinds))


def words(identifier: str) -> set[str]:
    """Split an identifier in either spelling into words."""
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", identifier)}


def test_each_source_file_is_listed_once() -> None:
    names = [name(path) for path in SOURCES]
    assert {"ciel/core/graph/task_graph.py", "executors/__init__.py", "shm/store.py"} <= set(names)
    links = tuple(f"ciel/{room}/" for room in rooms())
    assert not [path for path in names if path.startswith(links)]


# --- size -----------------------------------------------------------------------------------------


def test_no_function_is_too_long() -> None:
    too_long = {}
    for path in OURS:
        for node in definitions(path, ast.FunctionDef, ast.AsyncFunctionDef):
            assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LINES_MAX:
                too_long[f"{name(path)}:{node.name}"] = length
    assert too_long == {}


# --- names ----------------------------------------------------------------------------------------


def test_no_module_or_class_has_a_vague_name() -> None:
    found = [name(path) for path in SOURCES if words(path.stem) & BANNED_WORDS]
    for path in SOURCES:
        for node in definitions(path, ast.ClassDef):
            assert isinstance(node, ast.ClassDef)
            if words(node.name) & BANNED_WORDS:
                found.append(f"{name(path)}:{node.name}")
    assert found == []


def test_a_package_file_contains_only_its_docstring_and_exports() -> None:
    found = []
    for path in SOURCES:
        if path.name == "__init__.py":
            docstring, *rest = tree(path).body
            assert isinstance(docstring, ast.Expr), f"{name(path)} begins with its docstring"
            found += [f"{name(path)}:{node.lineno}" for node in rest if not is_export(node)]
    assert found == []


def is_export(node: ast.stmt) -> bool:
    """Return whether a statement exports names, at once or lazily."""
    match node:
        case ast.Import() | ast.ImportFrom() | ast.Assign(targets=[ast.Name()]):
            return True
        case ast.If(test=ast.Name(id="TYPE_CHECKING"), body=body, orelse=[]):
            return all(map(is_export, body))
        case ast.FunctionDef(name="__getattr__" | "__dir__"):
            return True
    return False


# --- packages at the top of the tree --------------------------------------------------------------


@cache
def rooms() -> tuple[str, ...]:
    """Read TOP_LEVEL_PACKAGES in setup.py without running it."""
    for node in ast.parse((ROOT / "setup.py").read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "TOP_LEVEL_PACKAGES":
            value: tuple[str, ...] = ast.literal_eval(node.value)
            return value
    raise AssertionError("setup.py names no TOP_LEVEL_PACKAGES")


def test_the_links_to_rooms_agree_with_setup_py() -> None:
    links = {
        path.name: str(path.readlink()) for path in (ROOT / "ciel").iterdir() if path.is_symlink()
    }
    assert links == {room: f"../{room}" for room in rooms()}


def test_a_module_is_imported_by_its_name_below_ciel_only() -> None:
    """A module imported by two names exists twice, with two sets of classes."""
    top = re.compile(rf"^ *(?:from|import) (?:{'|'.join(rooms())})\b")
    found = [where for where, line in lines(SOURCES) if top.match(line)]
    assert found == []


# --- contents of lines ----------------------------------------------------------------------------


def test_no_line_marks_unfinished_work() -> None:
    assert [where for where, line in lines(SOURCES) if UNFINISHED.search(line)] == []


def test_no_file_contains_a_path_of_one_machine() -> None:
    assert [where for where, line in lines(SOURCES) if MACHINE_PATH.search(line)] == []


def test_no_module_sleeps_to_wait_for_an_event() -> None:
    engine = [path for path in OURS if not path.is_relative_to(ROOT / "ciel" / "testing")]
    assert [where for where, line in lines(engine) if SLEEP in line] == []


def test_an_ignored_type_error_has_its_code_and_a_reason() -> None:
    found = []
    for where, line in lines(SOURCES):
        match = TYPE_IGNORE.search(line)
        if match and not REASONED.fullmatch(match[1]) and "re.compile" not in line:
            found.append(where)
    assert found == []


# --- tests ----------------------------------------------------------------------------------------


def test_every_test_file_has_a_test() -> None:
    def is_test(node: ast.stmt) -> bool:
        if isinstance(node, ast.FunctionDef):
            return node.name.startswith("test_")
        if isinstance(node, ast.Assign):  # the test case of a state machine
            return ast.unparse(node.targets[0]).startswith("Test")
        return isinstance(node, ast.ClassDef) and node.name.startswith("Test")

    files = [path for path in TESTS if path.name.startswith("test_")]
    assert [name(p) for p in files if not any(map(is_test, tree(p).body))] == []


def test_test_directories_are_not_packages() -> None:
    assert [name(path) for path in TESTS if path.name == "__init__.py"] == []
