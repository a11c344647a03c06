"""Checks the number and the kinds of the arguments of built-in functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ciel.core.refs import REFERENCE_TYPES
from ciel.skywriting.errors import ScriptError
from ciel.skywriting.evaluation.results import DEPTH_MAX, VALUES_MAX, extent
from ciel.skywriting.evaluation.values import Builtin, Closure, advice, brief
from ciel.skywriting.host import Host


class Kind(NamedTuple):
    """A kind of argument: its name in error messages, and its types (none: any type)."""

    words: str
    types: frozenset[type]


ANY = Kind("", frozenset())
TEXT = Kind("a string", frozenset((str,)))
INTEGER = Kind("an integer", frozenset((int, bool)))
NUMBER = Kind("a number", frozenset((int, bool, float)))
LIST = Kind("a list", frozenset((list,)))
DICTIONARY = Kind("a dictionary", frozenset((dict,)))
SEQUENCE = Kind("a list or a string", frozenset((list, str)))
SIZED = Kind("a list, a string or a dictionary", frozenset((list, str, dict)))
FUNCTION = Kind("a function", frozenset((Closure, Builtin)))
REFERENCE = Kind("a reference", frozenset(REFERENCE_TYPES))

Table = dict[str, Any]
"""Built-in functions and values by name."""

_ORDINALS = ("1st", "2nd", "3rd")


def define(
    table: Table, name: str, *kinds: Kind, optional: int = 0, shown: str = ""
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds a function to a table. Before each call, the kinds of the
    arguments are checked; a caller may omit the last `optional` ones. `shown`: the name in error
    messages, if it differs from `name`.
    """
    least, most = len(kinds) - optional, len(kinds)
    wanted = tuple([each.types for each in kinds])
    shown = shown or name

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(host: Host, arguments: list[Any]) -> Any:
            if not least <= len(arguments) <= most:
                raise ScriptError(_wrong_count(shown, least, most, len(arguments)))
            for types, value in zip(wanted, arguments, strict=False):
                if types and type(value) not in types:
                    _require_kinds(shown, kinds, arguments)
            return function(host, *arguments)

        table[name] = Builtin(name, call)
        return function

    return register


def _wrong_count(name: str, least: int, most: int, given: int) -> str:
    counts = str(most) if least == most else f"{least} {'or' if most == least + 1 else 'to'} {most}"
    return f"{name}() takes {counts} argument{'s' * (most != 1)}, not {given}"


def _require_kinds(name: str, kinds: tuple[Kind, ...], arguments: list[Any]) -> None:
    """Raise an error for an argument of a wrong kind; subclasses of the types are permitted."""
    for number, (wanted, value) in enumerate(zip(kinds, arguments, strict=False)):
        if not wanted.types or isinstance(value, tuple(wanted.types)):
            continue
        where = f" as its {_ORDINALS[number]} argument" if len(kinds) > 1 else ""
        more = "" if wanted is FUNCTION else advice(value)
        raise ScriptError(f"{name}() needs {wanted.words}{where}, not {brief(value)}{more}")


def require_data(name: str, value: dict[str, Any]) -> None:
    """Raise an error if JSON cannot represent these arguments of a task of another executor."""
    size = extent(value)
    if size.contains_itself:
        raise ScriptError(f"{name}() cannot pass a value that contains itself to another executor")
    if size.values > VALUES_MAX or size.depth > DEPTH_MAX:
        raise ScriptError(
            f"{name}() was given {size.values:,} values, {size.depth} levels deep, as arguments of "
            f"a task; {VALUES_MAX:,} and {DEPTH_MAX} are allowed"
        )
    seen: set[int] = set()
    left: list[Any] = [value]
    while left:
        item = left.pop()
        if isinstance(item, Closure | Builtin):
            raise ScriptError(
                f"{name}() cannot pass a function to another executor; spawn() runs functions"
            )
        if type(item) not in (list, dict) or id(item) in seen:
            continue
        seen.add(id(item))
        left += item if type(item) is list else item.values()
        for key in item if type(item) is dict else ():
            if type(key) is not str:
                raise ScriptError(f"{name}() needs strings as keys of arguments, not {brief(key)}")
