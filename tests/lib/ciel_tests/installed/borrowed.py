"""Runs tests of the standard library on our replacements of its classes.

Many interpreters come without these tests. Debian has them in a separate package
(libpython3.11-testsuite), and its files run on any interpreter of that version.
"""

from __future__ import annotations

import ast
import importlib
import sys
import sysconfig
import unittest
from collections.abc import Iterable
from pathlib import Path

PLACES = (
    Path(sysconfig.get_path("stdlib"), "test"),
    Path(f"/usr/lib/python{sys.version_info[0]}.{sys.version_info[1]}/test"),
)


MISSING = (
    "the standard library's own tests are not there "
    f"(Debian: libpython{sys.version_info[0]}.{sys.version_info[1]}-testsuite): 'make deps' "
    "installs them"
)


def find(name: str) -> Path | None:
    """Return the path of a test file; None if it is not installed, see `MISSING`."""
    return next((place / name for place in PLACES if (place / name).exists()), None)


def lend(names: Iterable[str], folder: Path) -> None:
    """Make the installed files importable as `test.<name>`, here and in processes with `folder` in
    PYTHONPATH.
    """
    found = {name: path for name in names if (path := find(name)) is not None}
    if not found:
        return
    package = folder / "test"
    package.mkdir()
    (package / "__init__.py").write_text(f"__path__.append({str(PLACES[0])!r})\n")
    for name, path in found.items():
        (package / name).symlink_to(path)
    importlib.import_module("test").__path__.insert(0, str(package))


def methods(name: str, classes: Iterable[str]) -> list[str]:
    """Return the tests that classes of a file define themselves, as `Class.test_method`; none if
    the file is not installed.
    """
    path, wanted = find(name), set(classes)
    if path is None:
        return []
    return [
        f"{found.name}.{method.name}"
        for found in ast.parse(path.read_text()).body
        if isinstance(found, ast.ClassDef) and found.name in wanted
        for method in found.body
        if isinstance(method, ast.FunctionDef) and method.name.startswith("test_")
    ]


def outcome(case: unittest.TestCase) -> str:
    """Run a test; return its errors, or "". A skipped test is an error, too."""
    result = unittest.TestResult()
    case.run(result)
    failed = [text for _, text in [*result.errors, *result.failures]]
    return "\n".join([*failed, *(f"skipped: {reason}" for _, reason in result.skipped)])
