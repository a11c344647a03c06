"""Functions and classes as bytes, with their code where others could not find them by name: by
cloudpickle, and with what that leaves out.

- The slots of classes, which cloudpickle makes anew without them. Their instances then have a
  `__dict__`, and what becomes of it does not fit the class that they were of.
- Functions under `functools.lru_cache` travel with an empty cache.
- `functools.cached_property`, which holds a lock.
- The file that code comes from, without which a traceback shows no lines of it: cloudpickle keeps
  it up to 3.1.2 only.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Callable
from types import CodeType
from typing import Any, Final

import cloudpickle

from ciel.python.importable import is_importable

_MADE_ANEW: Final = getattr(cloudpickle.cloudpickle, "_make_skeleton_class", None)
_FILE_NAME_ARGUMENT: Final = 10  # its place among the arguments of `CodeType`, since Python 3.11
_SLOT_TYPES: Final = (str, tuple, list, dict, set, frozenset)  # else it may be used up


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle is untyped
    """Writes pickles of what may have no name elsewhere."""

    def reducer_override(self, value: Any) -> Any:
        kind = type(value)
        if kind is functools._lru_cache_wrapper and not is_importable(value):
            limits = value.cache_parameters()
            return _cached, (value.__wrapped__, limits["maxsize"], limits["typed"])
        if kind is functools.cached_property:
            return _cached_property, (value.func, value.attrname)
        if kind is CodeType:
            made, arguments = self.dispatch_table[kind](value)
            at = _FILE_NAME_ARGUMENT
            return made, (*arguments[:at], value.co_filename, *arguments[at + 1 :])
        reduced = super().reducer_override(value)
        if reduced is NotImplemented or reduced[0] is not _MADE_ANEW:
            return reduced
        if issubclass(value, tuple | BaseException):  # they hold nothing there, or lose it
            return reduced
        made, (metaclass, name, bases, attributes, *known), (state, slots), *rest = reduced
        if not isinstance(state.get("__slots__"), _SLOT_TYPES):
            return reduced
        attributes = attributes | {"__slots__": state.pop("__slots__")}  # they are set at once
        return made, (metaclass, name, bases, attributes, *known), (state, slots), *rest


def _cached(function: Callable[..., Any], max_size: int | None, is_typed: bool) -> Any:
    return functools.lru_cache(max_size, is_typed)(function)


def _cached_property(function: Callable[[Any], Any], name: str | None) -> Any:
    made: functools.cached_property[Any] = functools.cached_property(function)
    made.attrname = name  # as `__set_name__` does, which is called in class statements only
    return made


def dumps(value: Any) -> bytes:
    """Return a value as bytes; raises whatever its parts raise."""
    file = io.BytesIO()
    Pickler(file).dump(value)
    return file.getvalue()
