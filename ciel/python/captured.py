"""Detects changes of the state that a function captures (docs/adr/0055).

That state is the globals of its module that it uses, closure cells, default arguments, attributes,
the objects that these refer to, and so on through the functions and classes among them. Before each
call, a client checks whether it must pack the function again. The program that runs calls checks
whether the function is still as it was sent.
"""

from __future__ import annotations

import copyreg
import enum
import functools
import operator
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, repeat
from typing import Any, Final

from ciel.python.bytecode import read_code
from ciel.python.importable import is_importable, is_importable_module
from ciel.python.tasks import Task

PARTS_MAX: Final = 2000
"""A function that refers to more objects is opaque: packing it again takes less time than checking
each object.
"""

_MISSING: Final = object()
_HEAP_TYPE: Final = 1 << 9  # set in `__flags__` of a class that a class statement created
_POINTER_BYTES: Final = 8

_CONSTANT_TYPES: Final = frozenset(
    (
        int, float, bool, str, bytes, complex, type(None), type(...), type(NotImplemented), range,
        types.CodeType, types.GetSetDescriptorType, types.MemberDescriptorType,
        types.WrapperDescriptorType, types.MethodDescriptorType, types.ClassMethodDescriptorType,
        types.GenericAlias, types.UnionType, operator.itemgetter, operator.attrgetter,
        type(_MISSING),
    )
)  # fmt: skip
_CONSTANT_MODULES: Final = frozenset(
    ("datetime", "fractions", "uuid", "pathlib", "re", "typing", "_abc")
)
"""Modules whose classes have immutable instances only."""
_SKIPPED_IN_CLASSES: Final = frozenset(
    ("__dict__", "__weakref__", "__module__", "__doc__", "__annotations__", "__match_args__",
     "__dataclass_fields__", "__dataclass_params__", "__abstractmethods__", "__slots__",
     "__parameters__", "__orig_bases__", "__class_getitem__")
)  # fmt: skip
"""Attributes that a class statement or a decorator sets once."""


class Captured:
    """The state that one function captures, at the time when this object is created.

    It holds weak references where it can, so that it keeps few objects alive. `is_opaque`: some of
    the state cannot be watched, so that only packing it again shows whether it has changed.
    `is_constant`: running the function does not change the state.
    """

    __slots__ = (
        "_bound",
        "_contents",
        "_dead",
        "_kept",
        "_rebinds",
        "_seen",
        "_views",
        "is_constant",
        "is_opaque",
    )

    def __init__(self, function: Callable[..., Any]) -> None:
        self._dead: list[Any] = []
        self._kept: list[Any] = []
        self._bound: list[tuple[Callable[[], Any], Callable[[Any], Any], Any]] = []
        """Functions, and the identities of the objects that their variables are bound to."""
        self._contents: list[tuple[Callable[[], Any], Callable[[Any], Any], Any]] = []
        """Classes, instances, arrays and some containers, and the identities of their contents."""
        self._views: list[Any] = []
        self._seen: list[Any] = []
        """Containers without weak references, followed by their contents and by _END."""
        self._rebinds = False
        self.is_opaque = False
        self.is_constant = True
        try:
            self._walk(function)
        except Exception:  # a __getattr__ of the user may raise anything
            self.is_opaque = True
        if self.is_opaque:
            self.is_constant = False
            self._bound.clear()
            self._contents.clear()
            self._views.clear()
            self._seen.clear()
            self._kept.clear()

    def _walk(self, function: Callable[..., Any]) -> None:
        globals_: dict[int, dict[str, None]] = {}
        seen: set[int] = set()
        waiting: list[Any] = [function]
        while waiting and not self.is_opaque:
            value = waiting.pop()
            if type(value) in _CONSTANT_TYPES or id(value) in seen:
                continue
            seen.add(id(value))
            if type(value) is types.FunctionType:
                if not is_importable(value):
                    names = globals_.setdefault(id(value.__globals__), {})
                    waiting += self._parts_of_function(value, names)
            else:
                waiting += self._parts(value)
            self.is_opaque = self.is_opaque or len(self._kept) + len(self._seen) > PARTS_MAX

    def _parts_of_function(
        self, function: types.FunctionType, names: dict[str, None]
    ) -> Iterable[Any]:
        code = read_code(function.__code__)
        if code.is_opaque:
            self.is_opaque = True
            return ()
        if code.rebinds:
            self._rebinds, self.is_constant = True, False
        new = tuple([name for name in code.names if name not in names])
        parts: list[Any] = []
        if new:  # functions of one module share their globals
            names.update(dict.fromkeys(new))
            parts += _globals_of(new, function)
        inner = _cells_and_attributes_of(function)
        ids: Callable[[Any], Any] = _ids_of_function if inner else _ids_of_plain
        if new:
            ids = functools.partial(_ids_with_globals, ids, new)
        parts += inner
        self._watch(self._bound, function, ids, parts)
        parts += function.__defaults__ or ()
        if function.__kwdefaults__:
            parts.append(function.__kwdefaults__)
        return parts

    def _watch(
        self, watched: list[Any], owner: Any, ids: Callable[[Any], Any], held: Iterable[Any]
    ) -> None:
        """Watch the objects that `owner` refers to: `ids` returns their identities.

        The objects in `held` are kept alive or watched, so that no other object can get the same
        identity.
        """
        for value in held:
            if type(value) not in _CONSTANT_TYPES and _is_referable(value):
                self._kept.append(weakref.ref(value, self._dead.append))
            else:
                self._kept.append(value)
        reference = weakref.ref(owner) if _is_referable(owner) else lambda: owner
        watched.append((reference, ids, ids(owner)))

    def _parts(self, value: Any) -> Iterable[Any]:
        """Return the parts of a value that may change; watch the value if it can change itself."""
        kind = type(value)
        if kind in _CONSTANT_TYPES:
            return ()
        if issubclass(kind, type):
            return self._parts_of_class(value)
        if kind is tuple or kind is frozenset:
            found: Iterable[Any] = value
            return found
        if kind in _CONTAINERS:
            return self._parts_of_container(value)
        if issubclass(kind, Task):
            return () if is_importable(value) else (value.function,)
        if kind is types.ModuleType:
            name: str = value.__name__
            self.is_opaque = sys.modules.get(name) is not value or not is_importable_module(name)
            return ()
        if kind is types.MethodType:
            return (value.__func__, value.__self__)
        if kind is types.BuiltinFunctionType:
            return (value.__self__,)
        if kind is staticmethod or kind is classmethod:
            return (value.__func__,)
        if kind is property:
            return (value.fget, value.fset, value.fdel)
        if kind is functools.partial and not value.__dict__:
            return (value.func, value.args, *([value.keywords] if value.keywords else ()))
        if kind is functools._lru_cache_wrapper:
            return () if is_importable(value) else (value.__wrapped__,)
        if kind is functools.cached_property:
            return (value.func,)
        return self._parts_of_instance(value, kind)

    def _parts_of_container(self, value: Any) -> Iterable[Any]:
        self.is_constant = False
        parts = _parts_in(value)
        if any(map(_is_referable, (value, *parts))):
            self._watch(self._contents, value, _ids_in_container, parts)
        else:
            for view in (value.keys(), value.values()) if type(value) is dict else (value,):
                self._views += (view, _END)
                self._seen += (*view, *_END)
        return parts

    def _parts_of_class(self, kind: Any) -> Iterable[Any]:
        if not kind.__flags__ & _HEAP_TYPE or is_importable(kind):
            return ()
        self.is_constant = False  # a class lives as long as its process
        inner = _attributes_of(kind)
        self._watch(self._contents, kind, _ids_of_class, inner)
        return (*kind.__bases__, *(() if issubclass(kind, enum.Enum) else inner))

    def _parts_of_instance(self, value: Any, kind: Any) -> Iterable[Any]:
        is_of_class = kind.__flags__ & _HEAP_TYPE
        if kind.__module__ in _CONSTANT_MODULES or not (is_of_class or not is_importable(value)):
            return ()
        if issubclass(kind, enum.Enum):
            return (kind,)
        if kind.__module__.partition(".")[0] == "numpy":
            return self._parts_of_numpy(value, kind)
        if not _has_only_attributes(kind):
            self.is_opaque = True
            return ()
        self.is_constant = False
        inner = tuple(vars(value).values())
        self._watch(self._contents, value, _ids_of_attributes, inner)
        return (kind, *inner)

    def _parts_of_numpy(self, value: Any, kind: Any) -> Iterable[Any]:
        numpy = sys.modules["numpy"]
        if isinstance(value, numpy.dtype | numpy.generic) and kind is not numpy.void:
            return ()
        if kind is numpy.ufunc:
            return ()
        if kind is not numpy.ndarray or value.dtype.hasobject or not value.flags.forc:
            self.is_opaque = True
            return ()
        self.is_constant = False
        self._watch(self._contents, value, _state_of_array, ())
        return ()

    @property
    def is_free(self) -> bool:
        """Whether the function captures no state that could change."""
        return not (self._bound or self._contents or self._views or self.is_opaque)

    def is_current(self) -> bool:
        """Return whether the state is as it was."""
        if self._dead or self.is_opaque:
            return False
        return _are_as_before(self._bound) and self._is_same_inside()

    def is_unchanged(self) -> bool:
        """Return whether the state is as it was. Only the function itself may have changed it."""
        if self._rebinds:
            return self.is_current()
        return not self.is_opaque and self._is_same_inside()

    def _is_same_inside(self) -> bool:
        if self._views:
            try:
                if not all(map(operator.is_, chain.from_iterable(self._views), self._seen)):
                    return False
            except RuntimeError:  # another thread is changing it
                return False
        return not self._contents or _are_as_before(self._contents)


def _are_as_before(watched: Iterable[tuple[Callable[[], Any], Callable[[Any], Any], Any]]) -> bool:
    try:
        for reference, ids, before in watched:
            owner = reference()
            if owner is None or ids(owner) != before:
                return False
    except RuntimeError:  # another thread is changing it
        return False
    return True


def _globals_of(names: tuple[str, ...], function: Any) -> tuple[Any, ...]:
    return tuple(map(function.__globals__.get, names, repeat(_MISSING)))


def _ids_with_globals(
    ids: Callable[[Any], Any], names: tuple[str, ...], function: Any
) -> tuple[Any, ...]:
    return ids(function), *map(id, map(function.__globals__.get, names, repeat(_MISSING)))


def _cells_and_attributes_of(function: Any) -> list[Any]:
    """Return the contents of a function's closure cells and attributes."""
    cells = []
    for cell in function.__closure__ or ():
        try:
            cells.append(cell.cell_contents)
        except ValueError:
            cells.append(_MISSING)
    return [*cells, *function.__dict__.values()]


def _ids_of_function(function: Any) -> Any:
    """Return the identities of the parts of a function."""
    cells, attributes = function.__closure__, function.__dict__
    return (
        tuple(map(id, _OF_PLAIN(function))),
        cells and _ids_in_cells(cells),
        attributes and _ids_of_dict(attributes),
    )


_OF_PLAIN: Final = operator.attrgetter("__code__", "__defaults__", "__kwdefaults__", "__closure__")
_CONTENT: Final = operator.attrgetter("cell_contents")


def _ids_of_plain(function: Any) -> Any:
    """Return these identities for a function without closure cells and attributes; faster."""
    return tuple(map(id, _OF_PLAIN(function))), len(function.__dict__)


def _ids_in_cells(cells: Sequence[types.CellType]) -> tuple[int, ...]:
    try:
        return tuple(map(id, map(_CONTENT, cells)))
    except ValueError:  # one is empty
        return tuple([_id_in_cell(cell) for cell in cells])


def _id_in_cell(cell: types.CellType) -> int:
    try:
        return id(cell.cell_contents)
    except ValueError:
        return id(_MISSING)


def _ids_of_dict(value: dict[Any, Any]) -> Any:
    return tuple(map(id, chain(value, value.values())))


def _parts_in(container: Any) -> Sequence[Any]:
    return [*container, *(container.values() if type(container) is dict else ())]


def _ids_in_container(container: Any) -> Any:
    return tuple(map(id, _parts_in(container)))


def _is_referable(value: Any) -> bool:
    """Return whether a value supports weak references."""
    return type(value).__weakrefoffset__ != 0


def _ids_of_attributes(value: Any) -> Any:
    attributes = vars(value)
    return tuple(attributes), tuple(map(id, attributes.values()))


def _attributes_of(kind: Any) -> Sequence[Any]:
    return [value for name, value in vars(kind).items() if name not in _SKIPPED_IN_CLASSES]


def _ids_of_class(kind: Any) -> Any:
    return tuple(map(id, _attributes_of(kind)))


def _state_of_array(array: Any) -> Any:
    content = memoryview(array.ravel(order="K").view("u1")).toreadonly()
    return array.shape, array.strides, array.dtype.str, array.flags.writeable, hash(content)


_END: Final = (object(),)
_CONTAINERS: Final = frozenset((dict, list, set, bytearray))


def _has_only_attributes(kind: Any) -> bool:
    """Return whether an instance's state is its `__dict__`, and pickle reads it from there."""
    return (
        bool(kind.__flags__ & _HEAP_TYPE)
        and kind.__dictoffset__ != 0
        and kind.__basicsize__ <= object.__basicsize__ + 2 * _POINTER_BYTES
        and kind.__reduce_ex__ is object.__reduce_ex__
        and kind.__reduce__ is object.__reduce__
        and kind.__getstate__ is object.__getstate__
        and not hasattr(kind, "__getnewargs_ex__")
        and not hasattr(kind, "__getnewargs__")
        and kind not in copyreg.dispatch_table
    )
