"""Checks that modules import each other in no circle, imports for type checking included, and that
no folder is so large that a reader cannot find a module by its name.
"""

from __future__ import annotations

import ast
from collections import Counter
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
TOPS = ("ciel", "executors", "scc", "shm", "skywriting")
FILES_MAX = 20


@cache
def modules() -> dict[str, Path]:
    """Return the file of each module of the product, by the module's name."""
    found = {}
    for top in TOPS:
        for path in sorted((ROOT / top).rglob("*.py")):
            if top == "ciel" and path.relative_to(ROOT).parts[1] in TOPS:
                continue  # a link to another top-level directory
            parts = path.relative_to(ROOT).with_suffix("").parts
            parts = parts if top == "ciel" else ("ciel", *parts)
            found[".".join(parts).removesuffix(".__init__")] = path
    return found


def imports(path: Path) -> set[str]:
    """Return the modules of the product that a module imports, anywhere in its source."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in modules() else node.module for name in names}
    return found & modules().keys()


def test_modules_import_each_other_in_no_circle() -> None:
    graph = {module: imports(path) - {module} for module, path in modules().items()}
    circles = {module for module in graph if module in reached(graph, module)}
    assert circles == set()


def reached(graph: dict[str, set[str]], start: str) -> set[str]:
    """Return the modules that a module imports, directly or not; itself only if through others."""
    found: set[str] = set()
    left = [*graph[start]]
    while left:
        module = left.pop()
        if module not in found:
            found.add(module)
            left += graph[module]
    return found


def test_a_package_has_few_modules() -> None:
    counts = Counter(
        module.rpartition(".")[0]
        for module, path in modules().items()
        if path.name != "__init__.py" and not path.name.startswith("compiled_")
    )
    for top in ("benchmarks", "examples", "tests"):
        files = [path for path in (ROOT / top).rglob("*.py") if path.name != "__init__.py"]
        counts.update(str(path.parent.relative_to(ROOT)) for path in files)
    large = {package: count for package, count in counts.items() if count > FILES_MAX}
    assert large == {}
