"""Reads the replies of a server that speaks RESP, from a blocking socket."""

from __future__ import annotations

import socket
from typing import Any, Final

from ciel.state.errors import KvError

_RECEIVE_BYTES: Final = 256 << 10
_LINE_MAX_BYTES: Final = 64 << 10


class ReplyError(KvError):
    """The reply is an error. `code` is its first word."""

    def __init__(self, line: str) -> None:
        self.code, _, self.text = line.partition(" ")
        super().__init__(line)


class Pushed(list[Any]):
    """A message that the server sent without a request."""


class Replies:
    """The replies on one connection, in order."""

    def __init__(self, own: socket.socket) -> None:
        self._socket = own
        self._data = bytearray()
        self._at = 0

    @property
    def has_more(self) -> bool:
        """Whether bytes of the next reply are here already."""
        return self._at < len(self._data)

    def next(self) -> Any:
        """Return the next reply. An error is raised as ReplyError, but within an array returned.

        Raises OSError if the connection ends.
        """
        reply = self._read()
        if isinstance(reply, ReplyError):
            raise reply
        return reply

    def _read(self) -> Any:
        line = self._line()
        kind, rest = line[:1], line[1:]
        match kind:
            case b"$" | b"=":
                return None if rest == b"-1" else self._bulk(int(rest))
            case b":":
                return int(rest)
            case b"+":
                return rest.decode(errors="replace")
            case b"-":
                return ReplyError(rest.decode(errors="replace"))
            case b"_":
                return None
            case b"*" | b"~":
                return None if rest == b"-1" else [self._read() for _ in range(int(rest))]
            case b">":
                return Pushed([self._read() for _ in range(int(rest))])
            case b"%":
                parts = [self._read() for _ in range(2 * int(rest))]
                return dict(zip(parts[::2], parts[1::2], strict=True))
            case b",":
                return float(rest)
            case b"#":
                return rest == b"t"
        raise ConnectionError(f"the server does not speak RESP: {line[:40]!r}")

    def _line(self) -> bytes:
        searched = self._at
        while (end := self._data.find(b"\r\n", searched)) < 0:
            if len(self._data) - self._at > _LINE_MAX_BYTES:
                raise ConnectionError("the server does not speak RESP: a line is too long")
            searched = max(self._at, len(self._data) - 1) - self._receive()
        line = bytes(self._data[self._at : end])
        self._at = end + 2
        return line

    def _bulk(self, size_bytes: int) -> bytes:
        while len(self._data) < self._at + size_bytes + 2:
            self._receive()
        content = bytes(self._data[self._at : self._at + size_bytes])
        self._at += size_bytes + 2
        return content

    def _receive(self) -> int:
        """Receive more; return by how many bytes the data was moved forward."""
        moved, self._at = self._at, 0
        del self._data[:moved]
        part = self._socket.recv(_RECEIVE_BYTES)
        if not part:
            raise ConnectionError("the server has closed the connection")
        self._data += part
        return moved


def pack_command(parts: list[bytes]) -> bytes:
    """Return a command as the server reads it."""
    packed = [b"*%d\r\n" % len(parts)]
    for part in parts:
        packed += (b"$%d\r\n" % len(part), part, b"\r\n")
    return b"".join(packed)
