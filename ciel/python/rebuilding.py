"""Exceptions as bytes where pickle's own way fails: that calls the class once more with the `args`
of the exception, and a class may want others than it has given to `Exception.__init__`; or it makes
of them a text within a text. These are made anew without their `__init__`.
"""

from __future__ import annotations

import io
from types import FunctionType
from typing import Any, Final

from ciel.python.packing import PROTOCOL
from ciel.python.pickling import Pickler

_HEAP_TYPE: Final = 1 << 9  # of `__flags__`: it was made by a class statement


def pack_rebuilt(error: BaseException) -> bytes:
    """Pack an exception; it and those within it are rebuilt where their own way fails. Raises
    whatever their parts raise.
    """
    file = io.BytesIO()
    _Pickler(file, PROTOCOL).dump(error)
    return file.getvalue()


class _Pickler(Pickler):
    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, BaseException) or _comes_back(value):
            return super().reducer_override(value)
        reduced: Any = _builtin(type(value)).__reduce__(value)
        _, args, *state = reduced
        # The state comes last: it may have the exception itself inside.
        return _new, (type(value), args), *(state or ({},)), None, None, _set_state


def _comes_back(error: BaseException) -> bool:
    """Whether pickle's way makes the same exception."""
    kind = type(error)
    try:
        reduced: Any = error.__reduce_ex__(PROTOCOL)
        made, args, *state = reduced
        copy = made(*args)
        if state and state[0] is not None:
            copy.__setstate__(state[0])
        ways = (kind.__reduce__, kind.__reduce_ex__)
        is_own = made is not kind or any(isinstance(way, FunctionType) for way in ways)
        return is_own or bool(copy.args == error.args)
    except Exception:  # of anybody's class
        return False


def _builtin(kind: type[BaseException]) -> type[BaseException]:
    """Return the class of the interpreter's of which this one is."""
    while kind.__flags__ & _HEAP_TYPE:
        kind = kind.__base__  # type: ignore[assignment]  # an exception, as it began with one
    return kind


def _new(kind: type[BaseException], args: tuple[Any, ...]) -> BaseException:
    builtin = _builtin(kind)
    error = builtin.__new__(kind, *args)
    builtin.__init__(error, *args)
    return error


def _set_state(error: BaseException, state: dict[str, Any]) -> None:
    for name, value in state.items():
        object.__setattr__(error, name, value)  # a frozen class refuses its own
