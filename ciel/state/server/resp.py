"""The protocol of Redis, RESP 2 and 3: reads commands, and encodes replies. Without I/O.

A command is an array of bulk strings, or one line of words. Any bytes of a client become commands
or one `FramingError`, after which the connection must be closed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from ciel.state.batches import VALUE_MAX_BYTES
from ciel.state.server.errors import FramingError

LINE_MAX_BYTES: Final = 64 << 10
_HEAD_MAX_BYTES: Final = 32
"""A line with a number has at most this length."""


class Limits(NamedTuple):
    """The largest numbers of arguments of a command, and of bytes of an argument and of all."""

    arguments: int
    argument_bytes: int
    command_bytes: int


KNOWN: Final = Limits(6 << 20, VALUE_MAX_BYTES, 512 << 20)
"""The limits of a client that has: a batch may have a million steps of at most four arguments."""
UNKNOWN: Final = Limits(10, 16 << 10, 64 << 10)
"""The limits of a client that has not authenticated itself yet, as Redis has them."""


class CommandReader:
    """Reads the commands of one connection. `limits` may be changed between two calls."""

    def __init__(self, limits: Limits = UNKNOWN) -> None:
        self.limits = limits
        self._data = b""
        self._pieces: list[bytes] = []
        self._wanted = 0  # how many bytes there must be before reading goes on
        self._have = 0
        self._arguments: list[bytes] = []
        self._missing = 0  # arguments of the command that is being read
        self._size_bytes = 0

    def feed(self, data: bytes) -> Iterator[list[bytes]]:
        """Yield the commands that are complete with these bytes. Raises FramingError.

        The caller carries out each command before it takes the next, which may change `limits`.
        """
        if self._pieces:
            self._pieces.append(data)
            self._have += len(data)
            if self._have < self._wanted:
                return
            data, self._pieces = b"".join(self._pieces), []
        at = 0
        while True:
            if not self._missing:
                at = self._read_head(data, at)
            if self._missing:
                at = self._read_arguments(data, at)
            if self._wanted:
                break
            if self._arguments:
                command, self._arguments = self._arguments, []
                yield command
        if at < len(data):
            self._pieces = [data[at:]]
            self._have = len(data) - at

    def _read_head(self, data: bytes, at: int) -> int:
        """Read the line that begins a command; return where its arguments begin."""
        end = data.find(b"\n", at)
        if end < 0:
            if len(data) - at > LINE_MAX_BYTES:
                raise FramingError("too big inline request")
            self._wanted = len(data) - at + 1
            return at
        self._wanted = 0
        line = data[at : end - 1 if data[end - 1] == 13 and end > at else end]
        if line[:1] == b"*":
            count = _number(line, self.limits.arguments, "multibulk length")
            self._arguments, self._missing, self._size_bytes = [], max(0, count), 0
        elif len(line) > LINE_MAX_BYTES:
            raise FramingError("too big inline request")
        else:
            self._arguments = line.split()
        return end + 1

    def _read_arguments(self, data: bytes, at: int) -> int:
        """Read arguments, as far as they are there; return where the next begins."""
        arguments, limit = self._arguments, self.limits.argument_bytes
        while self._missing:
            end = data.find(b"\r\n", at, at + _HEAD_MAX_BYTES)
            if end < 0:
                if len(data) - at >= _HEAD_MAX_BYTES:
                    raise FramingError("expected '$', and a length")
                self._wanted = len(data) - at + 1
                return at
            if data[at] != 36:
                raise FramingError(f"expected '$', got {chr(data[at])!r}")
            size_bytes = _number(data[at:end], limit, "bulk length")
            if size_bytes < 0:
                raise FramingError("invalid bulk length")
            start = end + 2
            stop = start + size_bytes
            if len(data) < stop + 2:
                self._wanted = stop + 2 - at
                return at
            if data[stop : stop + 2] != b"\r\n":
                raise FramingError("a bulk string does not end with CRLF")
            self._size_bytes += size_bytes
            if self._size_bytes > self.limits.command_bytes:
                raise FramingError("too large a command")
            arguments.append(data[start:stop])
            self._missing -= 1
            at = stop + 2
        self._wanted = 0
        return at


def _number(line: bytes, limit: int, what: str) -> int:
    digits = line[1:]
    if digits == b"-1":
        return -1
    if not digits.isdigit() or len(digits) > 12 or (number := int(digits)) > limit:
        raise FramingError(f"invalid {what}")
    return number


# --- replies --------------------------------------------------------------------------------------


class Simple(NamedTuple):
    """A short text that is a status, such as OK."""

    text: bytes


class Failure(NamedTuple):
    """An error: a word in capitals, and a text for people."""

    code: str
    text: str


class Push(NamedTuple):
    """A message without a request; a client with RESP 2 gets an array."""

    parts: list[Any]


class Pairs(NamedTuple):
    """An array of pairs; a client with RESP 2 gets one array of their parts."""

    pairs: list[tuple[Any, Any]]


class NullArray:
    """The reply in place of an array that does not exist."""


NULL_ARRAY: Final = NullArray()
OK: Final = Simple(b"OK")
QUEUED: Final = Simple(b"QUEUED")
_OK_BYTES: Final = b"+OK\r\n"


def encode(reply: Any, protocol: int) -> bytes:
    """Return a reply as bytes.

    None, int, float, bytes, str, list and dict become the types of RESP that represent them; those
    that RESP 2 lacks become others: a dictionary an array of keys and values, a float a text.
    """
    kind = type(reply)
    if kind is bytes:
        return b"$%d\r\n%b\r\n" % (len(reply), reply)
    if reply is OK:
        return _OK_BYTES
    if kind is dict:
        return _encode_dict(reply, protocol)
    if kind is int:
        return b":%d\r\n" % reply
    if reply is None:
        return b"_\r\n" if protocol == 3 else b"$-1\r\n"
    return _encode_other(reply, protocol)


def _encode_other(reply: Any, protocol: int) -> bytes:
    parts: list[Any]
    match reply:
        case str():
            return encode(reply.encode(), protocol)
        case Failure(code, text):
            line = f"{code} {text}".translate({13: " ", 10: " "})
            return b"-%b\r\n" % line.encode(errors="replace")
        case Simple(text):
            return b"+%b\r\n" % text
        case Pairs(pairs):
            parts = pairs if protocol == 3 else [part for pair in pairs for part in pair]
            return encode(parts, protocol)
        case NullArray():
            return b"_\r\n" if protocol == 3 else b"*-1\r\n"
        case float():
            text = _float_text(reply)
            return b",%b\r\n" % text if protocol == 3 else encode(text, protocol)
        case Push(parts):
            mark = b">" if protocol == 3 else b"*"
            return mark + b"%d\r\n" % len(parts) + b"".join([encode(p, protocol) for p in parts])
        case list() | tuple():
            return b"*%d\r\n" % len(reply) + b"".join([encode(part, protocol) for part in reply])
    raise TypeError(f"{type(reply).__name__} is no reply")


def _encode_dict(reply: dict[Any, Any], protocol: int) -> bytes:
    count = len(reply)
    parts = [b"%%%d\r\n" % count if protocol == 3 else b"*%d\r\n" % (2 * count)]
    for name, value in reply.items():
        if type(name) is bytes and type(value) is bytes:  # a hash
            parts.append(b"$%d\r\n%b\r\n$%d\r\n%b\r\n" % (len(name), name, len(value), value))
        else:
            parts += encode(name, protocol), encode(value, protocol)
    return b"".join(parts)


def _float_text(number: float) -> bytes:
    text = repr(number)
    return (text[:-2] if text.endswith(".0") else text).encode()
