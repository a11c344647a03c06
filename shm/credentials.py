"""Checks which user is at the other end of a UNIX socket: daemons serve only their own user."""

from __future__ import annotations

import os
import socket
import struct

_CREDENTIALS = struct.Struct("iII")  # process, user, group


def is_same_user(sock: socket.socket) -> bool:
    """Return whether the process at the other end belongs to this user."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(raw)[1] == os.geteuid())
