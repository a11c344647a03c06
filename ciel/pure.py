"""Loads the sources of compiled modules: with `CIEL_PURE=1`, and in a checkout where a source has
changed since `make compiled`.

Unlike compiled modules, sources allow breakpoints, and classes that inherit from the engine's. They
do the same, a third slower.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, ModuleSpec, SourceFileLoader
from types import ModuleType


class Sources:
    """An import hook that finds the sources of modules of ciel. It leaves modules without sources,
    such as modules in C, to other hooks.
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


def changed_since_compiled(package: str) -> bool:
    """Whether this is a checkout with a source that is newer than its compiled module.

    Each process that imports ciel calls this. So it reads each directory once: 3 ms.
    """
    with os.scandir(package) as entries:
        compiled_s = [e.stat().st_mtime for e in entries if e.name.startswith("compiled_")]
    if not compiled_s or not os.path.exists(os.path.join(package, "..", "pyproject.toml")):
        return False
    for place, below, names in os.walk(package, followlinks=True):
        below[:] = [name for name in below if name != "__pycache__"]
        sources = set(names)
        for name in names:
            source = f"{name.partition('.')[0]}.py"
            if name.endswith(".so") and source in sources:
                if os.stat(os.path.join(place, source)).st_mtime > min(compiled_s):
                    return True
    return False


if os.environ.get("CIEL_PURE") == "1" or changed_since_compiled(os.path.dirname(__file__)):
    sys.meta_path.insert(0, Sources())
