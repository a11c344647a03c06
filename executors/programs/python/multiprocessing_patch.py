"""Patches `multiprocessing`, so that tasks can send objects of the client's main module.

The processes that a task starts cannot import that module. So functions and classes of it are sent
together with their code.
"""

from __future__ import annotations

import pickle
from multiprocessing.reduction import ForkingPickler
from types import FunctionType
from typing import Any

from ciel.python.importable import is_importable_module


def _reduced(_: ForkingPickler, value: Any) -> Any:
    if not isinstance(value, FunctionType | type) or is_importable_module(
        value.__module__ or "builtins"
    ):
        return NotImplemented
    from ciel.python.pickling import dumps

    return _loaded, (dumps(value),)


def _loaded(packed: bytes) -> Any:
    patch()  # this process may return an instance of such a class
    return pickle.loads(packed)


def patch() -> None:
    """Make `multiprocessing` send the code of objects that its processes cannot import."""
    pickler: Any = ForkingPickler  # pickle calls this method if it exists
    pickler.reducer_override = _reduced
