"""Checks whether an address of this host is free for a master, and which program uses it."""

from __future__ import annotations

import os
import socket
from errno import EADDRINUSE

from ciel.access import access_file
from ciel.access.addresses import netloc
from ciel.access.errors import AccessError
from ciel.access.paths import access_path

DEFAULT_LISTEN = "127.0.0.1:8000"
"""The default address of a master."""


def is_free(host: str, port: int) -> bool:
    """Whether the address is free; raises UsageError if it is not an address of this host."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == EADDRINUSE:
                return False
            from ciel.cli.outcome import UsageError  # with the client, which no master needs

            raise UsageError(f"--listen {netloc(host, port)}: {error.strerror}") from None
        return True


def who_listens(host: str, port: int) -> str:
    """Return which program listens at an address, for a message."""
    try:
        found = access_file.read(access_path(os.environ, host, port))
    except AccessError:
        return "another program"
    return f"a ciel master (process {found.pid})" if found.is_alive() else "another program"
