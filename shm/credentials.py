"""The user and the mount namespace that a daemon serves: its own."""

from __future__ import annotations

import os
import socket
import struct

from ciel.shm.layout import group_prefix, member_of_worker

_CREDENTIALS = struct.Struct("iII")  # process, user, group


def is_same_user(sock: socket.socket) -> bool:
    """Return whether the process at the other end belongs to this user."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(raw)[1] == os.geteuid())


def own_prefix(group: str) -> str:
    """Return the prefix of the names of a group's daemons, in this process's mount namespace."""
    return group_prefix(group, os.geteuid(), os.readlink("/proc/self/ns/mnt"))


def core_prefix(group: str) -> str:
    """Return the prefix of the names of a group's daemons that are cores of the same memory."""
    return group_prefix(group, os.geteuid(), "")


def socket_of_worker(group: str, netloc: str) -> str:
    """Return the abstract name, without its zero byte, of the daemon of a worker of this host."""
    return own_prefix(group) + member_of_worker(netloc)
