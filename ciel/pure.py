"""Modules as they are written, though they may have been compiled: `CIEL_PURE=1`.

For who changes them, or sets breakpoints in them, or has machines of his own inherit from ours,
which compiled classes do not allow. It is the same program, a third slower.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, ModuleSpec, SourceFileLoader
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


if os.environ.get("CIEL_PURE") == "1":
    sys.meta_path.insert(0, Sources())
