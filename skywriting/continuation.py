"""Writes a stopped script, or a function call, as JSON, and reads it, so that a task can resume it.

    {"skywriting": 1, "units": [origin, …], "heap": [thing, …],
     "stack": [[unit, code, frame, called at, [[point, value, …], …]], …]}    or "value", or "call"

Numbers, strings, booleans and none are plain JSON; references are `__ref__` objects. A value that
can be shared or changed is in the heap once, and `{"@": place}` refers to it. In the heap, a list
is a list, a dictionary is `{"d": [key, value, …]}`, a function is
`{"f": [unit, code], "c": {variable: value}}`, a frame is `{"n": {variable: value}}`, and a starred
reference that was not read yet is `{"*": reference}`. A long integer is `{"i": hexadecimal}`, a
list of equidistant integers is `{"r": [from, to, step]}`. The JSON contains the values that the
script has read, so the task that resumes it need not read them again. It contains no history of
the script except its variables.

The reader checks all of this: it raises ContinuationError for a damaged continuation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ciel.core.refs import Reference
from ciel.skywriting.builtins.prelude import names, prelude_unit
from ciel.skywriting.errors import ContinuationError
from ciel.skywriting.evaluation.code import Code, Frame, Unit
from ciel.skywriting.evaluation.operators import require_length
from ciel.skywriting.evaluation.running import Stopped
from ciel.skywriting.evaluation.values import (
    RUN,
    UNREAD,
    Activation,
    Blocked,
    Builtin,
    Closure,
    Lazy,
    SpawnedCall,
    is_reference,
)
from ciel.skywriting.standard import PRELUDE

VERSION = 1
INTEGER_PLAIN_MAX_BITS = 10_000
"""Longer integers are written in hexadecimal: this takes linear time, decimal digits do not."""

RANGE_MIN_ITEMS = 16
LoadUnit = Callable[[Any], Unit]
"""Returns the unit with an origin; may raise any error."""


class Written(NamedTuple):
    """A continuation. `value` is JSON with references in it. The task that resumes it needs all
    objects of `awaited`, and one of `any_of` if there are any.
    """

    value: dict[str, Any]
    awaited: list[Reference]
    any_of: list[Reference]


def encode(stopped: Stopped) -> Written:
    """Write a stopped script. `awaited` contains all starred references that the script can still
    reach, so that the next task waits for all of them at once. If the script needs only one of
    several objects, `any_of` contains these.
    """
    writer = _Writer()
    value = writer.begin()
    if isinstance(stopped.value, SpawnedCall):
        value["call"] = writer.call(stopped.value)
    elif not stopped.activations:
        value["value"] = writer.place(stopped.value)
    else:
        value["stack"] = [writer.activation(each) for each in stopped.activations]
    writer.finish()
    unread = list(writer.unread.values())
    if stopped.is_any:
        value["any"] = [ref.id for ref in stopped.refs]
        return Written(value, writer.texts(), list(stopped.refs))
    return Written(value, _once([*writer.texts(), *stopped.refs, *unread]), [])


def encode_call(spawned: SpawnedCall) -> Written:
    """Write the call of a function; `awaited` are the texts that it needs."""
    writer = _Writer()
    value = writer.begin()
    value["call"] = writer.call(spawned)
    writer.finish()
    return Written(value, writer.texts(), [])


def encode_frame(frame: Frame) -> Written:
    """Write variables, for the next entry of a prompt."""
    writer = _Writer()
    value = writer.begin()
    value["frame"] = writer.place_frame(frame)
    writer.finish()
    return Written(value, writer.texts(), [])


def frame_names(value: Any) -> frozenset[str]:
    """Return the names of the variables that `encode_frame` has written."""
    return frozenset(value["heap"][value["frame"]]["n"])


def _once(refs: list[Reference]) -> list[Reference]:
    return list({ref.id: ref for ref in refs}.values())


class _Writer:
    def __init__(self) -> None:
        self.units: list[Unit] = []
        self.heap: list[Any] = []
        self.unread: dict[str, Reference] = {}
        self._places: dict[int, int] = {}
        self._pending: list[tuple[int, Any, bool]] = []
        self._kept: list[Any] = []  # keeps objects alive, since `_places` uses their identities

    def begin(self) -> dict[str, Any]:
        origins: list[Any] = []
        self.origins = origins
        return {"skywriting": VERSION, "units": origins, "heap": self.heap}

    def texts(self) -> list[Reference]:
        """Return the references to texts of scripts."""
        return [
            u.origin["ref"] for u in self.units if isinstance(u.origin, dict) and "ref" in u.origin
        ]

    def unit(self, unit: Unit) -> int:
        for number, known in enumerate(self.units):
            if known is unit:
                return number
        self.units.append(unit)
        self.origins.append(unit.origin)
        return len(self.units) - 1

    def activation(self, each: Activation) -> list[Any]:
        entries = [[point, *map(self.place, values)] for point, values in each.entries]
        where = [self.unit(each.code.unit), each.code.number]
        return [*where, self.place_frame(each.frame), each.called_at, entries]

    def call(self, spawned: SpawnedCall) -> list[Any]:
        return [self.place(spawned.function), *map(self.place, spawned.arguments)]

    def place(self, value: Any) -> Any:
        """Return the JSON of a value: itself, or its place in the heap."""
        kind = type(value)
        if kind is int and value.bit_length() > INTEGER_PLAIN_MAX_BITS:
            return {"i": format(value, "x")}
        if value is None or kind in (int, str, bool, float):
            return value
        if kind is Lazy:
            if value.value is not UNREAD:
                return self.place(value.value)
            self.unread[value.ref.id] = value.ref
        elif kind is Builtin:
            return {"b": value.name}
        elif is_reference(value):
            return value
        return {"@": self._place(value, False)}

    def place_frame(self, frame: Frame) -> int:
        return self._place(frame, True)

    def _place(self, thing: Any, is_frame: bool) -> int:
        place = self._places.get(id(thing))
        if place is None:
            place = self._places[id(thing)] = len(self.heap)
            self.heap.append(None)
            self._pending.append((place, thing, is_frame))
            self._kept.append(thing)
        return place

    def finish(self) -> None:
        """Write the heap, without recursion."""
        while self._pending:
            place, thing, is_frame = self._pending.pop()
            self.heap[place] = self._written(thing, is_frame)

    def _written(self, thing: Any, is_frame: bool) -> Any:
        if is_frame:
            return {"n": self._variables(thing)}
        if type(thing) is list:
            counted = _as_range(thing)
            return {"r": counted} if counted else [self.place(item) for item in thing]
        if type(thing) is dict:
            return {"d": [self.place(side) for pair in thing.items() for side in pair]}
        if type(thing) is Lazy:
            return {"*": thing.ref}
        assert type(thing) is Closure, thing
        where = [self.unit(thing.code.unit), thing.code.number]
        return {"f": where, "c": self._variables(thing.captured)}

    def _variables(self, frame: Frame) -> dict[str, Any]:
        return {name: self.place(value) for name, value in frame.items() if name != RUN}


def _as_range(items: list[Any]) -> list[int] | None:
    """Return the bounds of a list of equidistant integers, as `range` makes them; else None."""
    if len(items) < RANGE_MIN_ITEMS or type(items[0]) is not int or type(items[1]) is not int:
        return None
    first, step = items[0], items[1] - items[0]
    bounds = [first, first + step * len(items), step]
    if step == 0 or type(items[-1]) is not int or items[-1] != bounds[1] - step:
        return None
    is_plain = set(map(type, items)) == {int} and items == list(range(*bounds))
    return bounds if is_plain else None


# --- reading --------------------------------------------------------------------------------------


class Read(NamedTuple):
    """The content of a continuation: one of these."""

    stopped: Stopped | None = None
    call: SpawnedCall | None = None
    frame: Frame | None = None


def decode(value: Any, load_unit: LoadUnit) -> Read:
    """Read a continuation. Raises ContinuationError, and the errors of `load_unit`."""
    if not isinstance(value, dict) or value.get("skywriting") != VERSION:
        found = value.get("skywriting") if isinstance(value, dict) else None
        raise ContinuationError(
            f"this is not a continuation of version {VERSION}"
            + (
                ""
                if found is None
                else f", but of version {found!r:.20}; do all workers run the same release?"
            )
        )
    try:
        return _Reader(value, load_unit).read()
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        raise ContinuationError(f"the continuation is damaged ({error!r:.200})") from None


class _Reader:
    def __init__(self, value: dict[str, Any], load_unit: LoadUnit) -> None:
        self._value = value
        self._units = [
            prelude_unit() if origin == {"std": PRELUDE} else load_unit(origin)
            for origin in _list(value["units"])
        ]
        self._written = _list(value["heap"])
        self._things = [self._shell(each) for each in self._written]
        for thing, written in zip(self._things, self._written, strict=True):
            self._fill(thing, written)

    def read(self) -> Read:
        value = self._value
        if "frame" in value:
            return Read(frame=self._frame(value["frame"]))
        if "call" in value:
            function, *arguments = [self._item(each) for each in _list(value["call"])]
            _require(isinstance(function, Closure | Builtin), "the called value is not a function")
            return Read(call=SpawnedCall(function, arguments))
        blocked = Blocked([])
        if "value" in value:
            return Read(_foreign(Stopped([], blocked, self._item(value["value"]))))
        stack = [self._activation(each) for each in _list(value["stack"])]
        _require(bool(stack), "its stack is empty")
        _require(all(each.entries for each in stack), "a call has no state")
        return Read(_foreign(Stopped(stack, blocked)))

    def _shell(self, written: Any) -> Any:
        """Return the object of a place without its content, which may refer to other places."""
        if isinstance(written, list):
            return []
        if "r" in written:
            counted = range(*_list(written["r"]))
            require_length(len(counted))
            return list(counted)
        if "n" in written or "d" in written:
            return {}
        if "*" in written:
            _require(is_reference(written["*"]), "the value to be read is not a reference")
            return Lazy(written["*"])
        return Closure(self._code(written["f"]), {})

    def _fill(self, thing: Any, written: Any) -> None:
        if isinstance(thing, list) and isinstance(written, list):
            thing += map(self._item, written)
        elif isinstance(thing, Closure):
            thing.captured = self._variables(written["c"])
        elif isinstance(thing, dict) and "n" in written:
            thing.update(self._variables(written["n"]))
        elif isinstance(thing, dict):
            sides = [self._item(each) for each in _list(written["d"])]
            thing.update(zip(sides[::2], sides[1::2], strict=True))

    def _item(self, written: Any) -> Any:
        if not isinstance(written, dict):
            _require(not isinstance(written, list), "a list is outside of the heap")
            return written
        if "i" in written:
            return int(written["i"], 16)
        if "b" in written:
            found = names(1).get(written["b"]) or names(2)[written["b"]]
            _require(isinstance(found, Builtin), "a name is not that of a built-in function")
            return found
        place = _index(written["@"], self._things)
        _require("n" not in self._written[place], "a frame is where a value must be")
        return self._things[place]

    def _variables(self, written: Any) -> Frame:
        names = _dict(written)
        is_valid = RUN not in names and all(type(name) is str for name in names)
        _require(is_valid, "a variable has no valid name")
        return {name: self._item(value) for name, value in names.items()}

    def _frame(self, place: Any) -> Frame:
        frame = self._things[_index(place, self._things)]
        _require("n" in _dict(self._written[place]), "a frame is missing")
        assert isinstance(frame, dict)
        return frame

    def _code(self, where: Any) -> Code:
        unit, number = _list(where)
        codes = self._units[_index(unit, self._units)].codes
        return codes[_index(number, codes)]

    def _activation(self, written: Any) -> Activation:
        unit, number, frame, called_at, entries = _list(written)
        code = self._code([unit, number])
        code.compile()
        _require(type(called_at) is int and called_at >= 0, "the place of a call is missing")
        return Activation(
            code, self._frame(frame), called_at, [self._entry(code, e) for e in _list(entries)]
        )

    def _entry(self, code: Code, written: Any) -> tuple[int, tuple[Any, ...]]:
        point, *rest = _list(written)
        values = tuple([self._item(each) for each in rest])
        check = code.checks[_index(point, code.checks)]
        _require(check(values), "the saved values of a construct do not fit it")
        return point, values


def _foreign(stopped: Stopped) -> Stopped:
    stopped.is_foreign = True
    return stopped


def _list(value: Any) -> list[Any]:
    _require(isinstance(value, list), "a list is missing")
    found: list[Any] = value
    return found


def _dict(value: Any) -> dict[str, Any]:
    _require(isinstance(value, dict), "an object is missing")
    found: dict[str, Any] = value
    return found


def _index(value: Any, of: list[Any]) -> int:
    _require(type(value) is int and 0 <= value < len(of), "a number refers to no entry")
    return int(value)


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise ContinuationError(f"the continuation is damaged: {what}")
