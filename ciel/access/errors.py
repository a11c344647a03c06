"""What can be wrong at the door. Every message is one clear line and never holds a key."""

from pathlib import Path


class AccessError(Exception):
    """Root of this room's errors."""


class AccessDeniedError(AccessError):
    """No key, or not one that opens this door."""


class MalformedKeyError(AccessError):
    """A text is not a key. The text is not repeated, since it may be most of one."""

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
    """A setting has no meaning; `origin` says where it was made, down to the line if in a file."""

    def __init__(self, origin: str, reason: str) -> None:
        super().__init__(f"{origin}: {reason}")
        self.origin = origin
        self.reason = reason


class UnsafeListenError(AccessError):
    """Listening on `host` would open the door to the network with a key nobody has seen yet."""

    def __init__(self, host: str) -> None:
        super().__init__(
            f"will not listen on {host or 'every address'}: beyond loopback a key must exist "
            "already; start once on 127.0.0.1 with the same --state, or say --new-key"
        )
        self.host = host
