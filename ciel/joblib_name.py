"""Makes the name `"ciel"` known to joblib, whenever that is imported. It is not imported for it,
nor is anything of ours before the name is used.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class Finder:
    """Stands in front of all others until joblib is imported, which they find."""

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
        """Hear of it when a loader has run the module. It stays the loader that it is, as others
        ask it for more.
        """
        if isinstance(loader, type) or not hasattr(loader, "exec_module"):
            return  # one for many modules, or for none
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
    """Tell joblib of our name, if it is joblib at all."""
    if hasattr(joblib, "register_parallel_backend"):
        joblib.register_parallel_backend("ciel", _backend)


def _backend(**options: Any) -> Any:
    return import_module("ciel.joblib").CielBackend(**options)


if "joblib" in sys.modules:
    tell(sys.modules["joblib"])
else:
    sys.meta_path.insert(0, Finder())
