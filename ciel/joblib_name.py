"""Registers the backend `"ciel"` with joblib when a program imports both packages, in either order.

joblib has no entry points for backends: it knows only those that a program has registered by
`joblib.register_parallel_backend`. So `import ciel` registers the name if joblib is loaded. If it
is not, an import hook waits for joblib, and removes itself afterwards. It loads nothing, changes no
other import, and joblib has the same loader as without it (ADR 49). A program that imports
`ciel.joblib` needs no hook.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class Finder:
    """The first import hook until joblib is imported; later hooks find joblib."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "joblib" or self not in sys.meta_path:
            return None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            spec = finder.find_spec(name, path, target) if hasattr(finder, "find_spec") else None
            if spec is not None:
                self._follow(spec.loader)
                return spec
        return None

    def _follow(self, loader: Any) -> None:
        """Register the name after a loader has executed the module. The loader stays the same
        object, since other code uses its methods.
        """
        if isinstance(loader, type) or not hasattr(loader, "exec_module"):
            return  # a loader of many modules, or an old one
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            if module.__name__ == "joblib":
                vars(loader).pop("exec_module", None)
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                register(module)

        loader.exec_module = exec_module


def register(joblib: ModuleType) -> None:
    """Register the backend, unless a file of the program is named joblib."""
    if hasattr(joblib, "register_parallel_backend"):
        joblib.register_parallel_backend("ciel", _backend)


def _backend(**options: Any) -> Any:
    return import_module("ciel.joblib").CielBackend(**options)


if "joblib" in sys.modules:
    register(sys.modules["joblib"])
else:
    sys.meta_path.insert(0, Finder())
