"""What goes wrong between a daemon of a block store and those who ask it."""

from __future__ import annotations

from ciel.core.errors import CielError


class ShmdError(CielError):
    """Root of the errors of the daemon and its clients."""


class MessageError(ShmdError):
    """Bytes that are no message, or a value that makes none. The connection is of no more use."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"no message of SHMD: {reason}")


class RequestFailedError(ShmdError):
    """The daemon answered that it cannot; `code` is one of `messages.Code`."""

    def __init__(self, subject: str, code: int, reason: str) -> None:
        self.subject = subject
        self.code = code
        self.reason = reason
        super().__init__(f"{subject}: {reason}")


class DaemonGoneError(ShmdError):
    """Nobody serves the block store, or whoever did has ended; what was lent is lost."""

    def __init__(self, directory: str, reason: str) -> None:
        self.directory = directory
        self.reason = reason
        super().__init__(f"the daemon of {directory}: {reason}")


class RequestTimeoutError(ShmdError):
    """It was not done in time; the reason says what it waited for, as far as that is known."""

    def __init__(self, directory: str, timeout_s: float, reason: str) -> None:
        self.directory = directory
        self.timeout_s = timeout_s
        self.reason = reason
        super().__init__(f"the daemon of {directory}: not within {timeout_s:g} s: {reason}")


class AlreadyServedError(ShmdError):
    """The block store has a daemon, which lives."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        super().__init__(f"{directory} has a daemon already; a block store has one")
