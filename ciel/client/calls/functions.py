"""Packs the functions that a client calls.

A function is packed once for each set of options, and again when an object that it refers to
changes (see `python.captured`). A bound method is packed for each call.
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

from ciel.core.refs import Reference
from ciel.python.calls import Function, function_of
from ciel.python.captured import Captured
from ciel.python.failures import packing_error
from ciel.python.options import Options
from ciel.python.packing import UnpackedError, pack
from ciel.python.pickling import dumps
from ciel.python.tasks import Task, name_of

INLINE_MAX_BYTES: Final = 4 << 10
"""A function up to this size is sent with its calls; a larger one is stored as an object."""
KNOWN_MAX: Final = 1000
"""How many functions `Functions` remembers.

It refers strongly to captured objects that cannot be weakly referenced, such as lists. If such a
list refers to the function, the function is not garbage-collected while it is remembered.
"""


class Tally:
    """How many calls of one name were submitted, are done, and have failed."""

    __slots__ = ("done", "failed", "submitted")

    def __init__(self) -> None:
        self.submitted = self.done = self.failed = 0


class PackedFunction:
    """A packed function, and the statistics of its calls.

    `ref`: the object that holds a large function. The client releases it when no call refers to the
    function. `took_s`: the moving average of the time of a call; None before the first result.
    `trial_count`: how many of its calls run while `took_s` is None.
    """

    __slots__ = (
        "__weakref__", "_dropped", "function", "name", "options", "ref", "streams", "tally",
        "took_s", "trial_count",
    )  # fmt: skip

    def __init__(
        self, function: Function, name: str, options: Options, streams: bool, tally: Tally
    ) -> None:
        self.function = function
        self.tally = tally
        self.name = name
        self.options = options
        self.streams = streams
        self.ref: Reference | None = None
        self._dropped: deque[Reference] | None = None
        self.took_s: float | None = None
        self.trial_count = 0

    def stored_as(self, ref: Reference, dropped: deque[Reference]) -> None:
        """Record the object that holds the function.

        When no call refers to the function any more, the destructor appends the object to
        `dropped`.
        """
        self.ref, self._dropped = ref, dropped

    def __del__(self) -> None:
        if self.ref is not None and self._dropped is not None:
            self._dropped.append(self.ref)  # a deque, since a destructor must not take a lock

    def note(self, seconds: float) -> None:
        """Add the time of a call to the average."""
        self.took_s = seconds if self.took_s is None else (3 * self.took_s + seconds) / 4


class Functions:
    """All functions that one client has called. Thread-safe."""

    def __init__(
        self, upload: Callable[[bytes, str], Reference], dropped: deque[Reference] | None = None
    ) -> None:
        self._upload = upload
        self._dropped: deque[Reference] = deque() if dropped is None else dropped
        self._lock = threading.Lock()
        self.tallies: dict[str, Tally] = {}
        """The calls of all functions, by name, in the order of their first call."""
        self._known: dict[tuple[int, Options], tuple[Any, PackedFunction, Captured]] = {}
        self._by_digest: weakref.WeakValueDictionary[tuple[bytes, str, Options], PackedFunction]
        self._by_digest = weakref.WeakValueDictionary()

    def find(self, function: Callable[..., Any], options: Options) -> PackedFunction:
        """Return the packed form of a function in its current state.

        Raises PackingError, which names the part of the function that cannot be pickled.
        """
        key = (id(function), options)
        known = self._known.get(key)
        if known is not None and known[0]() is function and known[2].is_current():
            return known[1]
        _register_module(function)
        if inspect.ismethod(function):  # each access creates a new method object
            return self._pack(function, options)
        captured = Captured(function)  # before packing: another thread may change a variable
        packed = self._pack(function, options)
        try:
            alive: Any = weakref.ref(function, lambda _: self._known.pop(key, None))
        except TypeError:  # some callables, such as str.upper, have no weak references
            alive = lambda: function  # noqa: E731
        with self._lock:
            self._known[key] = (alive, packed, captured)
            if len(self._known) > KNOWN_MAX:
                self._known.pop(next(iter(self._known)), None)
        return packed

    def known(self) -> list[PackedFunction]:
        """List the functions that this object remembers."""
        with self._lock:
            return [packed for _, packed, _ in self._known.values()]

    def _pack(self, function: Callable[..., Any], options: Options) -> PackedFunction:
        name = name_of(function, options)
        try:
            content = dumps(function)
        except Exception:  # a user's __reduce__ may raise anything
            try:
                packed = pack(
                    function
                )  # slower, but the error names the part that cannot be pickled
                content = packed.head
            except UnpackedError as error:
                raise packing_error(f"the function {name}", error) from error
        sent = function_of(content)
        with self._lock:
            same = self._by_digest.get((sent.digest, name, options))
        if same is not None:
            return same
        inner = function.function if isinstance(function, Task) else function
        tally = self.tallies.setdefault(name, Tally())
        streams = inspect.isgeneratorfunction(inner)
        packed_function = PackedFunction(sent, name, options, streams, tally)
        if len(content) > INLINE_MAX_BYTES:
            ref = self._upload(content, f"the function {name}")
            packed_function.stored_as(ref, self._dropped)
            packed_function.function = Function(sent.digest, None)
        with self._lock:
            self._by_digest[sent.digest, name, options] = packed_function
        return packed_function


def _register_module(function: Callable[..., Any]) -> None:
    """Send the code of a function's module with the function if no finder can import the module."""
    name = getattr(function, "__module__", None) or ""
    module = sys.modules.get(name)
    if module is None or name == "__main__" or name in _registered:
        return
    _registered.add(name)
    top = name.partition(".")[0]
    finders = [finder for finder in sys.meta_path if hasattr(finder, "find_spec")]
    if top not in sys.builtin_module_names and not any(f.find_spec(top, None) for f in finders):
        cloudpickle.register_pickle_by_value(module)


_registered: set[str] = set()
"""Names of modules for which `_register_module` has decided."""
