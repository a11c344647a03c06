"""The forms of arguments and results of calls to services.

A plain pickle is sent as it is. A pickle with large buffers has the form of an object of a task.
"""

from __future__ import annotations

import pickle
from typing import Any, Final

from ciel.python.contents import VALUE, Outcome, decode, encode
from ciel.python.packing import (
    LARGE_MIN_BYTES,
    PLAIN_TYPES,
    PROTOCOL,
    Packed,
    UnpackedError,
    pack,
    pack_with_futures,
    unpack,
)

PICKLE: Final = 0
OBJECT: Final = 1
_SMALL_TYPES: Final = PLAIN_TYPES - {bytes}
_PICKLE_MARK: Final = b"\x80"  # a pickle of protocol 2 or later starts with it


def pack_value(value: Any) -> tuple[int, bytes]:
    """Return a value's form, and its bytes; raises UnpackedError."""
    if type(value) in PLAIN_TYPES and (type(value) is not bytes or len(value) < LARGE_MIN_BYTES):
        return PICKLE, pickle.dumps(value, PROTOCOL)
    return _formed(pack(value))


def pack_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, bytes]:
    """Return the form and the bytes of arguments; waits for the futures in them.

    Raises UnpackedError, and the errors of the futures.
    """
    if not kwargs and _SMALL_TYPES.issuperset(map(type, args)):  # true for many calls
        return PICKLE, pickle.dumps((args, kwargs), PROTOCOL)
    packed, futures = pack_with_futures((args, kwargs))
    if futures:
        values = [future.result() for future in futures]
        packed = pack(unpack(packed.head, packed.buffers, values))
    return _formed(packed)


def _formed(packed: Packed) -> tuple[int, bytes]:
    if type(packed) is Packed and not packed.buffers:
        return PICKLE, packed.head
    return OBJECT, b"".join(map(bytes, encode([Outcome(VALUE, packed)])))


def unpack_value(form: int, payload: bytes) -> Any:
    """Return a value; raises UnpackedError, and whatever the classes of its parts raise."""
    if form == PICKLE:
        if payload[:1] == _PICKLE_MARK:
            return pickle.loads(payload)
        return unpack(payload)
    if form != OBJECT:
        raise UnpackedError(f"a value of a call has the unknown form {form}")
    content = decode(bytearray(payload)).outcomes[0].packed  # arrays may be changed
    return unpack(content.head, content.buffers)
