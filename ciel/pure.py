"""Runs the sources of modules that were compiled: with `CIEL_PURE=1`, and in a checkout where a
source was changed since `make compiled`.

Sources allow breakpoints, and classes that inherit from the engine's, which compiled classes do
not. They are the same program, a third slower.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType


class Sources:
    """Finds the sources of our modules; what has none, such as what is written in C, it leaves to
    others.
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if path is None or not name.startswith("ciel."):
            return None
        for place in path:
            spec = FileFinder(place, (SourceFileLoader, SOURCE_SUFFIXES)).find_spec(name)
            if spec is not None and spec.loader is not None:
                return spec
        return None


def changed_since_compiled(package: Path) -> bool:
    """Whether this is a checkout with a source that is newer than what was compiled from it."""
    compiled_s = [path.stat().st_mtime for path in package.glob("compiled_*.so")]
    if not compiled_s or not (package.parent / "pyproject.toml").exists():
        return False
    return any(
        (source := module.with_name(f"{module.name.partition('.')[0]}.py")).exists()
        and source.stat().st_mtime > min(compiled_s)
        for pattern in ("*/*.so", "*/*/*.so")
        for module in package.glob(pattern)
    )


if os.environ.get("CIEL_PURE") == "1" or changed_since_compiled(Path(__file__).parent):
    sys.meta_path.insert(0, Sources())
