"""The launcher on the reactor: requests leave once a turn, events come in as they happen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
    ProgramStarted,
)
from ciel.net.turns import Turns

log = Logger()

Ended = Callable[[ProgramExited | ProgramFailed], None]


@implementer(IReadDescriptor, IWriteDescriptor)
class Launching:
    """Starts programs for one owner and tells it of each one's end, exactly once.

    A launcher that died takes its programs with it: what is left of them is killed, their ends are
    told as failures, and a new launcher is started.
    """

    def __init__(self, reactor: Any, turns: Turns, environ: Mapping[str, str]) -> None:
        self._reactor = reactor
        self._turns = turns
        self._environ = dict(environ)
        self._owners: dict[int, Ended] = {}
        self._started: dict[int, Callable[[int], None]] = {}
        self._next_id = 0
        self._launcher = Launcher.start_process(self._environ)
        reactor.addReader(self)

    def start(
        self, spec: LaunchSpec, ended: Ended, started: Callable[[int], None] | None = None
    ) -> int:
        """Start a program; `started` is called with its process id, `ended` when nothing of it runs
        any more. Raises LaunchSpecError.
        """
        self._next_id += 1
        self._launcher.start(self._next_id, spec)
        self._owners[self._next_id] = ended
        if started is not None:
            self._started[self._next_id] = started
        self._turns.at_end(self._flush)
        return self._next_id

    def kill(self, launch_id: int, signal_number: int) -> None:
        """Send a signal to a program's process group; SIGKILL reaches all that it started."""
        self._launcher.kill(launch_id, signal_number)
        self._turns.at_end(self._flush)

    def recall(self, launch_id: int) -> None:
        """Have a program that still waits fail with ECANCELED; one that has begun goes on."""
        self._launcher.recall(launch_id)
        self._turns.at_end(self._flush)

    def close(self) -> None:
        """End everything; nobody is told."""
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

    def _tell(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, ProgramExited | ProgramFailed):
                self._started.pop(event.launch_id, None)
                ended = self._owners.pop(event.launch_id, None)
                if ended is not None:
                    ended(event)
            elif isinstance(event, ProgramStarted) and event.launch_id in self._started:
                self._started.pop(event.launch_id)(event.pid)

    def _replace(self, error: LauncherDiedError) -> None:
        log.error("the launcher died, its programs are killed: {error}", error=error)
        self._reactor.removeReader(self)
        self._reactor.removeWriter(self)
        self._launcher.kill_descendants()
        self._launcher = Launcher.start_process(self._environ)
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
            self._tell(events)

    def doWrite(self) -> None:
        try:
            if self._launcher.flush():
                self._reactor.removeWriter(self)
        except LauncherDiedError as error:
            self._replace(error)

    def connectionLost(self, reason: TwistedFailure) -> None:
        """Called at shutdown; `close` does the work."""
