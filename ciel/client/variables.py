"""What functions take along when they travel with their code: the variables of their module and of
the functions around them, and so on through the functions and classes that these are.

At a prompt, and in a notebook, any of them may be said anew; then a function that was packed before
is no longer what it would be now. A variable is looked at, not what is in it: a list that has grown
is the same list.
"""

from __future__ import annotations

import dis
import functools
import operator
import types
import weakref
from collections.abc import Callable, Iterable
from itertools import repeat
from typing import Any, Final

from ciel.python.tasks import Task, goes_by_name

_MISSING: Final = object()
_HEAP_TYPE: Final = 1 << 9  # of `__flags__`: it was made by a class statement
_contents: Final = operator.attrgetter("cell_contents")  # ValueError if it is empty


class Variables:
    """The variables of one function, as they are now: their ids, which tell what they are as long
    as all of them live. Those that can be are referred to weakly: nothing is to live longer because
    a function was called once.
    """

    __slots__ = ("_around", "_dead", "_kept", "_of_modules")

    def __init__(self, function: Callable[..., Any]) -> None:
        self._dead: list[Any] = []
        self._kept: list[Any] = []
        self._around: list[tuple[weakref.ref[types.FunctionType], tuple[int, ...]]] = []
        # Functions of one module are looked at together.
        owners: dict[int, tuple[types.FunctionType, dict[str, Any]]] = {}
        seen: set[int] = set()
        waiting: list[Any] = [function, *getattr(function, "__dict__", {}).values()]
        while waiting:
            value = waiting.pop()
            if id(value) in seen:
                continue
            seen.add(id(value))
            if type(value) is types.FunctionType and not goes_by_name(value):
                module = value.__globals__
                found = {name: module.get(name, _MISSING) for name in _names(value.__code__)}
                owners.setdefault(id(module), (value, {}))[1].update(found)
                waiting += self._note_around(value)
                waiting += found.values()
                waiting += value.__defaults__ or ()
                waiting += (value.__kwdefaults__ or {}).values()
            else:
                waiting += _parts(value)
        self._of_modules = [
            (weakref.ref(owner), tuple(found), self._keep(found.values()))
            for owner, found in owners.values()
            if found
        ]

    def _note_around(self, function: types.FunctionType) -> Iterable[Any]:
        cells = function.__closure__
        if cells is None:
            return ()
        try:
            values = [_contents(cell) for cell in cells]
        except ValueError:  # it is going to be another one
            self._dead.append(None)
            return ()
        self._around.append((weakref.ref(function), self._keep(values)))
        return values

    def _keep(self, values: Iterable[Any]) -> tuple[int, ...]:
        """Return the ids of objects, and learn of it when one of them is no more."""
        ids = []
        for value in values:
            ids.append(id(value))
            try:
                self._kept.append(weakref.ref(value, self._dead.append))
            except TypeError:  # a number, a text, a list
                self._kept.append(value)
        return tuple(ids)

    def are_as_before(self) -> bool:
        """Whether each is the same object as it was then."""
        for owner, names, ids in self._of_modules:
            function = owner()
            if function is None:
                return False
            if tuple(map(id, map(function.__globals__.get, names, repeat(_MISSING)))) != ids:
                return False
        for owner, ids in self._around:
            function = owner()
            if function is None:
                return False
            try:
                if tuple(map(id, map(_contents, function.__closure__ or ()))) != ids:
                    return False
            except ValueError:
                return False
        return not self._dead


@functools.lru_cache(maxsize=1024)
def _names(code: types.CodeType) -> tuple[str, ...]:
    """Return the names in a function, and in those within it, that are variables of its module."""
    inner = [_names(item) for item in code.co_consts if isinstance(item, types.CodeType)]
    own = [step.argval for step in dis.get_instructions(code) if step.opname.endswith("_GLOBAL")]
    return tuple(dict.fromkeys(own + [name for names in inner for name in names]))


def _parts(value: Any) -> Iterable[Any]:
    """Return what travels within a value, as far as that has code."""
    kind = type(value)
    if issubclass(kind, Task):
        return (value.function,)
    if kind is types.MethodType:
        return (value.__func__, value.__self__)
    if kind is staticmethod or kind is classmethod:
        return (value.__func__,)
    if kind is property:
        return (value.fget, value.fset, value.fdel)
    if kind is functools.partial:
        return (value.func, *value.args, *value.keywords.values())
    if not issubclass(kind, type):
        return (kind,)
    if value.__flags__ & _HEAP_TYPE and not goes_by_name(value):
        return (*value.__bases__, *vars(value).values())
    return ()
