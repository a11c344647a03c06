"""Loads the functions of calls from their packed form, and keeps them from task to task.

Each call gets a function with the state that was sent, whatever earlier calls have changed
(docs/adr/0055).
"""

from __future__ import annotations

import types
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from ciel.python.calls import Function, function_of
from ciel.python.captured import Captured
from ciel.python.packing import PLAIN_TYPES, PackedTable, unpack
from ciel.python.tasks import Task, name_of

KEPT_MAX = 1000
KEPT_MAX_BYTES = 32 << 20
"""How many functions stay loaded from task to task, and the size of their packed forms."""
SNAPSHOTS_MAX = 64
"""How many snapshots a task keeps, to reuse one while the function that it spawns is unchanged."""

_FROZEN_TYPES = PLAIN_TYPES | {
    types.FunctionType, types.BuiltinFunctionType, types.ModuleType, type, Task,
}  # fmt: skip
_UNRESOLVED_TYPES = frozenset((types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType))


class Copy(NamedTuple):
    """An unpacked function, with the state that was sent.

    `captured` detects changes of that state; None: changes cannot be detected.
    """

    function: Any
    captured: Captured | None

    def is_as_sent(self) -> bool:
        """Whether no call has changed its state."""
        return self.captured is not None and self.captured.is_unchanged()


class Loaded:
    """A function that was loaded from its packed form, `sent`.

    `is_constant`: no call changes its state. `serves_all`: one copy serves all calls, since the
    function is constant, or has a true attribute `keeps_state`.
    """

    __slots__ = ("__weakref__", "_idle", "_is_opaque", "is_constant", "name", "sent", "serves_all")

    def __init__(self, sent: Function) -> None:
        self.sent = sent
        self._is_opaque = False
        self._idle: Copy | None = self._unpacked()
        self.name = name_of(self._idle.function)
        captured = self._idle.captured
        self.is_constant = captured is not None and captured.is_constant
        self.serves_all = self.is_constant or getattr(self._idle.function, "keeps_state", False)
        self._is_opaque = captured is None

    @property
    def size_bytes(self) -> int:
        """Return an estimate of the memory that the function uses."""
        return 2 * len(self.sent.packed or b"")

    def take(self) -> Copy:
        """Return an unchanged copy, which no other call uses meanwhile.

        Raises any error of unpickling.
        """
        idle = self._idle
        if self.serves_all and idle is not None:
            return idle
        self._idle = None
        if idle is not None and (idle.captured is None or idle.is_as_sent()):
            return idle
        return self._unpacked()

    def give_back(self, copy: Copy) -> None:
        """Return a copy for later calls. The result of the call must not refer to its state."""
        if copy.captured is not None or self.serves_all:
            self._idle = copy

    def _unpacked(self) -> Copy:
        assert self.sent.packed is not None
        value = unpack(self.sent.packed)
        function = value.function if type(value) is Task else value
        captured = None if self._is_opaque else Captured(value)
        return Copy(function, None if captured is None or captured.is_opaque else captured)


class Snapshot:
    """A function that a task has spawned, with its state at that time."""

    def __init__(self, function: Any, loaded: Loaded) -> None:
        inner = function.function if type(function) is Task else function
        self.__qualname__ = name_of(function)
        self.__code__ = getattr(inner, "__code__", None)  # for its flags
        self.loaded = loaded


def is_independent(value: Any, packed: Iterable[Any]) -> bool:
    """Return whether a returned value, once packed, shares no memory with its function's state."""
    return type(value) not in _UNRESOLVED_TYPES and not any(
        isinstance(item, PackedTable) or getattr(item, "buffers", ()) for item in packed
    )


class Functions:
    """All functions that this program has loaded."""

    def __init__(self) -> None:
        self._kept: OrderedDict[bytes, Loaded] = OrderedDict()
        self._size_bytes = 0
        self._living: weakref.WeakValueDictionary[bytes, Loaded] = weakref.WeakValueDictionary()
        self._packed: dict[int, tuple[Any, Function]] = {}
        self._frozen: dict[int, Any] = {}
        self._snapshots: OrderedDict[int, tuple[Any, Captured, Snapshot]] = OrderedDict()
        self.are_constant = True
        """Whether all functions that this task has run are constant."""

    def clear(self) -> None:
        """Forget them all."""
        self._kept.clear()
        self._size_bytes = 0
        self._living.clear()
        self._packed.clear()
        self.end_task()

    def end_task(self) -> None:
        """Forget the state of one task, and the least recently used functions beyond the limits."""
        self._snapshots.clear()
        self._frozen.clear()
        self.are_constant = True
        while len(self._kept) > KEPT_MAX or self._size_bytes > KEPT_MAX_BYTES:
            _, oldest = self._kept.popitem(last=False)
            self._size_bytes -= oldest.size_bytes
            self._packed.clear()  # it may contain the same function

    # --- functions of calls -----------------------------------------------------------------------

    def find(self, digest: bytes) -> Loaded | None:
        """Return a function by the digest of its packed form, if it is loaded."""
        found = self._kept.get(digest)
        if found is None:
            return self._living.get(digest)
        self._kept.move_to_end(digest)
        return found

    def load(self, sent: Function) -> Loaded:
        """Load a function; raises any error of unpickling."""
        loaded = self._living[sent.digest] = Loaded(sent)
        self._kept[sent.digest] = loaded
        self._size_bytes += loaded.size_bytes
        return loaded

    # --- functions that a task spawns -------------------------------------------------------------

    def packed(self, function: Any) -> Function:
        """Return the packed form of a function; raises any error of pickling."""
        if type(function) is Snapshot:
            return function.loaded.sent
        known = self._packed.get(id(function))
        if known is not None:
            return known[1]
        packed = _packed(function)
        if getattr(function, "__closure__", None) is None:  # closures are new objects each time
            self._packed[id(function)] = (function, packed)
        return packed

    def snapshot(self, function: Any) -> Any:
        """Return a function that behaves as the given one would if it were called now.

        Later changes of the given function's state do not affect it, and its calls do not change
        that state. Raises any error of pickling.
        """
        if self.are_constant:
            found = self._frozen.get(id(function)) or self._as_frozen(function)
            if found is not None:
                return found
        known = self._snapshots.get(id(function))
        if known is not None and known[0] is function and known[1].is_current():
            return known[2]
        captured = Captured(function)
        if captured.is_free:
            return function
        sent = _packed(function)
        loaded = self.find(sent.digest)
        if loaded is None:
            loaded = self._living[sent.digest] = Loaded(sent)
        snapshot = Snapshot(function, loaded)
        self._snapshots[id(function)] = (function, captured, snapshot)
        if len(self._snapshots) > SNAPSHOTS_MAX:
            self._snapshots.popitem(last=False)
        self.are_constant = self.are_constant and loaded.is_constant
        return snapshot

    def _as_frozen(self, function: Any) -> Any:
        """Return a constant function that behaves the same; None if there is none."""
        found = _frozen_function(function)
        if found is None:
            return None
        if found is function:
            if not Captured(function).is_constant:
                return None
            self._frozen[id(function)] = function
            return function
        inner: Any = found
        code = inner.__code__
        is_plain = all(type(cell.cell_contents) in PLAIN_TYPES for cell in inner.__closure__)
        if not is_plain or self._frozen.get(id(code)) is not code:
            if not Captured(found).is_constant:
                return None
            if is_plain:
                self._frozen[id(code)] = code
        return found


def _frozen_function(function: Callable[..., Any]) -> Callable[..., Any] | None:
    """Return a function whose closure later assignments do not affect.

    None: only the packed form of the function is unaffected.
    """
    inner = function.function if type(function) is Task else function
    if type(inner) is not types.FunctionType:
        is_free = type(inner) in _FROZEN_TYPES and getattr(inner, "__self__", None) is None
        is_builtin = isinstance(getattr(inner, "__self__", None), types.ModuleType)
        return function if is_free or is_builtin else None
    if inner.__closure__ is None:
        return function
    cells = []
    for cell in inner.__closure__:
        try:
            value = cell.cell_contents
        except ValueError:  # it is empty
            return None
        if type(value) not in _FROZEN_TYPES:
            return None
        cells.append(types.CellType(value))
    found = types.FunctionType(
        inner.__code__, inner.__globals__, inner.__name__, inner.__defaults__, tuple(cells)
    )
    found.__kwdefaults__, found.__qualname__ = inner.__kwdefaults__, inner.__qualname__
    found.__module__ = inner.__module__
    return found


def _packed(function: Any) -> Function:
    from ciel.python.pickling import dumps

    return function_of(dumps(function))
