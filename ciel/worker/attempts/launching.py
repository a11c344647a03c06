"""The launcher on the reactor: sends requests once in each tick, and receives events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from twisted.internet.interfaces import IReadDescriptor, IWriteDescriptor
from twisted.logger import Logger
from twisted.python.failure import Failure as TwistedFailure
from zope.interface import implementer

from ciel.launch import LauncherDiedError
from ciel.launch.launcher import Launcher
from ciel.launch.messages import (
    Event,
    LaunchSpec,
    ProgramExited,
    ProgramFailed,
)
from ciel.net.ticks import START, DelayedCall, Ticks
from ciel.worker.attempts.forkserver import Forks

log = Logger()

STOPPED_CHECK_S = 1.0
"""Interval of checks that the launcher is not stopped, while it has programs.

A program may stop the launcher by a signal. Then no program of this worker would start, no end
would be reported, and no time limit would be enforced.
"""

Ended = Callable[[ProgramExited | ProgramFailed], None]


@implementer(IReadDescriptor, IWriteDescriptor)
class Launching:
    """Starts programs, and reports the end of each exactly once.

    If the launcher dies, its programs are killed and reported as such, and a new launcher is
    started.
    """

    def __init__(
        self,
        reactor: Any,
        ticks: Ticks,
        environ: Mapping[str, str],
        read_only: Iterable[str] = (),
        members: str = "",
    ) -> None:
        """`read_only`: directories that programs should only be able to read.

        `members`: the file `cgroup.procs` of the control group for all programs; empty: none.
        """
        self._reactor = reactor
        self._ticks = ticks
        self.environ = dict(environ)
        self._owners: dict[int, Ended] = {}
        self._started: dict[int, Callable[[int], None]] = {}
        self._next_id = 0
        self._read_only = tuple(read_only)
        self._protects: bool | None = None
        self._members = members
        self._launcher = self._start_launcher()
        self._forks = Forks(reactor, self)
        self._check: DelayedCall | None = None
        reactor.addReader(self)

    def _start_launcher(self) -> Launcher:
        """Start a launcher, whose programs inherit its control group."""
        launcher = Launcher.start_process(self.environ, read_only=self._read_only)
        if self._members:
            try:
                Path(self._members).write_text(str(launcher.pid), encoding="ascii")
            except OSError as error:
                log.warn("the number of processes is not limited: {error}", error=error)
        return launcher

    @property
    def protects(self) -> bool:
        """Whether programs cannot change files in the read-only directories."""
        if self._protects is not None:
            return self._protects
        protects = bool(self._read_only) and self._launcher.protects(self._read_only)
        if protects or self._next_id > len(self._owners):  # one has ended: the mounts are made
            self._protects = protects
        return protects

    @property
    def parent_count(self) -> int:
        """How many programs run that only fork other programs."""
        return self._forks.parent_count

    def start(
        self,
        spec: LaunchSpec,
        ended: Ended,
        started: Callable[[int], None] | None = None,
        parent: LaunchSpec | None = None,
    ) -> int:
        """Start a program, or have `parent` fork it if possible; return the id of the launch.

        `started` is called with the process id, `ended` once all processes of the program have
        ended. Raises LaunchSpecError.
        """
        self._next_id += 1
        launch_id = self._next_id
        if parent is None or not self._forks.ask(launch_id, spec, parent):
            self._launcher.start(launch_id, spec)
        self._owners[launch_id] = ended
        if self._check is None:
            self._check = self._reactor.callLater(STOPPED_CHECK_S, self._continue)
        if started is not None:
            self._started[launch_id] = started
        self._ticks.at_end(self._flush, START)
        return launch_id

    def start_anew(self, launch_id: int, spec: LaunchSpec, signals: list[int]) -> None:
        """As `ForksOwner` says."""
        self._launcher.start(launch_id, spec)
        for number in signals:
            self._launcher.kill(launch_id, number)
        self._ticks.at_end(self._flush, START)

    def adopt(self, launch_id: int, parent_id: int, pid: int) -> None:
        """As `ForksOwner` says."""
        self._launcher.adopt(launch_id, parent_id, pid)
        self._ticks.at_end(self._flush, START)

    def kill(self, launch_id: int, signal_number: int) -> None:
        """Send a signal to a program's process group; SIGKILL reaches all that it started."""
        if not self._forks.keep_signal(launch_id, signal_number):
            self._launcher.kill(launch_id, signal_number)
            self._ticks.at_end(self._flush, START)

    def recall(self, launch_id: int) -> None:
        """Have a program fail with ECANCELED if it still waits to be started."""
        self._launcher.recall(launch_id)
        self._ticks.at_end(self._flush, START)

    def _continue(self) -> None:
        """Continue the launcher if it was stopped."""
        if self._launcher.keep_going():
            log.warn("the launcher was stopped by a signal; the worker has continued it")
        again = self._owners and self._launcher.fileno() >= 0
        self._check = self._reactor.callLater(STOPPED_CHECK_S, self._continue) if again else None

    def close(self) -> None:
        """End the launcher and all programs, without reports."""
        self._forks.close()
        if self._check is not None:
            self._check.cancel()
            self._check = None
        self._owners.clear()
        self._started.clear()
        if self._launcher.fileno() >= 0:
            self._reactor.removeReader(self)
            self._reactor.removeWriter(self)
            self._launcher.close()

    def _flush(self) -> None:
        if self._launcher.fileno() < 0:
            return
        try:
            if not self._launcher.flush():
                self._reactor.addWriter(self)
        except LauncherDiedError as error:
            self._replace(error)

    def _report(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, ProgramFailed) and self._forks.failed(event.launch_id):
                continue
            if isinstance(event, ProgramExited | ProgramFailed):
                self._started.pop(event.launch_id, None)
                ended = self._owners.pop(event.launch_id, None)
                if ended is not None:
                    ended(event)
                continue
            for number in self._forks.started(event.launch_id):
                self.kill(event.launch_id, number)
            if event.launch_id in self._started:
                self._started.pop(event.launch_id)(event.pid)

    def _replace(self, error: LauncherDiedError) -> None:
        log.error("the worker kills all programs and starts another launcher: {error}", error=error)
        self._reactor.removeReader(self)
        self._reactor.removeWriter(self)
        self._forks.close()
        self._launcher.kill_descendants()
        self._launcher = self._start_launcher()
        self._reactor.addReader(self)
        self._started.clear()
        orphans, self._owners = self._owners, {}
        for launch_id, ended in orphans.items():
            ended(ProgramExited(launch_id, 9, 0.0, 0.0, 0.0, 0))

    # --- what the reactor calls -------------------------------------------------------------------

    def fileno(self) -> int:
        return self._launcher.fileno()

    def logPrefix(self) -> str:
        return "launcher"

    def doRead(self) -> None:
        try:
            events = self._launcher.receive()
        except LauncherDiedError as error:
            self._replace(error)
        else:
            self._report(events)

    def doWrite(self) -> None:
        try:
            if self._launcher.flush():
                self._reactor.removeWriter(self)
        except LauncherDiedError as error:
            self._replace(error)

    def connectionLost(self, reason: TwistedFailure) -> None:
        """Called at shutdown; `close` does the work."""
