"""Finds the part of a value that cannot be pickled, so that an error message can name it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from types import FunctionType, MethodType
from typing import Any, Final

from ciel.python.bytecode import read_code
from ciel.python.pickling import dumps

DEPTH_MAX: Final = 8
"""The search goes this many levels into a value."""


def describe_culprit(value: Any, *, skips_futures: bool) -> str:
    """Name the innermost part that cannot be pickled: an argument, a key or an attribute.

    `skips_futures`: a future counts as a part that can be pickled.
    """
    path, found = _search(value, "", DEPTH_MAX, skips_futures)
    kind = type(found)
    where = f"{path.removeprefix('.').removeprefix(': ')} " if path else ""
    return f"{where}{kind.__module__}.{kind.__qualname__} cannot be pickled ({found!r:.80})"


def _search(value: Any, path: str, depth: int, skips_futures: bool) -> tuple[str, Any]:
    for step, part in _parts(value) if depth else ():
        if not _can_be_pickled(part, skips_futures):
            return _search(part, path + step, depth - 1, skips_futures)
    return path, value


def _can_be_pickled(value: Any, skips_futures: bool) -> bool:
    try:
        dumps(value)
    except Exception:  # a __reduce__ of the user may raise anything
        return skips_futures and hasattr(value, "__ciel_future__")
    return True


def _parts(value: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(value, dict):
        return [(f"[{key!r:.40}]", item) for key, item in value.items()]
    if isinstance(value, list | tuple | set | frozenset):
        return [(f"[{place}]", item) for place, item in enumerate(value)]
    if isinstance(value, FunctionType):
        return _parts_of_function(value)
    if isinstance(value, MethodType):
        return [(".__self__", value.__self__), (f".{value.__name__}", value.__func__)]
    if isinstance(value, partial):
        arguments = [(f".args[{place}]", item) for place, item in enumerate(value.args)]
        named = [(f".keywords[{name!r}]", item) for name, item in value.keywords.items()]
        return [*arguments, *named, (".func", value.func)]
    wrapped = getattr(value, "__wrapped__", None)
    attributes = getattr(value, "__dict__", None) or {}
    found = [(f".{name}", item) for name, item in attributes.items() if item is not wrapped]
    for kind in () if isinstance(value, type) else type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(value, name):
                found.append((f".{name}", getattr(value, name)))
    if not isinstance(value, type):
        found.append((f": its class {type(value).__qualname__}", type(value)))
    return found if wrapped is None else [*found, (".__wrapped__", wrapped)]


def _parts_of_function(function: FunctionType) -> Iterator[tuple[str, Any]]:
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    for name, cell in cells:
        with suppress(ValueError):  # it is empty
            yield f".{name}", cell.cell_contents
    for name in read_code(function.__code__).names:
        if name in function.__globals__:
            yield f": its global variable {name}", function.__globals__[name]
    code, defaults = function.__code__, function.__defaults__ or ()
    names = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
    named = dict(zip(names, defaults, strict=True))
    for name, item in {**named, **(function.__kwdefaults__ or {})}.items():
        yield f": the default of its parameter {name}", item
    for name, item in function.__dict__.items():
        yield f".{name}", item
