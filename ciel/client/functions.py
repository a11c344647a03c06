"""Packs the functions that a client calls: once, and again when something that they take along has
changed since (see `python.captured`).
"""

from __future__ import annotations

import inspect
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import cloudpickle

from ciel.client.futures import PackedFunction, Tally
from ciel.core.refs import Reference
from ciel.python.calls import Function, function_of
from ciel.python.captured import Captured
from ciel.python.failures import packing_error
from ciel.python.options import Options
from ciel.python.packing import UnpackedError, pack
from ciel.python.pickling import dumps
from ciel.python.tasks import Task, name_of

INLINE_MAX_BYTES: Final = 4 << 10
"""A function up to this size travels with its calls; a larger one becomes an object."""


KNOWN_MAX = 1000
"""So many are known at a time: a function that a list refers to, to which it refers itself, lives
as long as it is known.
"""


class Functions:
    """All functions that one client has called. Usable from any thread."""

    def __init__(
        self, upload: Callable[[bytes, str], Reference], dropped: deque[Reference] | None = None
    ) -> None:
        self._upload = upload
        self._dropped: deque[Reference] = deque() if dropped is None else dropped
        self._lock = threading.Lock()
        self.tallies: dict[str, Tally] = {}
        """The calls of all functions, by name, in the order of their first."""
        self._known: dict[tuple[int, Options], tuple[Any, PackedFunction, Captured]] = {}
        self._by_digest: weakref.WeakValueDictionary[tuple[bytes, str, Options], PackedFunction]
        self._by_digest = weakref.WeakValueDictionary()

    def find(self, function: Callable[..., Any], options: Options) -> PackedFunction:
        """Return a function as it is now, packed; raises PackingError, which names the part of it
        that cannot be pickled.
        """
        key = (id(function), options)
        known = self._known.get(key)
        if known is not None and known[0]() is function and known[2].is_current():
            return known[1]
        _see_to_module(function)
        if inspect.ismethod(function):  # a new object each time
            return self._pack(function, options)
        captured = Captured(function)  # before it is packed: another thread may change something
        packed = self._pack(function, options)
        try:
            kept: Any = weakref.ref(function, lambda _: self._known.pop(key, None))
        except TypeError:  # a built-in function: it is kept as long as the client
            kept = lambda: function  # noqa: E731
        with self._lock:
            self._known[key] = (kept, packed, captured)
            if len(self._known) > KNOWN_MAX:
                self._known.pop(next(iter(self._known)), None)
        return packed

    def known(self) -> list[PackedFunction]:
        """List the functions that were called."""
        with self._lock:
            return [packed for _, packed, _ in self._known.values()]

    def _pack(self, function: Callable[..., Any], options: Options) -> PackedFunction:
        name = name_of(function, options)
        try:
            content = dumps(function)
        except Exception:  # of anybody's __reduce__
            try:
                packed = pack(function)  # which finds out what is at fault
                content = packed.head
            except UnpackedError as error:
                raise packing_error(f"the function {name}", error) from error
        travels = function_of(content)
        with self._lock:
            same = self._by_digest.get((travels.digest, name, options))
        if same is not None:
            return same
        inner = function.function if isinstance(function, Task) else function
        tally = self.tallies.setdefault(name, Tally())
        streams = inspect.isgeneratorfunction(inner)
        packed_function = PackedFunction(travels, name, options, streams, tally)
        if len(content) > INLINE_MAX_BYTES:
            ref = self._upload(content, f"the function {name}")
            packed_function.stored_as(ref, self._dropped)
            packed_function.function = Function(travels.digest, None)
        with self._lock:
            self._by_digest[travels.digest, name, options] = packed_function
        return packed_function


def _see_to_module(function: Callable[..., Any]) -> None:
    """Have a module travel with its functions that cannot be found by its name."""
    name = getattr(function, "__module__", None) or ""
    module = sys.modules.get(name)
    if module is None or name == "__main__" or name in _seen:
        return
    _seen.add(name)
    top = name.partition(".")[0]
    finders = [finder for finder in sys.meta_path if hasattr(finder, "find_spec")]
    if top not in sys.builtin_module_names and not any(f.find_spec(top, None) for f in finders):
        cloudpickle.register_pickle_by_value(module)


_seen: set[str] = set()
