"""Errors of the client. Each message is one sentence for users, followed by details."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ciel.core.errors import CielError

if TYPE_CHECKING:
    from ciel.core.refs import Failure


class ClientError(CielError):
    """Root of the errors of this package."""


# --- connecting to a master -----------------------------------------------------------------------


class NoMasterError(ClientError):
    """No master answers at `address`.

    If the address is empty, no setting names a master. `is_silent`: nothing answered, so the master
    may be stopped, or the network may be down.
    """

    def __init__(self, address: str, reason: str, *, is_silent: bool = False) -> None:
        super().__init__(f"no master at {address}: {reason}" if address else reason)
        self.address = address
        self.reason = reason
        self.is_silent = is_silent


class NotAMasterError(NoMasterError):
    """A program listens at `address`, but it is not a master."""


class AccessRefusedError(ClientError):
    """The master or this client refused the connection.

    The other side has another key, belongs to another cluster, or has another version.
    """

    def __init__(self, address: str, reason: str) -> None:
        why = reason.removeprefix("refused: ")
        super().__init__(f"connection to the master at {address} refused: {why}")
        self.address = address
        self.reason = reason


class ConnectionLostError(ClientError):
    """The connection to the master was lost."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"lost the connection to the master at {address}: {reason}")
        self.address = address
        self.reason = reason


class ClientClosedError(ClientError):
    """The client was used after `close`."""

    def __init__(self) -> None:
        super().__init__("the client is closed")


class InputsTooLargeError(ClientError):
    """A task has so many small inputs that no message can hold them."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name} cannot be submitted: {reason}")
        self.reason = reason


class ForkedError(ClientError):
    """A client or a cluster was used in a forked child."""

    def __init__(self, owner_pid: int, pid: int, what: str = "client") -> None:
        super().__init__(
            f"this {what} was created in process {owner_pid} and cannot be used in its child "
            f"{pid}; create another {what} in the child"
        )
        self.owner_pid = owner_pid


class CallbackWaitError(ClientError, RuntimeError):
    """A callback would wait for `what`, which cannot arrive before the callback has returned."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"a callback cannot wait for {what}: it runs in the thread that delivers results, so "
            "it would wait for ever. Read only results that are done, add callbacks to other "
            "futures, or wait in another thread"
        )
        self.what = what


class ForeignFutureError(ClientError, ValueError):
    """A client was given a `future` whose value it cannot read."""

    def __init__(self, future: Any, here_url: str, there_url: str | None) -> None:
        whose = "a task" if there_url is None else f"a client of another cluster ({there_url})"
        super().__init__(
            f"{future!r:.200} belongs to {whose}, so the cluster at {here_url} cannot read its "
            "value; pass the value, 'future.result()', instead of the future"
        )
        self.future = future


class ContextError(ClientError, ValueError):
    """Programs cannot run in the client's directory or environment, or in those it names."""


class QueryError(ClientError):
    """The master could not answer a query; the message is the master's."""

    def __init__(self, topic: str, reason: str) -> None:
        super().__init__(reason)
        self.topic = topic
        self.reason = reason


# --- jobs, tasks, objects -------------------------------------------------------------------------


class RequestRefusedError(ClientError):
    """The master refused a request for a job."""

    def __init__(self, job: str, reason: str) -> None:
        super().__init__(f"job {job}: the master refused a request: {reason}")
        self.job = job
        self.reason = reason


class JobEndedError(ClientError):
    """A job ended before the awaited event."""

    def __init__(self, number: int, state: str, reason: str) -> None:
        super().__init__(f"job {number} is {state}" + (f": {reason}" if reason else ""))
        self.number = number
        self.state = state
        self.reason = reason


class TaskFailedError(ClientError):
    """An object could not be produced; the text is the history of its task."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.text.rstrip() or f"{failure.id}: {failure.reason}")
        self.failure = failure

    @property
    def was_cancelled(self) -> bool:
        """Whether the task failed only because its job was cancelled."""
        return self.failure.reason == "CANCELLED"


class WaitTimeoutError(ClientError, TimeoutError):
    """The awaited event did not happen in time; the job goes on."""

    def __init__(self, what: str, timeout_s: float) -> None:
        super().__init__(f"{what} took longer than {timeout_s:.3g} s")
        self.timeout_s = timeout_s


class ObjectUnreadableError(ClientError):
    """No worker could deliver an object; `reasons` are pairs of a location and an error."""

    def __init__(self, object_id: str, reasons: Sequence[tuple[str, str]]) -> None:
        tried = "; ".join(f"{place}: {reason}" for place, reason in reasons)
        super().__init__(f"cannot read object {object_id}: {tried or 'no worker holds it'}")
        self.object_id = object_id
        self.reasons = list(reasons)


class LogUnreadableError(ClientError):
    """A worker could not deliver its part of a job's log."""

    def __init__(self, netloc: str, reason: str) -> None:
        super().__init__(f"cannot read the log on worker {netloc}: {reason}")
        self.netloc = netloc
        self.reason = reason


class OutputGoneError(ClientError):
    """A worker did not retain the output of a failed program, or has deleted it since then."""

    def __init__(self, netloc: str, reason: str) -> None:
        super().__init__(f"worker {netloc}: {reason}")
        self.netloc = netloc
        self.reason = reason


class UploadError(ClientError):
    """No worker has accepted an upload."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"cannot upload {name}: {reason}")
        self.name = name
        self.reason = reason


# --- packages and clusters ------------------------------------------------------------------------


class PackageError(ClientError):
    """A package has a fault.

    `line`: 0 if the error is about the whole file. `where`: the key, or empty.
    """

    def __init__(self, path: str, line: int, where: str, reason: str) -> None:
        place = f"{path}:{line}" if line else path
        super().__init__(f"{place}: {where}: {reason}" if where else f"{place}: {reason}")
        self.path = path
        self.line = line
        self.where = where
        self.reason = reason


class TemplateError(ClientError):
    """A result does not have the shape of the package's template."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"{where}: {reason}")
        self.where = where
        self.reason = reason


class ClusterError(ClientError):
    """A local cluster could not start, or has ended.

    The text ends with the last lines of the log that were written after `log_start_bytes`.
    """

    def __init__(self, reason: str, log: Path | None = None, log_start_bytes: int = 0) -> None:
        tail = _end_of(log, log_start_bytes) if log else ""
        super().__init__(f"{reason}; the end of {log}:\n{tail}" if tail else reason)
        self.reason = reason
        self.log = log


class ClusterOptionError(ClusterError):
    """The options of a local cluster are wrong."""


_TAIL_LINES = 10
_TAIL_BYTES = 8192


def _end_of(log: Path, start_bytes: int) -> str:
    try:
        with log.open("rb") as file:
            file.seek(max(start_bytes, log.stat().st_size - _TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return "\n".join(f"  {line}" for line in lines[-_TAIL_LINES:])
