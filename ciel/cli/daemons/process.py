"""Runs a daemon as a process: its log, its signals, and the errors of its start."""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol, TextIO

from twisted.internet.task import LoopingCall
from twisted.logger import (
    FilteringLogObserver,
    Logger,
    LogLevel,
    LogLevelFilterPredicate,
    globalLogBeginner,
    textFileLogObserver,
)

from ciel.access.errors import AccessError, SettingsError
from ciel.access.paths import state_directory
from ciel.cli.daemons.diagnosis import Diagnosis
from ciel.cli.daemons.errors import DaemonError
from ciel.cli.daemons.lifeline import Lifeline
from ciel.launch.limits import open_files_advice, raise_open_files
from ciel.launch.notification import STATUS_EVERY_S, ServiceReports
from ciel.net import loop
from ciel.net.errors import ForeignAddressError
from ciel.net.ticks import PauseGauge, use_monotonic_clock
from ciel.plugins import PluginError
from ciel.storage.errors import StoreSpecError

log = Logger()

USAGE_ERRORS = (SettingsError, ForeignAddressError, StoreSpecError, PluginError)
"""Errors of the command line, or of a file or plugin that it names."""


class Daemon(Protocol):
    """A daemon that `run` runs. It ends with the exit status `status`, and the reason `failure`."""

    failure: str
    status: int
    dump: Callable[[str], Path | None]
    """Writes a dump with a reason (`Diagnosis.dump`)."""
    successor: list[str]
    """The command that takes the place of the process when the daemon has ended; usually none."""

    def describe(self) -> Any:
        """Return the state for a dump, as a JSON value."""

    def summary(self) -> str:
        """Return the state in one line, for the service manager."""

    def open_alone(self) -> None:
        """Open with the settings of the options and the environment."""

    def open_embedded(self, line: dict[str, Any]) -> None:
        """Open with the settings that the parent sent."""

    def fail(self, reason: str) -> None:
        """Shut down because of a failure."""

    def stop(self) -> None:
        """Shut down in order; the reactor may not be running yet."""

    def terminate(self) -> None:
        """Shut down after SIGTERM; a worker may first hand over its tasks and objects."""


def run(
    name: str,
    options: argparse.Namespace,
    make: Callable[[Any, argparse.Namespace], Daemon],
    start_errors: tuple[type[Exception], ...],
) -> int:
    """Run a daemon until it ends; returns the exit status."""
    try:
        raise_open_files()
        begin_log(options.log)
        loop.install()
        from twisted.internet import reactor as twisted_reactor

        reactor: Any = twisted_reactor  # in Twisted's types it is a module
        use_monotonic_clock(reactor)
        daemon = make(reactor, options)
    except (DaemonError, OSError) as error:
        return _refuse_to_start(name, error)
    services = ServiceReports(os.environ)
    stop_on_signals(reactor, services, daemon)
    directory = Path(options.log).absolute().parent if options.log else state_directory(os.environ)
    diagnosis = Diagnosis(name, reactor, directory, reactor.recorder, daemon.describe)
    daemon.dump = diagnosis.dump
    diagnosis.start()

    def open_embedded(line: dict[str, Any]) -> None:
        daemon.open_embedded(line)
        reactor.measure(PauseGauge())  # pauses before the daemon was open delayed no client

    try:
        if options.embedded:
            Lifeline(reactor, open_embedded, daemon.stop, daemon.fail)
        else:
            daemon.open_alone()
            reactor.measure(PauseGauge())
            report_state(reactor, services, daemon)
    except start_errors as error:
        daemon.stop()
        return _refuse_to_start(name, error)
    reactor.run(installSignalHandlers=False)
    diagnosis.stop()
    if daemon.successor:
        os.execve(daemon.successor[0], daemon.successor, os.environ | services.variables)
    services.stopping()
    if (
        daemon.failure and not options.embedded
    ):  # the standard error of an embedded daemon is its log
        print(f"{name}: {daemon.failure}", file=sys.stderr)
    return daemon.status


def report_state(reactor: Any, services: ServiceReports, daemon: Daemon) -> None:
    """Report to the service manager that the daemon serves, and from then on how it is."""
    if not services:
        return
    services.ready(daemon.summary())
    reports = [(STATUS_EVERY_S, lambda: services.describe(daemon.summary()))]
    if services.alive_every_s is not None:
        services.alive()
        reports.append((services.alive_every_s, services.alive))
    for every_s, report in reports:
        repeated = LoopingCall(report)
        repeated.clock = reactor
        repeated.start(every_s, now=False)


def start_failure(error: Exception) -> tuple[str, int]:
    """Return why a daemon cannot start, in one line, and its exit status."""
    if isinstance(error, OSError) and error.strerror:
        place = f"{error.filename}: " if error.filename else ""
        return f"{place}{error.strerror}{open_files_advice(error)}", 1
    if isinstance(error, KeyError):
        return f"the first line on standard input has no field {error}", 1
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
        text = f"CIEL_LOG_LEVEL: {str(error)[:80]!a} is not a log level; the levels are {known}"
        raise DaemonError(text, status=2) from None
    except OSError as error:
        advice = open_files_advice(error)
        raise DaemonError(f"cannot log to {path}: {error.strerror}{advice}") from None
    write: Any = textFileLogObserver(stream)
    above: Any = LogLevelFilterPredicate(defaultLogLevel=level)
    above.setLogLevelForNamespace("twisted.web.client", LogLevel.warn)  # it logs each request
    _levels.append(above)
    observer: Any = FilteringLogObserver(write, [above])
    globalLogBeginner.beginLoggingTo([observer], redirectStandardIO=False, discardBuffer=True)


_levels: list[Any] = []
"""The filter of the log of this process."""


def set_log_level(name: Any) -> None:
    """Change what this process logs; raises ValueError for an unknown level."""
    known = [level.name for level in LogLevel.iterconstants()]
    if name not in known:
        raise ValueError(
            f"{str(name)[:80]!a} is not a log level; the levels are {', '.join(known)}"
        )
    for above in _levels:
        above.setLogLevelForNamespace("", LogLevel.lookupByName(name))


def _open_log(path: str) -> TextIO:
    os.makedirs(os.path.dirname(os.path.abspath(path)), mode=0o700, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    return os.fdopen(descriptor, "a", buffering=1, encoding="utf-8")


def settle_memory() -> None:
    """Exclude all current objects from garbage collection, and collect less often.

    A daemon keeps millions of small values that never become garbage, and creates few cycles.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 1000)


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    """Disable garbage collection while a large state is built, and then exclude it from collection.

    Otherwise collections examine the growing state again and again: 40 % of the time.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def stop_on_signals(reactor: Any, services: ServiceReports, daemon: Daemon) -> None:
    """End the daemon, in the event loop, on SIGTERM and SIGINT."""

    def on_signal(number: int, frame: object) -> None:
        services.stopping()
        reactor.callFromThread(daemon.terminate if number == signal.SIGTERM else daemon.stop)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
