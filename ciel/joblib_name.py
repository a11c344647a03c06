"""Registers the backend `"ciel"` with joblib as soon as joblib is imported.

This imports neither joblib nor, until the name is used, the backend.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class Finder:
    """The first finder of `sys.meta_path` until joblib is imported; other finders find joblib."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "joblib" or self not in sys.meta_path:
            return None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            spec = finder.find_spec(name, path, target) if hasattr(finder, "find_spec") else None
            if spec is not None:
                self._hook_loader(spec.loader)
                return spec
        return None

    def _hook_loader(self, loader: Any) -> None:
        """Make a loader call `tell` after it has executed the module. Its method is replaced, not
        the loader itself, because other code may use the loader.
        """
        if isinstance(loader, type) or not hasattr(loader, "exec_module"):
            return  # shared by many modules, or cannot execute modules
        run = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            if module.__name__ == "joblib":
                vars(loader).pop("exec_module", None)
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                tell(module)

        loader.exec_module = exec_module


def tell(joblib: ModuleType) -> None:
    """Register the backend, if the module is really joblib."""
    if hasattr(joblib, "register_parallel_backend"):
        joblib.register_parallel_backend("ciel", _backend)


def _backend(**options: Any) -> Any:
    return import_module("ciel.joblib").CielBackend(**options)


if "joblib" in sys.modules:
    tell(sys.modules["joblib"])
else:
    sys.meta_path.insert(0, Finder())
