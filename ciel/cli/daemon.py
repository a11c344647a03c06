"""What the daemons have in common: where logs go, how they end, and life as part of somebody's
command.

An *embedded* daemon belongs to one command: it is told its key by a line on standard input, says by
a line on standard output that it is ready, and ends when standard input does, since then its parent
is gone.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable
from typing import Any, TextIO

from twisted.internet.interfaces import IReadDescriptor
from twisted.logger import (
    FilteringLogObserver,
    Logger,
    LogLevel,
    LogLevelFilterPredicate,
    globalLogBeginner,
    textFileLogObserver,
)
from twisted.python.failure import Failure
from zope.interface import implementer

from ciel.wire import codec
from ciel.wire.errors import DecodeError

log = Logger()

LINE_MAX_BYTES = 4096


class DaemonError(Exception):
    """A daemon cannot start; the text is one line for whoever started it."""


def begin_log(path: str | None) -> None:
    """Log to a file (appended, private) or to standard error. Raises DaemonError."""
    try:
        level = LogLevel.lookupByName(os.environ.get("CIEL_LOG_LEVEL", "info"))
        stream = sys.stderr if path is None else _open_log(path)
    except ValueError as error:
        raise DaemonError(f"CIEL_LOG_LEVEL: there is no level {error}") from None
    except OSError as error:
        raise DaemonError(f"cannot log to {path}: {error.strerror}") from None
    write: Any = textFileLogObserver(stream)
    above: Any = LogLevelFilterPredicate(defaultLogLevel=level)
    observer: Any = FilteringLogObserver(write, [above])
    globalLogBeginner.beginLoggingTo([observer], redirectStandardIO=False, discardBuffer=True)


def _open_log(path: str) -> TextIO:
    os.makedirs(os.path.dirname(os.path.abspath(path)), mode=0o700, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    return os.fdopen(descriptor, "a", buffering=1, encoding="utf-8")


def settle_memory() -> None:
    """Tell the collector that what is loaded now stays, and to look less often for cycles.

    A daemon keeps millions of small values that are not garbage; its cycles are few.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 1000)


@implementer(IReadDescriptor)
class Lifeline:
    """Standard input of an embedded daemon: one line of JSON, then silence until the parent is
    gone. `failed` is called with the reason when that line makes no sense.
    """

    def __init__(
        self,
        reactor: Any,
        told: Callable[[dict[str, Any]], None],
        gone: Callable[[], None],
        failed: Callable[[str], None],
    ) -> None:
        self._reactor = reactor
        self._told: Callable[[dict[str, Any]], None] | None = told
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
            data = os.read(0, LINE_MAX_BYTES)
        except BlockingIOError:
            return
        if not data:
            self._reactor.removeReader(self)
            self._gone()
            return
        if self._told is None:
            return
        self._line += data
        line, newline, _ = self._line.partition(b"\n")
        if not newline and len(self._line) <= LINE_MAX_BYTES:
            return
        told, self._told = self._told, None
        try:
            told(_read_line(line))
        except DaemonError as error:
            self._failed(str(error))

    def connectionLost(self, reason: Failure) -> None:
        """Called at shutdown; there is nothing to do."""


def _read_line(line: bytes) -> dict[str, Any]:
    if len(line) > LINE_MAX_BYTES:
        raise DaemonError("the line on standard input is too long")
    try:
        value = codec.decode(line)
    except DecodeError as error:
        raise DaemonError(f"the line on standard input cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise DaemonError("the line on standard input is not an object")
    return value


def say_ready(facts: dict[str, Any]) -> None:
    """Tell the parent of an embedded daemon that it is ready."""
    os.write(1, codec.encode(facts) + b"\n")


def stop_on_signals(reactor: Any, stop: Callable[[], None]) -> None:
    """End in order on SIGTERM and SIGINT."""

    def on_signal(number: int, frame: object) -> None:
        reactor.callFromThread(stop)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
