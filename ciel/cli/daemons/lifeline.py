"""Connects an embedded daemon with its parent process, by standard input and output.

An *embedded* daemon belongs to one command. It reads its key from a line on standard input, and
writes a line to standard output when it is ready. It ends when standard input ends, because its
parent has ended then.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any

from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import IReadDescriptor
from twisted.python.failure import Failure
from zope.interface import implementer

from ciel.cli.daemons.errors import DaemonError
from ciel.wire import codec
from ciel.wire.errors import DecodeError

_LINE_MAX_BYTES = 4096
_REASON_MAX_LENGTH = 1000  # the parent reads one line


@implementer(IReadDescriptor)
class Lifeline:
    """Reads the standard input of an embedded daemon, and notices the end of its parent.

    The parent sends one line of JSON, then nothing until it ends. The line opens the daemon
    (`open_embedded`); an invalid line calls `failed` with the reason. The end of standard input
    calls `gone`.
    """

    def __init__(
        self,
        reactor: Any,
        open_embedded: Callable[[dict[str, Any]], None],
        gone: Callable[[], None],
        failed: Callable[[str], None],
    ) -> None:
        self._reactor = reactor
        self._open_embedded: Callable[[dict[str, Any]], None] | None = open_embedded
        self._gone = gone
        self._failed = failed
        self._line = b""
        os.set_blocking(0, False)
        reactor.addReader(self)

    def fileno(self) -> int:
        return 0

    def logPrefix(self) -> str:
        return "lifeline"

    def doRead(self) -> None:
        try:
            data = os.read(0, _LINE_MAX_BYTES)
        except BlockingIOError:
            return
        if not data:
            self._reactor.removeReader(self)
            self._gone()
            return
        if self._open_embedded is None:
            return
        self._line += data
        line, newline, _ = self._line.partition(b"\n")
        if not newline and len(self._line) <= _LINE_MAX_BYTES:
            return
        open_embedded, self._open_embedded = self._open_embedded, None
        try:
            open_embedded(_read_line(line))
        except DaemonError as error:
            self._failed(str(error))

    def connectionLost(self, reason: Failure) -> None:
        """The reactor has found the end of a pipe, or shuts down.

        Once everything in the pipe was read, `doRead` is not called for its end.
        """
        if isinstance(reason.value, ConnectionDone):
            self._gone()


def _read_line(line: bytes) -> dict[str, Any]:
    if len(line) > _LINE_MAX_BYTES:
        raise DaemonError(
            "the first line on standard input, which configures the embedded daemon, is longer "
            f"than {_LINE_MAX_BYTES} bytes"
        )
    try:
        value = codec.decode(line)
    except DecodeError as error:
        raise DaemonError(f"the first line on standard input cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise DaemonError("the first line on standard input is not a JSON object")
    return value


def report_ready(facts: dict[str, Any]) -> None:
    """Report to the parent of an embedded daemon that the daemon is ready."""
    _send(facts)


def report_failure(reason: str, status: int) -> None:
    """Report to the parent of an embedded daemon why the daemon fails, and its exit status.

    The parent ignores this after `report_ready`.
    """
    with contextlib.suppress(OSError):
        _send({"error": reason[:_REASON_MAX_LENGTH], "status": status})


def _send(facts: dict[str, Any]) -> None:
    os.write(1, codec.encode(facts) + b"\n")
