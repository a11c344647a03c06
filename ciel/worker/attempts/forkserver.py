"""Programs that a preloaded parent forks, for the launcher to adopt (docs/adr/0052).

The parent is a program like any other, with a socket as its standard input. It is asked there for a
program, and answers with the number of a process that is all that the program should be, and waits
for the launcher:

    ask ──▶ [id, pid] ──▶ adopt ──▶ started
      └──────┴── [id, 0], silence, its end ──▶ an ordinary start, of which nobody needs to know

The first program of a worker is started as ever; the parent begins with the second.
"""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

from twisted.internet.interfaces import IReadDescriptor
from twisted.logger import Logger
from twisted.python.failure import Failure as TwistedFailure
from zope.interface import implementer

from ciel.launch.messages import (
    DEV_NULL,
    Descriptor,
    File,
    LaunchSpec,
    Limits,
    ProgramExited,
    ProgramFailed,
    Standard,
)
from ciel.net.turns import DelayedCall

SILENCE_MAX_S = 10.0
"""A parent that has not answered for so long hangs. It starts in 0.05 s, unless a disk is slow."""
_MESSAGE_BYTES = 256  # an answer is two numbers

log = Logger()


class ForksOwner(Protocol):
    """Who launches. A launch that was asked for here is told of by the same means as all others."""

    def start(self, spec: LaunchSpec, ended: Callable[[Any], None]) -> int: ...

    def start_anew(self, launch_id: int, spec: LaunchSpec, signals: list[int]) -> None:
        """Start as ever what could not be forked, and send it the signals that it missed."""

    def adopt(self, launch_id: int, parent_id: int, pid: int) -> None: ...

    def kill(self, launch_id: int, signal_number: int) -> None: ...


class _Asked:
    """A launch that has not been answered; `is_forked`: but by the parent, so the launcher will."""

    def __init__(self, spec: LaunchSpec) -> None:
        self.spec = spec
        self.signals: list[int] = []
        self.is_forked = False


@implementer(IReadDescriptor)
class Forks:
    """One preloaded parent at most, and what was asked of it."""

    def __init__(self, reactor: Any, owner: ForksOwner) -> None:
        self._reactor = reactor
        self._owner = owner
        self._asked: dict[int, _Asked] = {}
        self._link: socket.socket | None = None
        self._parent: LaunchSpec | None = None
        self._parent_id = 0  # while it runs
        self._is_needed = False  # there was a program before
        self._is_hopeless = False
        self._has_answered = False
        self._due: DelayedCall | None = None

    @property
    def parent_count(self) -> int:
        """How many parents the launcher runs."""
        return 1 if self._parent_id else 0

    def ask(self, launch_id: int, spec: LaunchSpec, parent: LaunchSpec) -> bool:
        """Have a program be forked; False if it must be started as ever."""
        if not self._is_needed or self._is_hopeless:
            self._is_needed = True
            return False
        try:
            request = encode_fork(launch_id, spec)
            if request is None or not self._has_parent(parent):
                return False
            assert self._link is not None
            self._link.send(request)
        except OSError:  # it is full, or ends
            return False
        self._asked[launch_id] = _Asked(spec)
        if self._due is None or not self._due.active():
            self._listen_for_silence()
        return True

    def keep_signal(self, launch_id: int, number: int) -> bool:
        """Send a signal once there is a process for it; False if there is one."""
        asked = self._asked.get(launch_id)
        if asked is not None:
            asked.signals.append(number)
        return asked is not None

    def started(self, launch_id: int) -> list[int]:
        """A program runs: return what signals it has missed."""
        asked = self._asked.pop(launch_id, None)
        return [] if asked is None else asked.signals

    def failed(self, launch_id: int) -> bool:
        """A launch has failed; True if that was an adoption, and a start is tried now."""
        asked = self._asked.pop(launch_id, None)
        if asked is not None:
            self._owner.start_anew(launch_id, asked.spec, asked.signals)
        return asked is not None

    def close(self) -> None:
        """Forget the parent and what it was asked: the launcher is gone."""
        self._asked.clear()
        self._parent_id = 0
        self._cut()

    # --- the parent -------------------------------------------------------------------------------

    def _has_parent(self, parent: LaunchSpec) -> bool:
        """Start it unless it runs; False if it is another, or about to end."""
        if self._parent_id:
            same = self._parent
            return self._link is not None and same is not None and _is_same(same, parent)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        with theirs:
            spec = replace(parent, stdin=Descriptor(theirs.fileno()))
            self._parent_id = self._owner.start(spec, self._parent_ended)
        self._parent, self._link, self._has_answered = parent, ours, False
        self._reactor.addReader(self)
        return True

    def _parent_ended(self, event: ProgramExited | ProgramFailed) -> None:
        """Nothing of it runs, nor of what was not adopted."""
        if event.launch_id != self._parent_id:
            return  # another launcher's
        self._parent_id = 0
        self._cut()
        if isinstance(event, ProgramExited) and event.exit_status and not self._has_answered:
            self._is_hopeless = True  # it would not be better the next time
            log.warn("programs are not forked: their parent could not begin")
        for launch_id in [n for n, asked in self._asked.items() if not asked.is_forked]:
            self.failed(launch_id)

    def _cut(self) -> None:
        if self._link is not None:
            self._reactor.removeReader(self)
            self._link.close()
            self._link = None
        self._listen_for_silence()

    def _listen_for_silence(self) -> None:
        """Begin to wait for its next answer, if there is to be one."""
        if self._due is not None and self._due.active():
            self._due.cancel()
        is_due = self._link is not None and any(not a.is_forked for a in self._asked.values())
        self._due = self._reactor.callLater(SILENCE_MAX_S, self._silent) if is_due else None

    def _silent(self) -> None:
        log.warn("the parent of programs hangs: it is killed")
        self._is_hopeless = not self._has_answered  # another one would not do better
        self._owner.kill(self._parent_id, signal.SIGKILL)
        self._cut()

    # --- what the reactor calls -------------------------------------------------------------------

    def fileno(self) -> int:
        return -1 if self._link is None else self._link.fileno()

    def logPrefix(self) -> str:
        return "forks"

    def doRead(self) -> None:
        assert self._link is not None
        try:
            answer = self._link.recv(_MESSAGE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            answer = b""
        if not answer:
            self._cut()  # its end will be told
            return
        self._has_answered = True
        launch_id, pid = json.loads(answer)
        asked = self._asked.get(launch_id)
        if asked is None:
            return
        if pid:
            asked.is_forked = True
            self._owner.adopt(launch_id, self._parent_id, pid)
        else:
            self.failed(launch_id)
        self._listen_for_silence()

    def connectionLost(self, reason: TwistedFailure) -> None:
        """Called at shutdown; `close` does the work."""


def encode_fork(launch_id: int, spec: LaunchSpec) -> bytes | None:
    """Return a request to the parent; None if it does not make such programs."""
    if (spec.stdin, spec.limits, spec.at_most) != (DEV_NULL, Limits(), 0):
        return None
    stderr = spec.stdout if spec.stderr is Standard.STDOUT else spec.stderr
    paths = [file.path for file in (spec.stdout, stderr) if isinstance(file, File) and file.append]
    if len(paths) != 2:
        return None
    try:
        request = json.dumps([launch_id, list(spec.argv), spec.cwd, *paths, dict(spec.env)])
    except TypeError:  # bytes, or paths
        return None
    return None if "\\u0000" in request else request.encode()  # a start says what is wrong


def _is_same(one: LaunchSpec, other: LaunchSpec) -> bool:
    return (one.argv, one.env) == (other.argv, other.env)
