"""Names of the sockets of a block store's daemon.

    DIRECTORY/shmd/socket      in the block store's directory (CIB-10), for programs
    @ciel-shmd-GROUP-MEMBER    an abstract name, for peers: the other daemons of the group

The stores of one cluster form a group, because an id denotes the same object only within one
cluster. The kernel removes an abstract name when the process that has bound it ends, also if it is
killed. This module accesses no files or sockets.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final
from urllib.parse import quote

SOCKET_PATH_MAX_BYTES: Final = 107
"""Capacity of `sockaddr_un`, without the byte that ends a path or starts an abstract name."""

SHMD_DIRECTORY: Final = "shmd"
SOCKET: Final = "socket"
STORE: Final = "store-"

_PREFIX: Final = "ciel-shmd-"
_DIGEST_BYTES: Final = 8
_WORKER: Final = "worker-"
_MEMBER_MAX_LENGTH: Final = SOCKET_PATH_MAX_BYTES - len(_PREFIX) - 2 * _DIGEST_BYTES - 1


def group_prefix(group: str, user_id: int, mount_space: str) -> str:
    """Return the prefix of the names of a group's daemons. Each user and each mount namespace has
    separate groups: a process that sees other files cannot use the paths in answers.
    """
    return f"{_PREFIX}{_digest(group, str(user_id), mount_space)}-"


def member_of_worker(netloc: str) -> str:
    """Return the name of the daemon of the worker that serves at `HOST:PORT`."""
    name = _WORKER + quote(netloc, safe=":[]")
    return name if len(name) <= _MEMBER_MAX_LENGTH else _WORKER + _digest(netloc)


def member_of_store(real_path: str) -> str:
    """Return the name of the daemon of a store without a worker, by the path of its directory."""
    return STORE + _digest(real_path)


def fits_socket(path: str) -> bool:
    """Return whether this path fits into a socket address."""
    return len(path.encode("utf-8", "surrogateescape")) <= SOCKET_PATH_MAX_BYTES


def path_through(directory_fd: int, name: str) -> str:
    """Return a short path of an entry of an open directory, however deep the directory is."""
    return f"/proc/self/fd/{directory_fd}/{name}"


def _digest(*words: str) -> str:
    text = "\0".join(words).encode("utf-8", "surrogateescape")
    return blake2b(text, digest_size=_DIGEST_BYTES).hexdigest()
