"""The operators, for values that are not lazy. Operands of matching kinds behave as in Python."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

from ciel.skywriting.errors import ScriptError
from ciel.skywriting.evaluation.values import (
    INTEGER_MAX_DIGITS,
    LIST_MAX_ITEMS,
    TEXT_MAX_CHARACTERS,
    Lazy,
    advice,
    brief,
    is_reference,
    kind,
)

_NUMBERS = (int, float)  # booleans are integers
_INTEGER_MAX_BITS = int(INTEGER_MAX_DIGITS * math.log2(10))


def add(left: Any, right: Any) -> Any:
    """Add numbers, strings or lists; the sum of lists is a new list."""
    if isinstance(left, _NUMBERS) and isinstance(right, _NUMBERS):
        return _number(operator.add, "+", left, right)
    if type(left) is type(right) is str:
        if len(left) + len(right) > TEXT_MAX_CHARACTERS:
            raise ScriptError(f"a string may have at most {TEXT_MAX_CHARACTERS} characters")
        return left + right
    if type(left) is type(right) is list:
        require_length(len(left) + len(right))
        return left + right
    more = advice(left, right)
    if not more and str in (type(left), type(right)):
        more = "; str(…) converts it"
    raise ScriptError(f"cannot add {brief(left)} and {brief(right)}{more}")


def require_length(count: int) -> None:
    """Raise an error if a list would be too long."""
    if count > LIST_MAX_ITEMS:
        raise ScriptError(f"a list may have at most {LIST_MAX_ITEMS} items, not {count}")


def _arithmetic(symbol: str, function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def apply(left: Any, right: Any) -> Any:
        if isinstance(left, _NUMBERS) and isinstance(right, _NUMBERS):
            return _number(function, symbol, left, right)
        raise ScriptError(
            f"{symbol} needs two numbers, not {brief(left)} and {brief(right)}{advice(left, right)}"
        )

    return apply


def _number(function: Callable[[Any, Any], Any], symbol: str, left: Any, right: Any) -> Any:
    try:
        found = function(left, right)
    except ZeroDivisionError:
        raise ScriptError(f"{symbol} by zero") from None
    except OverflowError:
        raise ScriptError(f"the result of {symbol} is too large for a float") from None
    if type(found) is float:
        if not math.isfinite(found):
            raise ScriptError(f"the result of {symbol} is too large for a float")
    elif found.bit_length() > _INTEGER_MAX_BITS:
        raise ScriptError(f"an integer may have at most {INTEGER_MAX_DIGITS} digits")
    return found


def _floor_divide(left: Any, right: Any) -> Any:
    found = left // right
    return int(found) if type(found) is float and math.isfinite(found) else found


_TOO_DEEP = "these values are nested too deeply to be compared, or contain themselves"


def equal(left: Any, right: Any) -> bool:
    """Compare any two values; references are equal if they refer to the same object."""
    if is_reference(left) and is_reference(right):
        return bool(left.id == right.id)
    try:
        return bool(left == right)
    except RecursionError:
        raise ScriptError(_TOO_DEEP) from None


def _ordering(symbol: str, function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def apply(left: Any, right: Any) -> Any:
        ordered = isinstance(left, _NUMBERS) and isinstance(right, _NUMBERS)
        if ordered or (type(left) is type(right) and type(left) in (str, list)):
            try:
                return function(left, right)
            except TypeError:
                raise ScriptError("these lists contain items that have no order") from None
            except RecursionError:
                raise ScriptError(_TOO_DEEP) from None
        more = advice(left, right)
        raise ScriptError(f"{brief(left)} and {brief(right)} have no order ({symbol}){more}")

    return apply


BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "+": add,
    "-": _arithmetic("-", operator.sub),
    "*": _arithmetic("*", operator.mul),
    "/": _arithmetic("/", operator.truediv),
    "%": _arithmetic("%", operator.mod),
    "div": _arithmetic("div", _floor_divide),
    "==": equal,
    "!=": lambda left, right: not equal(left, right),
    "<": _ordering("<", operator.lt),
    "<=": _ordering("<=", operator.le),
    ">": _ordering(">", operator.gt),
    ">=": _ordering(">=", operator.ge),
    "&&": lambda left, right: left and right,
    "||": lambda left, right: left or right,
}


def negate(value: Any) -> Any:
    """Return `-value`."""
    if isinstance(value, _NUMBERS):
        return -value
    raise ScriptError(f"- needs a number, not {brief(value)}")


def item(target: Any, index: Any) -> Any:
    """Return `target[index]`, for a list or string (from either end) or a dictionary."""
    if type(target) is dict:
        try:
            return target[index]
        except KeyError:
            known = ", ".join(brief(key) for key in list(target)[:8])
            has = f"it has: {known}" if known else "it is empty"
            raise ScriptError(f"the dictionary has no key {brief(index)} ({has})") from None
        except TypeError:
            raise ScriptError(f"{brief(index)} cannot be a key") from None
    if type(target) in (list, str):
        if not isinstance(index, int):
            raise ScriptError(f"a {kind(target)} is indexed by an integer, not {brief(index)}")
        try:
            return target[index]
        except IndexError:
            raise ScriptError(
                f"index {index} is outside of a {kind(target)} of {len(target)}"
            ) from None
    raise ScriptError(f"{brief(target)} cannot be indexed{advice(target)}")


def set_item(target: Any, index: Any, value: Any) -> None:
    """Do `target[index] = value`; a list grows if needed, and new items in between are none."""
    if type(target) is dict:
        if not isinstance(index, str | int | float):
            raise ScriptError(f"{brief(index)} cannot be a key")
        target[index] = value
        return
    if type(target) is not list:
        raise ScriptError(f"the items of {brief(target)} cannot be assigned")
    if not isinstance(index, int):
        raise ScriptError(f"a list is indexed by an integer, not {brief(index)}")
    if index >= len(target):
        require_length(index + 1)
        target.extend([None] * (index + 1 - len(target)))
    try:
        target[index] = value
    except IndexError:
        raise ScriptError(f"index {index} is outside of a list of {len(target)}") from None


_METHODS: dict[type, str] = {
    list: "; there are no methods: write len(list), list += item",
    str: "; there are no methods: write len(text), split(text)",
}


def field(target: Any, name: str) -> Any:
    """Return `target.name`, which is `target["name"]`."""
    if type(target) is not dict:
        more = _METHODS.get(type(target)) or advice(target)
        raise ScriptError(f"only dictionaries have fields, not {brief(target)}{more}")
    return item(target, name)


def star(value: Any) -> Lazy:
    """Return `*value`, without reading it."""
    if not is_reference(value):
        raise ScriptError(f"* needs a reference, not {brief(value)}")
    return Lazy(value)


def dictionary(values: tuple[Any, ...]) -> dict[Any, Any]:
    """Return a dictionary of alternating keys and values."""
    found = {}
    for key, value in zip(values[::2], values[1::2], strict=True):
        if not isinstance(key, str | int | float):
            raise ScriptError(f"{brief(key)} cannot be a key")
        found[key] = value
    return found
