"""Pickles exceptions that pickle itself cannot restore.

To restore an exception, pickle calls its class with its `args`. That fails if the `__init__` of the
class takes other arguments, and it changes the message if `__init__` builds the message from its
arguments. `pack_rebuilt` lets pickle re-create such exceptions without calling `__init__`.
"""

from __future__ import annotations

import io
from types import FunctionType
from typing import Any, Final

from ciel.python.packing import PROTOCOL
from ciel.python.pickling import Pickler

_HEAP_TYPE: Final = 1 << 9  # set in `__flags__` of a class that a class statement created


def pack_rebuilt(error: BaseException) -> bytes:
    """Pickle an exception that pickle itself may not restore, or that contains such exceptions.

    Raises the errors of pickling their arguments and attributes.
    """
    file = io.BytesIO()
    _Pickler(file, PROTOCOL).dump(error)
    return file.getvalue()


class _Pickler(Pickler):
    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, BaseException) or _is_restorable(value):
            return super().reducer_override(value)
        reduced: Any = _builtin(type(value)).__reduce__(value)
        _, args, *state = reduced
        # The state comes last, since it may contain the exception itself.
        return _new, (type(value), args), *(state or ({},)), None, None, _set_state


def _is_restorable(error: BaseException) -> bool:
    """Return whether pickle can restore an exception with its arguments."""
    kind = type(error)
    try:
        reduced: Any = error.__reduce_ex__(PROTOCOL)
        made, args, *state = reduced
        copy = made(*args)
        if state and state[0] is not None:
            copy.__setstate__(state[0])
        methods = (kind.__reduce__, kind.__reduce_ex__)
        has_own_way = made is not kind or any(isinstance(each, FunctionType) for each in methods)
        return has_own_way or bool(copy.args == error.args)
    except Exception:  # a class of the user may raise anything
        return False


def _builtin(kind: type[BaseException]) -> type[BaseException]:
    """Return the built-in base class of an exception class."""
    while kind.__flags__ & _HEAP_TYPE:
        kind = kind.__base__  # type: ignore[assignment]  # the base of an exception class is one, too
    return kind


def _new(kind: type[BaseException], args: tuple[Any, ...]) -> BaseException:
    builtin = _builtin(kind)
    error = builtin.__new__(kind, *args)
    builtin.__init__(error, *args)
    return error


def _set_state(error: BaseException, state: dict[str, Any]) -> None:
    for name, value in state.items():
        object.__setattr__(error, name, value)  # a frozen class forbids assignments
