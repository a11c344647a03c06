"""Listens and connects at an abstract UNIX socket, for clients on the host of a memory server.

A client sends its token to the process at the socket, so it first checks that this is the server:
it must be on the same host, started by the same boot, and belong to the user whom the server has
reported to the master. An abstract name ends with its socket, and each network namespace has its
own names; a client that does not find the server there uses TCP.
"""

from __future__ import annotations

import os
import secrets
import socket
import struct
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from ciel.core.errors import CielError

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_CREDENTIALS: Final = struct.Struct("iII")  # of SO_PEERCRED: process, user, group
_TEXT_MAX_LENGTH: Final = 100  # the kernel allows 107 for a name
_BACKLOG: Final = 128


class LocalAddressError(CielError, OSError):
    """A local address is malformed."""


class LocalAddress(NamedTuple):
    """The name of an abstract socket, the user of its server, and the boot of its host."""

    name: str
    user: int
    boot: str

    @classmethod
    def parse(cls, value: Any) -> LocalAddress | None:
        """Decode what `_asdict` returns, from a peer; None stays None. Raise LocalAddressError."""
        if value is None:
            return None
        match value:
            case {"name": str(name), "user": int(user), "boot": str(boot)} if (
                all(0 < len(text) <= _TEXT_MAX_LENGTH for text in (name, boot))
                and all(text.isascii() and text.isprintable() for text in (name, boot))
                and 0 <= user < 1 << 32
            ):
                return cls(name, user, boot)
        raise LocalAddressError("a local address has a name, a user and a boot id")

    def connect(self, timeout_s: float) -> socket.socket | None:
        """Return a connection to the server, or None if it is not reachable here."""
        if self.boot != _boot_id():
            return None
        connected = socket.socket(socket.AF_UNIX)
        try:
            connected.settimeout(timeout_s)
            connected.connect(f"\0{self.name}")
            raw = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            if _CREDENTIALS.unpack(raw)[1] == self.user:
                return connected
        except OSError:  # another network namespace, or the server has ended
            pass
        connected.close()
        return None


def listen() -> tuple[socket.socket, LocalAddress]:
    """Listen at a random name, which only peers that get it from the master can guess."""
    name = f"ciel-memory-{secrets.token_hex(16)}"
    listening = socket.socket(socket.AF_UNIX)
    try:
        listening.bind(f"\0{name}")
        listening.listen(_BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening, LocalAddress(name, os.geteuid(), _boot_id())


@cache
def _boot_id() -> str:
    return _BOOT_ID.read_text(encoding="ascii").strip()
