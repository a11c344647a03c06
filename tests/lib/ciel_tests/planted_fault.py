"""A plugin of pytest that plants the fault number `CIEL_FAULT` of tests/faults/faults.toml: it
replaces a text of one module when Python imports it (see `.ci/faults`).
"""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

ROOT = Path(__file__).parents[3]


class Faulty(SourceFileLoader):
    """Loads a module with a fault."""

    def __init__(self, name: str, path: str, text: str, fault: str) -> None:
        super().__init__(name, path)
        self._text, self._fault = text, fault

    def get_code(self, fullname: str) -> CodeType:
        source = Path(self.path).read_text().replace(self._text, self._fault)
        return compile(source, self.path, "exec", dont_inherit=True)


class Planter(MetaPathFinder):
    """Finds the module that gets the fault."""

    def __init__(self, file: str, text: str, fault: str) -> None:
        name = file.removesuffix(".py").replace("/", ".")
        self._name = name if name.startswith(("ciel.", "benchmarks.", "tests.")) else f"ciel.{name}"
        self._text, self._fault = text, fault

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        spec = PathFinder.find_spec(fullname, path)
        assert spec is not None
        assert spec.origin is not None
        if not spec.origin.endswith(".py"):
            sys.exit(f"{fullname} is compiled: faults are planted in a checkout that is not")
        spec.loader = Faulty(fullname, spec.origin, self._text, self._fault)
        return spec


if number := os.environ.get("CIEL_FAULT"):
    faults = tomllib.loads((ROOT / "tests/faults/faults.toml").read_text())["fault"]
    chosen = faults[int(number)]
    sys.meta_path.insert(0, Planter(chosen["file"], chosen["text"], chosen["fault"]))
