"""Lets the processes that a task starts with `multiprocessing` have functions and classes of the
client's main module. In a task that is another module, so they travel with their code.
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
    let_processes_have_code()  # the result may be of such a class
    return pickle.loads(packed)


def let_processes_have_code() -> None:
    """Have `multiprocessing` send the code of what its processes cannot find by name."""
    pickler: Any = ForkingPickler  # which pickle asks for this
    pickler.reducer_override = _reduced
