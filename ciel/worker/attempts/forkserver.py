"""Has a preloaded parent fork interactive programs, which the launcher adopts (docs/adr/0052).

The parent is an ordinary program with a socket as its standard input. It receives requests for
programs there. It forks a process that has everything the program needs and waits for the launcher,
and answers with the process id:

    ask ──▶ [id, pid] ──▶ adopt ──▶ started
      └──────┴── [id, 0], no answer, its end ──▶ an ordinary start; the caller does not notice

The first program of a worker is started in the ordinary way. The second one starts the parent.
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
from ciel.net.ticks import DelayedCall

SILENCE_MAX_S = 10.0
"""The worker kills a parent that does not answer within this time.

A parent starts in 0.05 s, unless a disk is slow.
"""
_MESSAGE_BYTES = 256  # an answer is two numbers

log = Logger()


class ForksOwner(Protocol):
    """The launcher. It reports forked programs as it reports all others."""

    def start(self, spec: LaunchSpec, ended: Callable[[Any], None]) -> int: ...

    def start_anew(self, launch_id: int, spec: LaunchSpec, signals: list[int]) -> None:
        """Start a program that could not be forked, and send it the signals that it missed."""

    def adopt(self, launch_id: int, parent_id: int, pid: int) -> None: ...

    def kill(self, launch_id: int, signal_number: int) -> None: ...


class _Pending:
    """A pending request. `is_forked`: the parent has answered, and the launcher has not."""

    def __init__(self, spec: LaunchSpec) -> None:
        self.spec = spec
        self.signals: list[int] = []
        self.is_forked = False


@implementer(IReadDescriptor)
class Forks:
    """At most one preloaded parent, and the requests that it has not completed."""

    def __init__(self, reactor: Any, owner: ForksOwner) -> None:
        self._reactor = reactor
        self._owner = owner
        self._pending: dict[int, _Pending] = {}
        self._link: socket.socket | None = None
        self._parent: LaunchSpec | None = None
        self._parent_id = 0  # while it runs
        self._is_needed = False  # a program was started before
        self._is_hopeless = False  # the parent could not start, or hung: no other one is started
        self._has_answered = False
        self._due: DelayedCall | None = None

    @property
    def parent_count(self) -> int:
        """How many parents the launcher runs."""
        return 1 if self._parent_id else 0

    def ask(self, launch_id: int, spec: LaunchSpec, parent: LaunchSpec) -> bool:
        """Have a program be forked; False if the caller must start it in the ordinary way."""
        if not self._is_needed or self._is_hopeless:
            self._is_needed = True
            return False
        try:
            request = encode_fork(launch_id, spec)
            if request is None or not self._has_parent(parent):
                return False
            assert self._link is not None
            self._link.send(request)
        except OSError:  # its socket is full, or it has ended
            return False
        self._pending[launch_id] = _Pending(spec)
        if self._due is None or not self._due.active():
            self._await_answer()
        return True

    def keep_signal(self, launch_id: int, number: int) -> bool:
        """Keep a signal for a program that has no process yet; False if it has one."""
        pending = self._pending.get(launch_id)
        if pending is not None:
            pending.signals.append(number)
        return pending is not None

    def started(self, launch_id: int) -> list[int]:
        """A program runs: return the signals that it has missed."""
        pending = self._pending.pop(launch_id, None)
        return [] if pending is None else pending.signals

    def failed(self, launch_id: int) -> bool:
        """A launch has failed; True if it was an adoption, and an ordinary start follows."""
        pending = self._pending.pop(launch_id, None)
        if pending is not None:
            self._owner.start_anew(launch_id, pending.spec, pending.signals)
        return pending is not None

    def close(self) -> None:
        """Forget the parent and all requests: the launcher has ended."""
        self._pending.clear()
        self._parent_id = 0
        self._cut()

    # --- the parent -------------------------------------------------------------------------------

    def _has_parent(self, parent: LaunchSpec) -> bool:
        """Start the parent unless it runs; False if another one runs, or if it is about to end."""
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
        """Note that the parent has ended, and its processes that were not adopted."""
        if event.launch_id != self._parent_id:
            return  # the event is about the parent of an earlier launcher
        self._parent_id = 0
        self._cut()
        if isinstance(event, ProgramExited) and event.exit_status and not self._has_answered:
            self._is_hopeless = True  # another one would fail, too
            log.warn(
                "programs are not forked from a preloaded parent: it ended with exit status "
                "{status} before it answered",
                status=event.exit_status,
            )
        for launch_id in [n for n, pending in self._pending.items() if not pending.is_forked]:
            self.failed(launch_id)

    def _cut(self) -> None:
        if self._link is not None:
            self._reactor.removeReader(self)
            self._link.close()
            self._link = None
        self._await_answer()

    def _await_answer(self) -> None:
        """Start to wait for the parent's next answer, if requests are pending."""
        if self._due is not None and self._due.active():
            self._due.cancel()
        is_due = self._link is not None and any(not p.is_forked for p in self._pending.values())
        self._due = self._reactor.callLater(SILENCE_MAX_S, self._kill_parent) if is_due else None

    def _kill_parent(self) -> None:
        log.warn("the parent that forks programs does not answer; the worker kills it")
        self._is_hopeless = not self._has_answered  # another one would hang, too
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
            self._cut()  # the launcher will report its end
            return
        self._has_answered = True
        launch_id, pid = json.loads(answer)
        pending = self._pending.get(launch_id)
        if pending is None:
            return
        if pid:
            pending.is_forked = True
            self._owner.adopt(launch_id, self._parent_id, pid)
        else:
            self.failed(launch_id)
        self._await_answer()

    def connectionLost(self, reason: TwistedFailure) -> None:
        """Called at shutdown; `close` does the work."""


def encode_fork(launch_id: int, spec: LaunchSpec) -> bytes | None:
    """Return a request to the parent; None if it cannot fork such a program."""
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
    return None if "\\u0000" in request else request.encode()  # an ordinary start reports why


def _is_same(one: LaunchSpec, other: LaunchSpec) -> bool:
    return (one.argv, one.env) == (other.argv, other.env)
