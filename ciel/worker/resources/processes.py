"""Attaches running processes of this host; each becomes the root task of a new job.

The routes are those below `/control/process` of the original CIEL (docs/http.md). A client sends
the id of a process. The worker creates two FIFOs and answers with their paths; the process then
exchanges messages with the worker over them, as a program of `proc` does (docs/programs.md).
"""

from __future__ import annotations

import secrets
from typing import Any, Final

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from ciel.access.addresses import is_loopback
from ciel.access.keys import Role
from ciel.core.errors import CielError
from ciel.core.ids import JobId
from ciel.net.errors import HttpError
from ciel.net.http import Answer, Request, Route, Routes
from ciel.worker.interactive.attached import AttachedProcess, AttachRefusedError
from ciel.worker.interactive.channel import ProgramChannel
from ciel.worker.operations import Operations

PROTOCOL: Final = "json"
"""The only protocol: frames of JSON, as for programs of `proc`."""
ATTACHED_MAX: Final = 256
"""Attached processes at a time; each takes three descriptors."""
_EXPECTED: Final = f'the body: expected [PID, "{PROTOCOL}"]'


class _Processes(Route):
    def __init__(self, reactor: Any, operations: Operations) -> None:
        self._reactor = reactor
        self._operations = operations

    def role_for(self, method: str) -> Role:
        return Role.READ if method in ("GET", "HEAD") else Role.SUBMIT


class Processes(_Processes):
    """Lists the ids of attached processes, and attaches another one."""

    def render_GET(self, request: Request) -> Answer:
        return request.reply([attached.id for attached, _ in self._operations.attached()])

    def render_POST(self, request: Request) -> Answer:
        if not _is_from_here(request):
            raise HttpError(403, "only a client on this host can attach a process")
        pid = _asked_pid(request.json())
        if len(self._operations.attached()) >= ATTACHED_MAX:
            raise HttpError(503, f"{ATTACHED_MAX} processes are attached here; end or cancel some")
        try:
            attached = AttachedProcess(self._reactor, pid, JobId(secrets.token_hex(16)))
        except AttachRefusedError as error:
            raise HttpError(error.status, str(error)) from None
        return self._attach(request, attached)

    def _attach(self, request: Request, attached: AttachedProcess) -> Deferred[bytes]:
        try:
            done = self._operations.attach(attached)
        except OSError as error:
            attached.close()
            raise HttpError(500, f"the FIFOs cannot be created: {error.strerror}") from None

        def answer(_: Any) -> bytes:
            for known, channel in self._operations.attached():
                if known is attached:
                    return request.reply(_facts(attached, channel))
            raise HttpError(404, f"{attached.name} has ended")

        def refused(failure: Failure) -> bytes:
            failure.trap(CielError)
            raise HttpError(503, failure.getErrorMessage())

        return done.addCallbacks(answer, refused)


class ProcessById(_Processes):
    """Describes an attached process."""

    def render_GET(self, request: Request) -> Answer:
        for attached, channel in self._operations.attached():
            if attached.id == request.params["id"]:
                return request.reply(_facts(attached, channel))
        raise HttpError(404, "no process with that id is attached to this worker")


def _asked_pid(body: Any) -> int:
    match body:
        case [int(pid), str(protocol)] if not isinstance(pid, bool) and 0 < pid < 1 << 31:
            if protocol != PROTOCOL:
                raise HttpError(400, f"{_EXPECTED}; there is no protocol {protocol!r:.40}")
            return pid
    raise HttpError(400, _EXPECTED)


def _is_from_here(request: Request) -> bool:
    """Whether a client on this host sent a request.

    Its address is then a loopback address, or the same as the address that it connected to.
    """
    peer, own = request.getClientAddress(), request.getHost()
    host = getattr(peer, "host", "").removeprefix("::ffff:")
    return is_loopback(host) or (bool(host) and host == own.host.removeprefix("::ffff:"))


def _facts(attached: AttachedProcess, channel: ProgramChannel) -> dict[str, Any]:
    _, to_worker, _, from_worker = channel.arguments
    return {
        "id": attached.id, "protocol": PROTOCOL, "pid": attached.pid, "job_id": attached.job,
        "to_worker_fifo": to_worker, "from_worker_fifo": from_worker,
    }  # fmt: skip


def add_processes(routes: Routes, reactor: Any, operations: Operations) -> None:
    """Add the routes of this module."""
    routes.add("/control/process", Processes(reactor, operations))
    routes.add("/control/process/{id}", ProcessById(reactor, operations))
