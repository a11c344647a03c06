"""What the daemons have in common: where logs go, how they end, and life as part of somebody's
command.

An *embedded* daemon belongs to one command: it is told its key by a line on standard input, says by
a line on standard output that it is ready, and ends when standard input does, since then its parent
is gone.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import signal
import sys
from collections.abc import Callable
from typing import Any, Protocol, TextIO

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

from ciel.access.errors import AccessError, SettingsError
from ciel.launch.limits import open_files_advice, raise_open_files
from ciel.net import loop
from ciel.net.errors import AddressError, ForeignAddressError
from ciel.net.transports import parse_address
from ciel.net.turns import PauseGauge, use_monotonic_clock
from ciel.plugins import PluginError
from ciel.storage.errors import StoreSpecError
from ciel.wire import codec
from ciel.wire.errors import DecodeError

log = Logger()

LINE_MAX_BYTES = 4096
USAGE_ERRORS = (SettingsError, ForeignAddressError, StoreSpecError, PluginError)
"""The command line, or what it names, is at fault."""

REASON_MAX_LENGTH = 1000  # the parent reads a line


class DaemonError(Exception):
    """A daemon cannot start; the text is one line for whoever started it."""

    def __init__(self, reason: str, status: int = 1) -> None:
        self.status = status
        super().__init__(reason)


class Daemon(Protocol):
    """What `run` runs. `failure` and `status` say how it ended."""

    failure: str
    status: int

    def open_alone(self) -> None:
        """Open with what the options and the environment say."""

    def told(self, line: dict[str, Any]) -> None:
        """Open with what the parent says."""

    def fail(self, reason: str) -> None:
        """End with a reason."""

    def stop(self) -> None:
        """End in order; the reactor may not run yet."""


def run(
    name: str,
    options: argparse.Namespace,
    make: Callable[[Any, argparse.Namespace], Daemon],
    start_errors: tuple[type[Exception], ...],
) -> int:
    """Run a daemon until it is told to end; returns the exit status."""
    try:
        raise_open_files()
        begin_log(options.log)
        loop.install()
        from twisted.internet import reactor as twisted_reactor

        reactor: Any = twisted_reactor  # a module that stands for an object
        use_monotonic_clock(reactor)
        daemon = make(reactor, options)
    except (DaemonError, OSError) as error:
        return _refuse_to_start(name, error)
    stop_on_signals(reactor, daemon.stop)
    gauge = PauseGauge(reactor)

    def told(line: dict[str, Any]) -> None:
        daemon.told(line)
        gauge.start()  # nobody was kept waiting before it opened

    try:
        if options.embedded:
            Lifeline(reactor, told, daemon.stop, daemon.fail)
        else:
            daemon.open_alone()
            gauge.start()
    except start_errors as error:
        daemon.stop()
        return _refuse_to_start(name, error)
    reactor.run(installSignalHandlers=False)
    if daemon.failure and not options.embedded:  # its standard error is its log, which has it
        print(f"{name}: {daemon.failure}", file=sys.stderr)
    return daemon.status


def host_and_port(text: str) -> str:
    """Check `HOST:PORT`; port 0 and an empty host are for who listens (an argparse type)."""
    with contextlib.suppress(AddressError):
        if not parse_address(text).name:
            return text
    raise argparse.ArgumentTypeError(f"{text[:80]!a} is no address: expected HOST:PORT")


def start_failure(error: Exception) -> tuple[str, int]:
    """Say why a daemon cannot start, in one line, and with which exit status it ends."""
    if isinstance(error, OSError) and error.strerror:
        place = f"{error.filename}: " if error.filename else ""
        return f"{place}{error.strerror}{open_files_advice(error)}", 1
    if isinstance(error, KeyError):
        return f"the line on standard input lacks {error}", 1
    if isinstance(error, USAGE_ERRORS):
        return str(error), 2
    return str(error), 3 if isinstance(error, AccessError) else getattr(error, "status", 1)


def _refuse_to_start(name: str, error: Exception) -> int:
    text, status = start_failure(error)
    print(f"{name}: {text}", file=sys.stderr)
    return status


def begin_log(path: str | None) -> None:
    """Log to a file (appended, private) or to standard error. Raises DaemonError."""
    try:
        level = LogLevel.lookupByName(os.environ.get("CIEL_LOG_LEVEL", "info"))
        stream = sys.stderr if path is None else _open_log(path)
    except ValueError as error:
        known = ", ".join(level.name for level in LogLevel.iterconstants())
        text = f"CIEL_LOG_LEVEL: {str(error)[:80]!a} is no level; there are {known}"
        raise DaemonError(text, status=2) from None
    except OSError as error:
        advice = open_files_advice(error)
        raise DaemonError(f"cannot log to {path}: {error.strerror}{advice}") from None
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


def say_failed(reason: str, status: int) -> None:
    """Tell the parent of an embedded daemon why it will never be ready, and how it will end; too
    late, it is ignored.
    """
    with contextlib.suppress(OSError):
        say_ready({"error": reason[:REASON_MAX_LENGTH], "status": status})


def stop_on_signals(reactor: Any, stop: Callable[[], None]) -> None:
    """End in order on SIGTERM and SIGINT."""

    def on_signal(number: int, frame: object) -> None:
        reactor.callFromThread(stop)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
