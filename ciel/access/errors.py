"""The errors of authentication. Every message is one line and never contains a key."""

from pathlib import Path


class AccessError(Exception):
    """Root of the errors of `ciel.access`."""


class AccessDeniedError(AccessError):
    """A key is missing or invalid."""


class MalformedKeyError(AccessError):
    """A text is not a key. The message does not quote the text: it may contain most of a key."""

    def __init__(self) -> None:
        super().__init__("not a key: expected 64 hexadecimal digits, or ROLE- and 64 of them")


class AccessFileError(AccessError):
    """The access file at `path` cannot be trusted, read or written."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"access file {path}: {reason}")
        self.path = path
        self.reason = reason


class AccessFileMissingError(AccessFileError):
    """There is no access file at `path`."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "no such file")


class SettingsError(AccessError):
    """A setting is invalid; `origin` is the flag, variable, or line of a file that contains it."""

    def __init__(self, origin: str, reason: str) -> None:
        super().__init__(f"{origin}: {reason}")
        self.origin = origin
        self.reason = reason


class UnsafeListenError(AccessError):
    """Listening on `host` would expose a master to the network with a key that no user has yet."""

    def __init__(self, host: str) -> None:
        super().__init__(
            f"will not listen on {host or 'every address'}: other hosts can reach it, and this "
            "master has no key yet; start once on 127.0.0.1 with the same --state, or use "
            "--new-key"
        )
        self.host = host
