"""Finds in the bytecode of a function which variables it uses, and whether it rebinds any."""

from __future__ import annotations

import dis
import functools
import types
from typing import Final, NamedTuple

_OPAQUE_NAMES: Final = frozenset(("globals", "vars", "exec", "eval", "__globals__", "__dict__"))
_REBINDING_NAMES: Final = frozenset(("setattr", "delattr", "__setattr__", "__delattr__"))


class _Code(NamedTuple):
    """How a function uses variables.

    `names`: the globals that it reads or binds. `rebinds`: running it may rebind a variable or an
    attribute. `is_opaque`: it may use any variable. `stored`: the variables of enclosing functions
    that it rebinds.
    """

    names: tuple[str, ...]
    rebinds: bool
    is_opaque: bool
    stored: frozenset[str]


@functools.lru_cache(maxsize=1024)
def read_code(code: types.CodeType) -> _Code:
    """Return how code uses variables, including the functions that it defines."""
    inner = [read_code(item) for item in code.co_consts if isinstance(item, types.CodeType)]
    names: dict[str, None] = {}
    stored = {name for item in inner for name in item.stored}
    rebinds = any(item.rebinds for item in inner)
    for step in dis.get_instructions(code):
        operation = step.opname
        if operation.endswith("_GLOBAL"):
            names[step.argval] = None
            rebinds = rebinds or operation != "LOAD_GLOBAL"
        elif operation in ("STORE_ATTR", "DELETE_ATTR"):
            rebinds = True
        elif operation in ("STORE_DEREF", "DELETE_DEREF"):
            stored.add(step.argval)
    for item in inner:
        names.update(dict.fromkeys(item.names))
    stored &= set(code.co_freevars)
    used = _OPAQUE_NAMES.intersection(code.co_names)
    return _Code(
        tuple(names),
        rebinds or bool(stored) or not _REBINDING_NAMES.isdisjoint(code.co_names),
        bool(used) or any(item.is_opaque for item in inner),
        frozenset(stored),
    )
