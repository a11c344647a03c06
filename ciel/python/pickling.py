"""Pickles functions and classes with their code if other programs cannot import them.

It extends cloudpickle, which does not support:

- `__slots__`: cloudpickle re-creates classes without them. Instances would have a `__dict__`, and
  would not fit the class that they came from.
- Functions with `functools.lru_cache`; they are sent with an empty cache.
- `functools.cached_property`, which holds a lock.
- The names of source files, without which tracebacks show no lines of source code. Only versions of
  cloudpickle up to 3.1.2 keep them.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Callable
from types import CodeType
from typing import Any, Final

import cloudpickle

from ciel.python.importable import is_importable

_MAKE_CLASS: Final = getattr(cloudpickle.cloudpickle, "_make_skeleton_class", None)
_FILE_NAME_ARGUMENT: Final = 10  # its place among the arguments of `CodeType`, since Python 3.11
_SLOT_TYPES: Final = (str, tuple, list, dict, set, frozenset)  # another iterable may be exhausted


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle is untyped
    """Pickles objects that other programs may not be able to import."""

    def reducer_override(self, value: Any) -> Any:
        kind = type(value)
        if kind is functools._lru_cache_wrapper and not is_importable(value):
            limits = value.cache_parameters()
            return _cached, (value.__wrapped__, limits["maxsize"], limits["typed"])
        if kind is functools.cached_property:
            return _cached_property, (value.func, value.attrname)
        if kind is CodeType:
            build, arguments = self.dispatch_table[kind](value)
            at = _FILE_NAME_ARGUMENT
            return build, (*arguments[:at], value.co_filename, *arguments[at + 1 :])
        reduced = super().reducer_override(value)
        if reduced is NotImplemented or reduced[0] is not _MAKE_CLASS:
            return reduced
        if issubclass(value, tuple | BaseException):  # pickle does not restore their slots
            return reduced
        build, (metaclass, name, bases, attributes, *known), (state, slots), *rest = reduced
        if not isinstance(state.get("__slots__"), _SLOT_TYPES):
            return reduced
        attributes = attributes | {
            "__slots__": state.pop("__slots__")
        }  # a class can get slots only when it is created
        return build, (metaclass, name, bases, attributes, *known), (state, slots), *rest


def _cached(function: Callable[..., Any], max_size: int | None, is_typed: bool) -> Any:
    return functools.lru_cache(max_size, is_typed)(function)


def _cached_property(function: Callable[[Any], Any], name: str | None) -> Any:
    rebuilt: functools.cached_property[Any] = functools.cached_property(function)
    rebuilt.attrname = name  # only a class statement calls `__set_name__`
    return rebuilt


def dumps(value: Any) -> bytes:
    """Return a value as a pickle; raises whatever its parts raise."""
    file = io.BytesIO()
    Pickler(file).dump(value)
    return file.getvalue()
