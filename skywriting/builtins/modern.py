"""Functions and values that the original Skywriting lacked.

A script may bind their names, so that old scripts keep their meaning.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ciel.core.refs import Concrete, Failure, Reference, Sweetheart, Value
from ciel.skywriting.builtins.arguments import (
    ANY,
    DICTIONARY,
    INTEGER,
    LIST,
    NUMBER,
    REFERENCE,
    SEQUENCE,
    SIZED,
    TEXT,
    Table,
    define,
)
from ciel.skywriting.errors import ReferenceFailedError, ScriptError
from ciel.skywriting.evaluation import operators, showing
from ciel.skywriting.evaluation.values import (
    TEXT_MAX_CHARACTERS,
    Blocked,
    Builtin,
    Lazy,
    advice,
    brief,
    force,
    is_reference,
    read,
)
from ciel.skywriting.host import Host

MODERN: Table = {"null": None}
_THERE = (Value, Concrete, Sweetheart)

# --- strings --------------------------------------------------------------------------------------


@define(MODERN, "split", TEXT, TEXT, optional=1)
def _split(host: Host, text: str, separator: str | None = None) -> list[str]:
    if separator is None:
        return text.split()
    if not separator:
        raise ScriptError("split() needs a separator that is not empty; a string can be indexed")
    operators.require_length(text.count(separator) + 1)
    return text.split(separator)


@define(MODERN, "join", TEXT, LIST)
def _join(host: Host, separator: str, items: list[Any]) -> str:
    length = len(separator) * max(0, len(items) - 1)
    for number, item in enumerate(items):
        if type(item) is not str:
            more = advice(item) or "; str() converts it"
            raise ScriptError(f"join() needs strings, but item {number} is {brief(item)}{more}")
        length += len(item)
    _require_text_length(length)
    return separator.join(items)


@define(MODERN, "replace", TEXT, TEXT, TEXT)
def _replace(host: Host, text: str, old: str, new: str) -> str:
    if not old:
        raise ScriptError("replace() cannot replace an empty string")
    _require_text_length(len(text) + text.count(old) * (len(new) - len(old)))
    return text.replace(old, new)


def _require_text_length(count: int) -> None:
    if count > TEXT_MAX_CHARACTERS:
        raise ScriptError(
            f"a string may have at most {TEXT_MAX_CHARACTERS} characters, not {count}"
        )


@define(MODERN, "trim", TEXT)
def _trim(host: Host, text: str) -> str:
    return text.strip()


@define(MODERN, "lower", TEXT)
def _lower(host: Host, text: str) -> str:
    return text.lower()


@define(MODERN, "upper", TEXT)
def _upper(host: Host, text: str) -> str:
    return text.upper()


@define(MODERN, "startswith", TEXT, TEXT)
def _startswith(host: Host, text: str, start: str) -> bool:
    return text.startswith(start)


@define(MODERN, "endswith", TEXT, TEXT)
def _endswith(host: Host, text: str, end: str) -> bool:
    return text.endswith(end)


# --- lists, strings and dictionaries --------------------------------------------------------------


@define(MODERN, "find", SEQUENCE, ANY)
def _find(host: Host, where: list[Any] | str, what: Any) -> int:
    if isinstance(where, str):
        return where.find(_text_within("find", what))
    places = (i for i, item in enumerate(where) if operators.equal(item, what))
    return next(places, -1)


@define(MODERN, "contains", SIZED, ANY)
def _contains(host: Host, where: Any, what: Any) -> bool:
    if type(where) is str:
        return _text_within("contains", what) in where
    if type(where) is list:
        return any(operators.equal(item, what) for item in where)
    return not isinstance(what, list | dict) and what in where


def _text_within(name: str, what: Any) -> str:
    if type(what) is not str:
        raise ScriptError(f"{name}() looks for a string in a string, not for {brief(what)}")
    return what


@define(MODERN, "slice", SEQUENCE, INTEGER, INTEGER, optional=1)
def _slice(host: Host, whole: Any, start: int, stop: int | None = None) -> Any:
    return whole[start:stop]


@define(MODERN, "reversed", SEQUENCE)
def _reversed(host: Host, whole: Any) -> Any:
    return whole[::-1]


@define(MODERN, "keys", DICTIONARY)
def _keys(host: Host, dictionary: dict[Any, Any]) -> list[Any]:
    return list(dictionary)


@define(MODERN, "values", DICTIONARY)
def _values(host: Host, dictionary: dict[Any, Any]) -> list[Any]:
    return list(dictionary.values())


@define(MODERN, "zip", LIST, LIST)
def _zip(host: Host, left: list[Any], right: list[Any]) -> list[list[Any]]:
    return [[a, b] for a, b in zip(left, right, strict=False)]


@define(MODERN, "enumerate", LIST)
def _enumerate(host: Host, items: list[Any]) -> list[list[Any]]:
    return [[i, item] for i, item in enumerate(items)]


class _Rank:
    """A sort key with the order of the script's operator `<`."""

    __slots__ = ("item",)

    def __init__(self, item: Any) -> None:
        self.item = item

    def __lt__(self, other: _Rank) -> bool:
        return bool(operators.BINARY["<"](self.item, other.item))


@define(MODERN, "__sort__", LIST, LIST, shown="sort")
def _sort(host: Host, items: list[Any], keys: list[Any]) -> list[Any]:
    """Sort items by their keys, which have the same positions. `sort` in `prelude.sw` calls it."""
    ranks = keys if _is_plain(keys) else list(map(_Rank, keys))
    return [items[i] for i in sorted(range(len(items)), key=ranks.__getitem__)]


def _is_plain(items: list[Any]) -> bool:
    """Whether Python orders these items as the language does, so that they need no `_Rank`."""
    kinds = set(map(type, items))
    return kinds <= {str} or kinds <= {int, float, bool}


def _define_extreme(name: str, choose: Callable[..., Any]) -> None:
    def extreme(host: Host, arguments: list[Any]) -> Any:
        items = arguments
        if len(arguments) == 1:
            items = arguments[0]
            if type(items) is not list:
                raise ScriptError(f"{name}() needs a list or several arguments, "
                                  f"not {brief(items)}{advice(items)}")  # fmt: skip
        if not items:
            raise ScriptError(f"{name}() needs at least one item to choose from")
        return choose(items) if _is_plain(items) else choose(items, key=_Rank)

    MODERN[name] = Builtin(name, extreme)


_define_extreme("min", min)
# Python's max compares keys by `>`, for which Python swaps the sides of `<`.
_define_extreme("max", max)

# --- numbers --------------------------------------------------------------------------------------


@define(MODERN, "sum", LIST)
def _sum(host: Host, items: list[Any]) -> Any:
    total: Any = 0
    for number, item in enumerate(items):
        if not isinstance(item, int | float):
            more = "; join() joins strings" if type(item) is str else advice(item)
            raise ScriptError(f"sum() needs numbers, but item {number} is {brief(item)}{more}")
        total = operators.add(total, item)
    return total


@define(MODERN, "float", ANY)
def _float(host: Host, value: Any) -> float:
    if not isinstance(value, int | float | str):
        more = advice(value)
        raise ScriptError(f"float() needs a number or a string, not {brief(value)}{more}")
    try:
        found = float(value)
    except ValueError:
        raise ScriptError(f"float() finds no number in {brief(value)}") from None
    except OverflowError:
        found = math.inf
    if type(value) is str and "_" in value:  # Python would skip it
        raise ScriptError(f"float() needs digits without underscores, not {brief(value)}")
    if not math.isfinite(found):
        is_word = type(value) is str and not any(map(str.isdigit, value))  # "inf" or "nan"
        kind = "a finite number" if is_word else "a number that fits a float"
        raise ScriptError(f"float() needs {kind}, not {brief(value)}")
    return found


@define(MODERN, "abs", NUMBER)
def _abs(host: Host, number: float) -> float:
    return abs(number)


@define(MODERN, "floor", NUMBER)
def _floor(host: Host, number: float) -> int:
    return math.floor(number)


@define(MODERN, "round", NUMBER, INTEGER, optional=1)
def _round(host: Host, number: float, places: int | None = None) -> Any:
    """Round halves to even; without `places`, the result is an integer."""
    if places is None:
        return round(number)
    if abs(places) > 1000:  # Python would compute a power of ten of that size
        raise ScriptError(f"round() to {places} places is not possible: 1000 is the most")
    return _finite("round", round(number, places))


@define(MODERN, "sqrt", NUMBER)
def _sqrt(host: Host, number: float) -> float:
    if number < 0:
        raise ScriptError(f"sqrt() needs a number that is not negative, not {brief(number)}")
    try:
        return math.sqrt(number)
    except OverflowError:
        raise ScriptError(f"sqrt() needs a number that fits a float, not {brief(number)}") from None


def _finite(name: str, number: Any) -> Any:
    if type(number) is float and not math.isfinite(number):
        raise ScriptError(f"the result of {name}() is too large for a float")
    return number


# --- JSON and objects -----------------------------------------------------------------------------


@define(MODERN, "json", TEXT)
def _json(host: Host, text: str) -> Any:
    try:
        return host.decode(text.encode())
    except ValueError as error:
        raise ScriptError(f"json() finds no JSON in {brief(text)}: {error}") from None


@define(MODERN, "to_json", ANY)
def _to_json(host: Host, value: Any) -> str:
    return showing.to_json(value, host.encode)


@define(MODERN, "read", REFERENCE)
def _read(host: Host, ref: Reference) -> str:
    return _text_of("read", ref, host)


@define(MODERN, "lines", REFERENCE)
def _lines(host: Host, ref: Reference) -> list[str]:
    text = _text_of("lines", ref, host)
    operators.require_length(text.count("\n") + 1)
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()  # after the last line end there is no further line
    return [line.removesuffix("\r") for line in lines]


def _text_of(name: str, ref: Reference, host: Host) -> str:
    content = read(ref, host)
    if len(content) > 4 * TEXT_MAX_CHARACTERS:  # a character has at most 4 bytes
        _require_text_length(len(content) // 4)
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise ScriptError(
            f"{name}() finds no text in {ref.id}: byte {error.start} is not UTF-8; pass such "
            "objects to programs"
        ) from None
    _require_text_length(len(text))
    return text


@define(MODERN, "is_future", REFERENCE)
def _is_future(host: Host, ref: Reference) -> bool:
    return not _is_settled(ref, host)


def _is_settled(ref: Reference, host: Host) -> bool:
    if isinstance(ref, (*_THERE, Failure)):
        return True
    try:
        return host.read(ref) is not None
    except ReferenceFailedError:
        return True


@define(MODERN, "is_error", REFERENCE)
def _is_error(host: Host, ref: Reference) -> bool:
    return not isinstance(ref, _THERE) and _has_failed(ref, host)


def _has_failed(ref: Reference, host: Host) -> bool:
    if isinstance(ref, Failure):
        return True
    try:
        if host.read(ref) is None:
            raise Blocked([ref])
    except ReferenceFailedError:
        return True
    return False


@define(MODERN, "try_deref", REFERENCE, ANY, optional=1)
def _try_deref(host: Host, ref: Reference, default: Any = None) -> Any:
    return default if _has_failed(ref, host) else force(Lazy(ref), host)


@define(MODERN, "select", LIST)
def _select(host: Host, refs: list[Any]) -> list[int]:
    for number, ref in enumerate(refs):
        if not is_reference(ref):
            raise ScriptError(f"select() needs references, but item {number} is {brief(ref)}")
    found = [number for number, ref in enumerate(refs) if _is_settled(ref, host)]
    if refs and not found:
        raise Blocked(refs, is_any=True)
    return found
