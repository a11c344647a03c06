"""Checks whether other processes can import a function, a class or a module by its name."""

from __future__ import annotations

import sys
from typing import Any


def is_importable(thing: Any) -> bool:
    """Return whether a function, a task or a class can be imported from its module by its name."""
    module = sys.modules.get(getattr(thing, "__module__", None) or "")
    return (
        module is not None
        and is_importable_module(module.__name__)
        and _found(module, getattr(thing, "__qualname__", "")) is thing
    )


def is_importable_module(module_name: str) -> bool:
    """Return whether other processes can import a module.

    They cannot import the main module, nor a module that the user has registered with cloudpickle
    to be sent by value.
    """
    if module_name == "__main__":
        return False
    pickling = sys.modules.get("cloudpickle")
    by_value = () if pickling is None else pickling.list_registry_pickle_by_value()
    return not any(f"{module_name}.".startswith(f"{name}.") for name in by_value)


def _found(module: Any, qualified_name: str) -> Any:
    for part in qualified_name.split("."):
        module = getattr(module, part, None)
    return module
