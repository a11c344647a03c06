"""Formats values as `str` and `print` show them, and as JSON.

It does not recurse, since lists may be nested to any depth. It checks the length while it writes,
since a shared value is written as often as it occurs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from ciel.skywriting.errors import ScriptError
from ciel.skywriting.evaluation.results import extent
from ciel.skywriting.evaluation.values import (
    INTEGER_MAX_DIGITS,
    TEXT_MAX_CHARACTERS,
    Builtin,
    Closure,
    brief,
    is_reference,
    kind,
)

_INTEGER_MAX_BITS = int(INTEGER_MAX_DIGITS * 3.3219280948873626) + 1
_SMALL_MAX_BITS = 14_000  # Python converts such integers; it refuses more than 4,300 digits
_LONG_FROM = 1 << 63
_LONG = 1 << 20


class _Form(NamedTuple):
    """A format. `again` returns the text for a container that is within itself."""

    leaf: Callable[[Any], str]
    key: Callable[[Any], str]
    again: Callable[[Any], str]


def digits(number: int) -> str:
    """Return the digits of an integer. Python itself is slow for long ones, or refuses them."""
    bits = number.bit_length()
    if bits <= _SMALL_MAX_BITS:
        return int.__repr__(number)
    if bits > _INTEGER_MAX_BITS:
        raise ScriptError(f"an integer of more than {INTEGER_MAX_DIGITS:,} digits cannot be shown")
    from decimal import Decimal  # slow to load, and rarely needed

    return str(Decimal(number))


def original(value: Any) -> str:
    """Format a value as the original Skywriting did, which is as in Python 2."""
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        text = f"{value:.12g}"
        return text if not text.lstrip("-").isdigit() else f"{text}.0"
    if isinstance(value, int) and not isinstance(value, bool):
        return digits(value)  # a long integer ends with L only within a list or dictionary
    return _write(value, _ORIGINAL)


def version_2(value: Any) -> str:
    """Format a value as in scripts of version 2: a string as it is, any other value as JSON."""
    return value if isinstance(value, str) else _write(value, _TODAY)


def to_json(value: Any, encode: Callable[[Any], str]) -> str:
    """Format a value as JSON; `encode` formats the references in it. Raises ScriptError if JSON
    cannot represent the value.
    """

    def leaf(value: Any) -> str:
        return encode(value) if is_reference(value) else _json_leaf(value)

    return _write(value, _Form(leaf, _json_key, _no_json))


# --- the leaves -----------------------------------------------------------------------------------


def _original_leaf(value: Any) -> str:
    if isinstance(value, str):
        return f"u{value!a}"
    if isinstance(value, int) and not isinstance(value, bool):
        return digits(value) + ("" if -_LONG_FROM <= value < _LONG_FROM else "L")
    return repr(value) if value is None or isinstance(value, bool | float) else _opaque(value)


def _json_leaf(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return digits(value)
    if isinstance(value, str | float | bool) or value is None:
        try:
            return json.dumps(value, ensure_ascii=False, allow_nan=False)
        except ValueError:
            raise ScriptError(f"JSON has no {value}: it is not a finite number") from None
    raise ScriptError(f"JSON has no form for {brief(value)}")


def _today_leaf(value: Any) -> str:
    is_opaque = is_reference(value) or isinstance(value, Closure | Builtin)
    return _opaque(value) if is_opaque else _json_leaf(value)


def _json_key(key: Any) -> str:
    """Format a key as a string: a number, a boolean or none by its JSON."""
    return _json_leaf(key if isinstance(key, str) else _json_leaf(key))


def _opaque(value: Any) -> str:
    """Format a reference or a function. The text of a reference depends only on its id."""
    if is_reference(value):
        return f"<reference {value.id}>"
    name = value.name if isinstance(value, Builtin) else value.code.name
    return f"<function {name}>" if name else "<function>"


def _dots(value: Any) -> str:
    return "[...]" if isinstance(value, list) else "{...}"


def _no_json(value: Any) -> str:
    raise ScriptError(f"JSON has no form for a {kind(value)} that contains itself")


_ORIGINAL = _Form(_original_leaf, _original_leaf, _dots)
_TODAY = _Form(_today_leaf, _json_key, _dots)

# --- the walk -------------------------------------------------------------------------------------


def _write(value: Any, form: _Form) -> str:
    if type(value) is not list and type(value) is not dict:
        return form.leaf(value)
    parts: list[str] = []
    length, allowed = 0, _LONG
    open_ids = {id(value): value}  # in the order of opening
    walks = [_pieces(value, form)]
    while walks:
        for piece in walks[-1]:
            if type(piece) is not str:
                if id(piece) not in open_ids:
                    open_ids[id(piece)] = piece
                    walks.append(_pieces(piece, form))
                    break
                piece = form.again(piece)
            parts.append(piece)
            length += len(piece)
            if length > allowed:  # check the length of the whole first
                if length > TEXT_MAX_CHARACTERS or extent(value).values > TEXT_MAX_CHARACTERS:
                    raise ScriptError(f"as text, this {kind(value)} would be longer than "
                                      f"{TEXT_MAX_CHARACTERS:,} characters")  # fmt: skip
                allowed = TEXT_MAX_CHARACTERS
        else:
            walks.pop()
            open_ids.popitem()
    return "".join(parts)


def _pieces(value: list[Any] | dict[Any, Any], form: _Form) -> Iterator[Any]:
    """Yield the text of a list or dictionary in pieces; yield containers in it as they are."""
    if type(value) is list:
        before = "["
        for item in value:
            yield before
            yield item if type(item) is list or type(item) is dict else form.leaf(item)
            before = ", "
        yield "]" if value else "[]"
    else:
        assert type(value) is dict
        before = "{"
        for key, item in value.items():
            yield f"{before}{form.key(key)}: "
            yield item if type(item) is list or type(item) is dict else form.leaf(item)
            before = ", "
        yield "}" if value else "{}"
