"""Errors between the daemon of a block store and its clients."""

from __future__ import annotations

from ciel.core.errors import CielError


class ShmdError(CielError):
    """Root of the errors of the daemon and its clients."""


class MessageError(ShmdError):
    """Bytes are not a message, or no message can hold a value; the connection ends."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"invalid SHMD message: {reason}")


class RequestFailedError(ShmdError):
    """The daemon answered with a failure; `code` is one of `messages.Code`."""

    def __init__(self, subject: str, code: int, reason: str) -> None:
        self.subject = subject
        self.code = code
        self.reason = reason
        super().__init__(f"{subject}: {reason}")


class DaemonGoneError(ShmdError):
    """No daemon serves the block store, or it has ended; files opened for writing are lost."""

    def __init__(self, directory: str, reason: str) -> None:
        self.directory = directory
        self.reason = reason
        super().__init__(f"the daemon of {directory}: {reason}")


class RequestTimeoutError(ShmdError):
    """A request took too long; `reason` names the cause, if known."""

    def __init__(self, directory: str, timeout_s: float, reason: str) -> None:
        self.directory = directory
        self.timeout_s = timeout_s
        self.reason = reason
        super().__init__(
            f"the daemon of {directory} has not completed the request "
            f"within {timeout_s:g} s: {reason}"
        )


class AlreadyServedError(ShmdError):
    """The block store already has a live daemon."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        super().__init__(f"{directory} already has a daemon; a block store has only one")
