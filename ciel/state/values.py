"""Values of Python as the bytes of a base, so that programs in other languages can read most.

    JSON                    None, booleans, numbers, texts, and lists and dictionaries of these
    0xC0, bytes             bytes
    0xC1, seal, packed      everything else, as tasks pack it: a pickle

No JSON starts with the byte 0xC0 or 0xC1. Other bytes, which another program has put, are read as
`bytes`. A number is JSON and what `Increment` adds to.

A pickle is unpickled only if its seal is right, which only a process with the key of the cluster
can make: a base may be open to others, and a pickle can run any code.
"""

from __future__ import annotations

import hmac
import math
import struct
from typing import Any, Final

import orjson

from ciel.access.keys import Key
from ciel.python.packing import Buffer, UnpackedError, pack, unpack
from ciel.state.errors import ContentError

_BYTES: Final = b"\xc0"
_PACKED: Final = b"\xc1"
_SEAL_BYTES: Final = 16
_SIZE: Final = struct.Struct("<Q")
_DEPTH_MAX: Final = 32
_INT_BITS: Final = 63
_SIMPLE: Final = frozenset((str, bool, type(None)))


class Values:
    """Encodes and decodes values. Without a key, it neither stores nor reads pickles."""

    def __init__(self, key: Key | None) -> None:
        self._key = key

    def encode(self, value: Any) -> bytes:
        """Return a value as bytes; raises ContentError."""
        kind = type(value)
        if isinstance(value, bytes) and kind is bytes:
            return _BYTES + value if _is_ambiguous(value) else value
        if _is_json(value, _DEPTH_MAX):
            return orjson.dumps(value)
        if kind in (bytearray, memoryview):
            raise ContentError(f"a {kind.__name__} may change; pass bytes(value)")
        return self._pack(value)

    def decode(self, content: bytes) -> Any:
        """Return the value that bytes stand for; raises ContentError."""
        head = content[:1]
        if head == _BYTES:
            return content[1:]
        if head == _PACKED:
            return self._unpack(content)
        try:
            return orjson.loads(content)
        except orjson.JSONDecodeError:
            return content

    def _pack(self, value: Any) -> bytes:
        if self._key is None:
            raise ContentError(
                f"a {type(value).__name__} must be pickled, and this base was opened without the "
                "key of a cluster; store what JSON can represent, or bytes"
            )
        try:
            packed = pack(value)
        except UnpackedError as error:
            raise ContentError(str(error)) from None
        parts = [packed.head, *(bytes(memoryview(buffer)) for buffer in packed.buffers)]
        body = b"".join([_SIZE.pack(len(part)) + part for part in parts])
        return _PACKED + self._seal(body) + body

    def _unpack(self, content: bytes) -> Any:
        seal, body = content[1 : 1 + _SEAL_BYTES], memoryview(content)[1 + _SEAL_BYTES :]
        if self._key is None:
            raise ContentError("it is a pickle, and this base was opened without a cluster's key")
        if not hmac.compare_digest(seal, self._seal(body)):
            raise ContentError("it is a pickle of a process that does not have the cluster's key")
        parts: list[Buffer] = []
        while body:
            (size_bytes,) = _SIZE.unpack_from(body)
            parts.append(body[_SIZE.size : _SIZE.size + size_bytes])
            body = body[_SIZE.size + size_bytes :]
        return unpack(bytes(parts[0]), parts[1:])

    def _seal(self, body: Buffer) -> bytes:
        assert self._key is not None
        return self._key.mac("kv value", bytes(body))[:_SEAL_BYTES]


def _is_ambiguous(content: bytes) -> bool:
    """Return whether bytes could be read as JSON, or as one of our forms."""
    if content[:1] in (_BYTES, _PACKED):
        return True
    try:
        orjson.loads(content)
    except orjson.JSONDecodeError:
        return False
    return True


def _is_json(value: Any, depth: int) -> bool:
    """Return whether JSON represents a value exactly, types included."""
    kind = type(value)
    if kind in _SIMPLE:
        return kind is not str or _is_text(value)
    if kind is int:
        return bool(value.bit_length() <= _INT_BITS)
    if kind is float:
        return math.isfinite(value)
    if not depth:
        return False
    if kind is list:
        return all(_is_json(item, depth - 1) for item in value)
    if kind is dict:
        return all(
            type(key) is str and _is_text(key) and _is_json(item, depth - 1)
            for key, item in value.items()
        )
    return False


def _is_text(text: str) -> bool:
    """Return whether UTF-8 can represent a text: it has no half of a pair of UTF-16."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
