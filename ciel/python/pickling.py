"""Functions and classes as bytes, with their code where others could not find them by name: by
cloudpickle, with the slots of classes, which that makes anew without them. Their instances then
have a `__dict__`, and what becomes of it does not fit the class that they were of.
"""

from __future__ import annotations

import io
from typing import Any, Final

import cloudpickle

from ciel.python.packing import PROTOCOL

_MADE_ANEW: Final = getattr(cloudpickle.cloudpickle, "_make_skeleton_class", None)
_SLOT_TYPES: Final = (str, tuple, list, dict, set, frozenset)  # else it may be used up


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle is untyped
    """Writes pickles of what may have no name elsewhere."""

    def reducer_override(self, value: Any) -> Any:
        reduced = super().reducer_override(value)
        if reduced is NotImplemented or reduced[0] is not _MADE_ANEW:
            return reduced
        if issubclass(value, tuple | BaseException):  # they hold nothing there, or lose it
            return reduced
        made, (metaclass, name, bases, attributes, *known), (state, slots), *rest = reduced
        if not isinstance(state.get("__slots__"), _SLOT_TYPES):
            return reduced
        attributes = attributes | {"__slots__": state.pop("__slots__")}  # they are set at once
        return made, (metaclass, name, bases, attributes, *known), (state, slots), *rest


def dumps(value: Any) -> bytes:
    """Return a value as bytes; raises whatever its parts raise."""
    file = io.BytesIO()
    Pickler(file, PROTOCOL).dump(value)
    return file.getvalue()
