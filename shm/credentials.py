"""Checks the user of the peer of a UNIX socket: only processes of one user serve each other."""

from __future__ import annotations

import os
import socket
import struct

_CREDENTIALS = struct.Struct("iII")  # process, user, group


def is_same_user(sock: socket.socket) -> bool:
    """Return whether the peer connected, or listens, as a process of this user."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(raw)[1] == os.geteuid())
