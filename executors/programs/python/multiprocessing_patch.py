"""Patches `multiprocessing` so that a task can send functions and classes of the client's main
module to processes that it starts. Those cannot import that module, so the code is sent along.
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
    patch()  # the result may be of such a class
    return pickle.loads(packed)


def patch() -> None:
    """Have `multiprocessing` send the code of objects that its processes cannot import."""
    pickler: Any = ForkingPickler  # pickle calls this method if it exists
    pickler.reducer_override = _reduced
