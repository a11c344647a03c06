"""Encodes and decodes calls, the messages between a worker and an interactive program.

    4 bytes   length of the rest, big-endian
    JSON      list of a method and its arguments; references as `{"__ref__": [...]}`

Both directions use the same format; a reply is a call of the same method (docs/programs.md). This
module does not know the methods. Programs may have bugs, so every error quotes received data.
"""

from __future__ import annotations

import re
import struct
from typing import Any, Final, NamedTuple

from ciel.core.errors import InvalidIdError
from ciel.core.refs import Value
from ciel.wire.codec import decode, encode
from ciel.wire.errors import DecodeError, EncodeError
from ciel.wire.limits import CALL_MAX_BYTES
from ciel.wire.references import from_json, to_json

_PREFIX: Final = struct.Struct(">I")
_SHOWN_BYTES: Final = 40
_is_base64 = re.compile(r"[A-Za-z0-9+/=]*", re.ASCII).fullmatch
_EXITS: dict[bytes, Any] = {}  # decoded `exit` calls, of which programs send few variants
_EXITS_MAX, _EXIT_MAX_BYTES = 100, 80
_is_small_output = re.compile(  # as our SDK encodes it; most tasks publish their output by it
    rb'\["publish_string",\{"index":(0|[1-9][0-9]{0,8}),"str":"([A-Za-z0-9+/=]*)"\}\]'
).fullmatch
_has_nul = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000").search


class Call(NamedTuple):
    """A call: a non-empty method name, and arguments: any JSON value, usually an object."""

    method: str
    args: Any


def encode_call(method: str, args: Any) -> bytes:
    """Encode a call.

    Raise `EncodeError`, also for a text with a NUL, because some programs cannot parse such JSON.
    """
    if type(args) is dict and len(args) == 1 and type(ref := args.get("ref")) is Value:
        if _is_base64(ref.encoded):  # the reply to most outputs
            return _framed(b'["%b",{"ref":{"__ref__":["val","%b","%b"]}}]' % (
                method.encode(), ref.id.encode(), ref.encoded.encode()
            ))  # fmt: skip
    try:
        return _checked(method, encode((method, to_json(args))))
    except RecursionError:
        raise EncodeError("the value is nested too deeply, or contains itself") from None


def frame_call(method: str, args: bytes) -> bytes:
    """Encode a call whose arguments are JSON already. Raises like `encode_call`."""
    return _checked(method, b'["%b",%b]' % (method.encode(), args))


def _checked(method: str, payload: bytes) -> bytes:
    if b"\\u0000" in payload and _has_nul(payload):
        raise EncodeError(f"a message to a program cannot contain a NUL character ({method})")
    if len(payload) > CALL_MAX_BYTES:
        raise EncodeError(
            f"{method} takes {len(payload)} bytes; a program can receive {CALL_MAX_BYTES} at most"
        )
    return _framed(payload)


def _framed(payload: bytes) -> bytes:
    return _PREFIX.pack(len(payload)) + payload


class CallReader:
    """Decodes calls from a stream that is fed in arbitrary pieces.

    It buffers at most the largest call and one piece. After an error the boundaries of calls are
    unknown, so every further `feed` raises the same error.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._error: DecodeError | None = None

    @property
    def has_partial(self) -> bool:
        """Whether the stream is in the middle of a call."""
        return bool(self._buffer)

    @property
    def partial(self) -> str:
        """A description of the received part of an incomplete call; empty if there is none."""
        received = self._buffer
        if not received:
            return ""
        if len(received) < _PREFIX.size:
            return f"{len(received)} of the 4 bytes of a call's length ({_excerpt(received)})"
        (size_bytes,) = _PREFIX.unpack_from(received)
        start = _excerpt(received[_PREFIX.size : _PREFIX.size + _SHOWN_BYTES])
        return f"{len(received) - _PREFIX.size} of the {size_bytes} bytes of a call ({start})"

    def feed(self, data: bytes) -> list[Call]:
        """Add bytes of the stream; return the calls that are now complete.

        Raise `DecodeError` if the data is not a call. If complete calls precede it, they are
        returned, and the next `feed` raises the error, even without further data.
        """
        if self._error is not None:
            raise self._error
        stream: bytes | bytearray = data
        if self._buffer:
            self._buffer += data
            stream = self._buffer
        calls: list[Call] = []
        start, end = 0, len(stream)
        try:
            while end - start >= 4:
                (size_bytes,) = _PREFIX.unpack_from(stream, start)
                if size_bytes > CALL_MAX_BYTES:
                    raise DecodeError(_too_large(size_bytes, stream[start : start + 4]))
                next_start = start + 4 + size_bytes
                if next_start > end:
                    break
                calls.append(_decode_call(bytes(stream[start + 4 : next_start])))
                start = next_start
        except DecodeError as error:
            self._error = error
            self._buffer.clear()
            if not calls:
                raise
            return calls
        if stream is self._buffer:
            del self._buffer[:start]  # fast: a bytearray does not move the rest
        elif start < end:
            self._buffer += data[start:]
        return calls


def _decode_call(payload: bytes) -> Call:
    if payload in _EXITS:
        return Call("exit", dict(_EXITS[payload]))
    if (output := _is_small_output(payload)) is not None:
        index, content = output.groups()
        return Call("publish_string", {"index": int(index), "str": str(content, "ascii")})
    try:
        value = decode(payload)
        if type(value) is list and len(value) == 2 and type(value[0]) is str and value[0]:
            # Letters of `__ref__` may be escaped as \u00XX.
            if b"__ref__" in payload or b"\\u00" in payload:
                value[1] = from_json(value[1])
            elif value[0] == "exit" and len(payload) <= _EXIT_MAX_BYTES:
                _cache_exit(payload, value[1])
            return Call(value[0], value[1])
        why = "not a list of a method name and its arguments"
    except (DecodeError, InvalidIdError) as error:
        why = error.reason if isinstance(error, DecodeError) else str(error)
    what = f"{len(payload)} bytes ({_excerpt(payload)})" if payload else "no bytes"
    raise DecodeError(f"a call of {what}: {why}")


def _cache_exit(payload: bytes, args: Any) -> None:
    plain = type(args) is dict and all(type(value) is str for value in args.values())
    if plain and len(_EXITS) < _EXITS_MAX:
        _EXITS[payload] = args


def _too_large(size_bytes: int, prefix: bytes | bytearray) -> str:
    if all(32 <= byte < 127 or byte in b"\t\r\n" for byte in prefix):
        return (
            f"the start of a call is the text {_excerpt(prefix)}, not its length in 4 bytes; does "
            "the program print to the FIFO?"
        )
    found = f"a call of {size_bytes} bytes (the bytes {prefix.hex(' ')})"
    return f"{found}, but the limit is {CALL_MAX_BYTES}"


def _excerpt(data: bytes | bytearray) -> str:
    """Return the start of some bytes as a quoted text on one line."""
    start = ascii(bytes(data[:_SHOWN_BYTES]).decode("utf-8", "replace"))
    return start if len(data) <= _SHOWN_BYTES else f"{start}..."
