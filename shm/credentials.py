"""Who is at the other end of a UNIX socket. Only processes of one user serve each other."""

from __future__ import annotations

import os
import socket
import struct

_CREDENTIALS = struct.Struct("iII")  # process, user, group


def is_same_user(sock: socket.socket) -> bool:
    """Whether the other end was connected, or is listened to, by a process of this user."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(raw)[1] == os.geteuid())
