"""Encodes references: as arrays in records, as `{"__ref__": [...]}` in arguments and results.

Both have the element order of the original CIEL, so that clients written for it can read them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from ciel.core.ids import check_id
from ciel.core.naming import NESTING_MAX
from ciel.core.refs import (
    REFERENCE_TYPES,
    Concrete,
    Failure,
    Fetch,
    Fixed,
    Future,
    Piped,
    Reference,
    SocketStream,
    Stream,
    Sweetheart,
    Tombstone,
    Value,
)
from ciel.wire.errors import DecodeError

LOCATIONS_MAX = 10_000
SIZE_MAX_BYTES = 2**63 - 1  # of one object: the maximum size of a file
_PLAIN = frozenset((str, int, float, bool, type(None)))
_is_location = re.compile(r"[A-Za-z0-9_.:%\[\]-]{1,255}:[0-9]{1,5}", re.ASCII).fullmatch


def to_array(ref: Reference) -> list[Any]:
    """Encode a reference as an array: tag, id, and the fields of its kind."""
    if type(ref) is Value:  # most results
        return ["val", ref.id, ref.encoded]
    array: list[Any] = [_TAGS[type(ref)], *ref]
    last = array[-1]
    if type(last) is frozenset:
        array[-1] = sorted(last)
    return array


def _locations(value: Any) -> frozenset[str]:
    if not isinstance(value, list) or len(value) > LOCATIONS_MAX:
        raise DecodeError("the locations of a reference must be a list of HOST:PORT strings")
    return frozenset([_location(item) for item in value])


def _location(value: Any) -> str:
    if not isinstance(value, str) or not _is_location(value):
        raise DecodeError("a location in a reference must be a HOST:PORT string")
    return value


def _size(value: Any) -> int | None:
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # encoders without integers write 67108864.0
    if type(value) is not int or not 0 <= value <= SIZE_MAX_BYTES:
        raise DecodeError("the size in a reference must be a whole number of bytes, or null")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise DecodeError("expected a string in a reference")
    return value


def _port(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 65536:
        raise DecodeError("the port in a reference must be 1 to 65535")
    return value


def _anything(value: Any) -> Any:
    return value


_SHAPES: dict[str, tuple[Any, tuple[Callable[[Any], Any], ...]]] = {
    "f2": (Future, ()),
    "c2": (Concrete, (_size, _locations)),
    "<3": (Sweetheart, (_location, _size, _locations)),
    "s2": (Stream, (_locations,)),
    "ss2": (SocketStream, (_location, _port)),
    "val": (Value, (_text,)),
    "fx": (Fixed, (_location,)),
    "err": (Failure, (_text, _anything)),
    "t2": (Tombstone, (_locations,)),
    "completed2": (Piped, ()),
    "fetch2": (Fetch, (_text,)),
}

_TAGS = {kind: tag for tag, (kind, _) in _SHAPES.items()}


def from_array(array: Any) -> Reference:
    """Decode a reference from an array; raises DecodeError or InvalidIdError."""
    if type(array) is list and len(array) == 3 and array[0] == "val" and type(array[2]) is str:
        return Value(check_id(array[1]), array[2])  # type: ignore[arg-type]  # checked text is an id
    if not isinstance(array, list) or len(array) < 2:
        raise DecodeError("a reference must be an array that starts with a tag and an id")
    shape = _SHAPES.get(array[0]) if isinstance(array[0], str) else None
    if shape is None:
        raise DecodeError(f"a reference has the unknown tag {array[0]!r:.40}")
    kind, fields = shape
    if len(array) != 2 + len(fields):
        raise DecodeError(
            f"a {array[0]} reference has {len(array)} elements, not {2 + len(fields)}"
        )
    check_id(array[1])
    ref: Reference = kind(
        array[1], *[read(value) for read, value in zip(fields, array[2:], strict=True)]
    )
    return ref


def to_json(value: Any, depth: int = 0, values_by_id: bool = False) -> Any:
    """Return a JSON-like value with references replaced by `{"__ref__": array}`.

    `values_by_id`: encode inline values as futures, without their content. Raises RecursionError
    for a value that contains itself.
    """
    if type(value) in _PLAIN:  # most values
        return value
    if depth > NESTING_MAX:
        raise RecursionError
    below = depth + 1
    if isinstance(value, dict):
        return {
            k: v if type(v) in _PLAIN else to_json(v, below, values_by_id) for k, v in value.items()
        }
    if isinstance(value, list):
        return [to_json(item, below, values_by_id) for item in value]
    if isinstance(value, REFERENCE_TYPES):
        if values_by_id and type(value) is Value:
            return {"__ref__": ["f2", value.id]}
        return {"__ref__": to_array(value)}
    if isinstance(value, tuple):
        return [to_json(item, below, values_by_id) for item in value]
    return value


def from_json(value: Any, depth: int = 0) -> Any:
    """Return a JSON-like value with every `__ref__` object replaced by its reference.

    Raises DecodeError, InvalidIdError or InvalidContentError. It checks more than `from_array`,
    because people and programs have written the value.
    """
    if depth > NESTING_MAX:
        raise DecodeError("JSON is nested too deeply")
    below = depth + 1
    if isinstance(value, dict):
        if "__ref__" in value:
            ref = from_array(value["__ref__"])
            if type(ref) is Value:
                ref.content  # noqa: B018  # raises an error if it cannot be decoded
            return ref
        return {key: from_json(item, below) for key, item in value.items()}
    if isinstance(value, list):
        return [from_json(item, below) for item in value]
    return value
