"""Pickles exceptions that pickle cannot restore. Pickle calls the class with the `args` of the
exception, but its `__init__` may take other arguments, or build its text from them a second time.
Unpickling re-creates such exceptions without calling their `__init__`.
"""

from __future__ import annotations

import io
from types import FunctionType
from typing import Any, Final

from ciel.python.packing import PROTOCOL
from ciel.python.pickling import Pickler

_HEAP_TYPE: Final = 1 << 9  # in `__flags__`: a class statement created it


def pack_rebuilt(error: BaseException) -> bytes:
    """Pickle an exception that pickle itself may not restore, or that contains such exceptions.
    Raises whatever their parts raise.
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
        # The state comes last, since it may contain the exception itself.
        return _new, (type(value), args), *(state or ({},)), None, None, _set_state


def _comes_back(error: BaseException) -> bool:
    """Tell whether pickle restores an exception."""
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
    except Exception:  # a class of the user may raise anything
        return False


def _builtin(kind: type[BaseException]) -> type[BaseException]:
    """Return the built-in base class of an exception class."""
    while kind.__flags__ & _HEAP_TYPE:
        kind = kind.__base__  # type: ignore[assignment]  # a base of an exception is one
    return kind


def _new(kind: type[BaseException], args: tuple[Any, ...]) -> BaseException:
    builtin = _builtin(kind)
    error = builtin.__new__(kind, *args)
    builtin.__init__(error, *args)
    return error


def _set_state(error: BaseException, state: dict[str, Any]) -> None:
    for name, value in state.items():
        object.__setattr__(error, name, value)  # a frozen class forbids assignments
