"""Processes that are attached to this worker, which has not started them.

The worker checks each once, watches it until it ends, and sends it no signal. It holds a descriptor
of each (pidfd), which stays valid if the process id is reused.
"""

from __future__ import annotations

import os
import re
import select
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from twisted.internet.interfaces import IReadDescriptor
from twisted.python.failure import Failure as TwistedFailure
from zope.interface import implementer

from ciel.core.errors import CielError
from ciel.core.ids import JobId, attached_process_id
from ciel.execution.report import visible

_UIDS = re.compile(r"^Uid:\t(\d+)\t(\d+)\t", re.MULTILINE)  # real, effective


class AttachRefusedError(CielError):
    """A process cannot be attached. `status`: the HTTP status."""

    def __init__(self, pid: int, status: int, reason: str) -> None:
        self.pid = pid
        self.status = status
        super().__init__(f"process {pid} {reason}")


class Left(NamedTuple):
    """How an attached process has left, in words that follow `it`."""

    how: str


ENDED = Left("ended")
CUT_OFF = Left("was cut off")


@implementer(IReadDescriptor)
class AttachedProcess:
    """A process of this user and host, for the root task of a job. Raises AttachRefusedError."""

    def __init__(self, reactor: Any, pid: int, job: JobId) -> None:
        self._reactor = reactor
        self._left: Callable[[Left], None] | None = None
        self._is_leaving = False
        self.pid = pid
        self.job = job
        self.id = attached_process_id(job)
        self._descriptor = _open(pid)
        try:
            self.name = _name_of(pid)
            if self._has_ended:  # the checked process may have been another of the same id
                raise AttachRefusedError(pid, 404, "has ended")
        except BaseException:
            self.close()
            raise

    def watch(self, left: Callable[[Left], None]) -> None:
        """Call `left` once when the process has ended or was cut off."""
        self._left = left
        self._reactor.addReader(self)

    def cut_off(self) -> None:
        """Detach the process; that is reported soon, as its end would be."""
        if not self._is_leaving:
            self._is_leaving = True
            self._reactor.callLater(0, self._leave)

    def close(self) -> None:
        """Stop watching, without a report."""
        self._left = None
        if self._descriptor >= 0:
            self._reactor.removeReader(self)
            os.close(self._descriptor)
            self._descriptor = -1

    @property
    def _has_ended(self) -> bool:
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        return bool(poll.poll(0))

    def _leave(self) -> None:
        if self._left is not None:
            left, how = self._left, ENDED if self._has_ended else CUT_OFF
            self.close()
            left(how)

    # --- what the reactor calls -------------------------------------------------------------------

    def fileno(self) -> int:
        return self._descriptor

    def logPrefix(self) -> str:  # noqa: N802  # Twisted's name
        return self.name

    def doRead(self) -> None:  # noqa: N802  # Twisted's name
        self._leave()

    def connectionLost(self, reason: TwistedFailure) -> None:  # noqa: N802  # Twisted's name
        self._leave()


def _open(pid: int) -> int:
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise AttachRefusedError(pid, 404, "does not exist on this host") from None
    except OSError as error:  # for example, it is a thread
        why = f"cannot be watched: {error.strerror}"
        raise AttachRefusedError(pid, 400, why) from None


def _name_of(pid: int) -> str:
    """Check that a process may be attached; return its name for people."""
    if pid == os.getpid():
        raise AttachRefusedError(pid, 400, "is this worker; attach another process")
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            found = _UIDS.search(file.read())
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            name = visible(file.read().strip())
    except OSError:
        raise AttachRefusedError(pid, 404, "has ended") from None
    if found is None or {int(uid) for uid in found.groups()} != {os.geteuid()}:
        raise AttachRefusedError(pid, 403, "belongs to another user than this worker")
    with suppress(OSError):  # a process whose namespaces cannot be read is accepted
        if os.readlink(f"/proc/{pid}/ns/mnt") != os.readlink("/proc/self/ns/mnt"):
            why = "is in another mount namespace, so it could not open this worker's files"
            raise AttachRefusedError(pid, 400, why)
    return f"process {pid} ({name})"
