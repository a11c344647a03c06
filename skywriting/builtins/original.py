"""The built-in functions of the original Skywriting (docs/skywriting/reference.md).

Newer functions are in `modern`; functions that call functions of the script are in `prelude.sw`.
"""

from __future__ import annotations

import re
from typing import Any

from ciel.core.refs import Reference
from ciel.skywriting.builtins.arguments import (
    ANY,
    DICTIONARY,
    FUNCTION,
    INTEGER,
    LIST,
    SIZED,
    TEXT,
    Table,
    define,
    require_data,
)
from ciel.skywriting.errors import ScriptError
from ciel.skywriting.evaluation import operators, showing
from ciel.skywriting.evaluation.values import (
    INTEGER_MAX_DIGITS,
    LIST_MAX_ITEMS,
    SpawnedCall,
    advice,
    brief,
)
from ciel.skywriting.host import Host

ORIGINAL: Table = {}
"""The names of these functions count as bound: no function of a script may assign to them (8.4)."""
VERSION_2: Table = {}
"""In scripts of version 2 these functions replace the original ones of the same names."""
_is_integer = re.compile(r"\s*[+-]?[0-9]+\s*").fullmatch


# --- tasks ----------------------------------------------------------------------------------------


@define(ORIGINAL, "spawn", FUNCTION, LIST, optional=1)
def _spawn(host: Host, function: Any, arguments: list[Any] | None = None) -> Reference:
    return host.spawn(SpawnedCall(function, [] if arguments is None else arguments))


@define(ORIGINAL, "spawn_exec", TEXT, DICTIONARY, INTEGER)
def _spawn_exec(host: Host, executor: str, args: dict[str, Any], count: int) -> Any:
    return _outputs(host, "spawn_exec", executor, {"args": args, "n_outputs": count})


@define(ORIGINAL, "exec", TEXT, DICTIONARY, INTEGER)
def _exec(host: Host, executor: str, args: dict[str, Any], count: int) -> Any:
    keywords = {"args": args, "n_outputs": count, "small_task": True}
    return _outputs(host, "exec", executor, keywords)


def _outputs(host: Host, name: str, executor: str, keywords: dict[str, Any]) -> list[Reference]:
    if not 0 <= keywords["n_outputs"] <= LIST_MAX_ITEMS:
        raise ScriptError(f"{name}() cannot have {keywords['n_outputs']} outputs")
    require_data(name, keywords["args"])
    found = host.spawn_task(executor, keywords)
    return found if isinstance(found, list) else [found]


@define(ORIGINAL, "spawn_other", TEXT, DICTIONARY)
def _spawn_other(host: Host, executor: str, keywords: dict[str, Any]) -> Any:
    require_data("spawn_other", keywords)
    return host.spawn_task(executor, keywords)


@define(ORIGINAL, "package", TEXT)
def _package(host: Host, key: str) -> Reference:
    ref = host.package(key)
    if ref is None:
        raise ScriptError(
            f'Package member "{key}" not found -- it is neither in the package file nor given by '
            f"sw-job -p {key} FILE"
        )
    return ref


@define(ORIGINAL, "__star__", ANY)
def _star(host: Host, value: Any) -> Any:
    return operators.star(value)


# --- values ---------------------------------------------------------------------------------------


@define(ORIGINAL, "int", ANY)
def _int(host: Host, value: Any) -> int:
    if isinstance(value, int | float):
        return int(value)
    if type(value) is not str:
        raise ScriptError(f"int() needs a number or a string, not {brief(value)}{advice(value)}")
    if not _is_integer(value):
        raise ScriptError(f"int() needs an integer, not {brief(value)}")
    if len(value) < 4000:
        return int(value)
    digits = value.strip()
    if len(digits) > INTEGER_MAX_DIGITS:
        raise ScriptError(f"int() takes at most {INTEGER_MAX_DIGITS:,} digits, not {len(digits):,}")
    from decimal import Decimal  # slow to load, and rarely needed

    return int(Decimal(digits))  # `int` accepts at most 4,300 digits


@define(ORIGINAL, "str", ANY)
def _str(host: Host, value: Any) -> str:
    return showing.original(value)


@define(ORIGINAL, "len", SIZED)
def _len(host: Host, value: Any) -> int:
    return len(value)


@define(ORIGINAL, "range", INTEGER, INTEGER, INTEGER, optional=2)
def _range(host: Host, first: int, stop: int | None = None, step: int = 1) -> list[int]:
    if step == 0:
        raise ScriptError("range() needs a step other than 0")
    numbers = range(first) if stop is None else range(first, stop, step)
    # len() fails if the length exceeds a machine word.
    if numbers and (numbers[-1] - numbers[0]) // step >= LIST_MAX_ITEMS:
        raise ScriptError(f"range() of more than {LIST_MAX_ITEMS:,} items; a while loop can count")
    return list(numbers)


@define(ORIGINAL, "has_key", DICTIONARY, ANY)
def _has_key(host: Host, dictionary: dict[Any, Any], key: Any) -> bool:
    return _can_be_key("has_key", key) and key in dictionary


@define(ORIGINAL, "get_key", DICTIONARY, ANY, ANY)
def _get_key(host: Host, dictionary: dict[Any, Any], key: Any, default: Any) -> Any:
    return dictionary.get(key, default) if _can_be_key("get_key", key) else default


def _can_be_key(name: str, key: Any) -> bool:
    if isinstance(key, list | dict):
        raise ScriptError(
            f"{name}() needs a key as its second argument; {brief(key)} cannot be a key"
        )
    return isinstance(key, str | int | float)


@define(ORIGINAL, "print", ANY)
def _print(host: Host, value: Any) -> bool:
    host.print(showing.original(value))
    return True


# --- replacements in version 2 --------------------------------------------------------------------


@define(VERSION_2, "str 2", ANY, shown="str")
def _str_version_2(host: Host, value: Any) -> str:
    return showing.version_2(value)


@define(VERSION_2, "print 2", ANY, shown="print")
def _print_version_2(host: Host, value: Any) -> bool:
    host.print(showing.version_2(value))
    return True


# The names "str 2" and "print 2": a continuation refers to a built-in by its name, which must be
# unique.
VERSION_2["str"] = VERSION_2["str 2"]
VERSION_2["print"] = VERSION_2["print 2"]
