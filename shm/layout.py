"""Names and arithmetic of the daemon of a block store: where its sockets lie, and under which name
its siblings on this host find it.

    DIRECTORY/shmd/socket      in the block store's directory (CIB-10), for programs
    @ciel-shmd-GROUP-MEMBER    an abstract name, for siblings: the daemons of one group

A group is a cluster: an id means the same object only within one. An abstract name is gone with the
process that had it, however that ended. Nothing here touches a file or a socket.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final
from urllib.parse import quote

SOCKET_PATH_MAX_BYTES: Final = 107
"""What `sockaddr_un` holds, less the byte that ends a path, or begins an abstract name."""

SHMD_DIRECTORY: Final = "shmd"
SOCKET: Final = "socket"
STORE: Final = "store-"

_PREFIX: Final = "ciel-shmd-"
_DIGEST_BYTES: Final = 8
_WORKER: Final = "worker-"
_MEMBER_MAX_LENGTH: Final = SOCKET_PATH_MAX_BYTES - len(_PREFIX) - 2 * _DIGEST_BYTES - 1


def group_prefix(group: str, user_id: int, mount_space: str) -> str:
    """Return what the names of a group's daemons begin with. Each user has groups of its own, and
    so has each view of the files: who sees other files cannot follow a path that it is told.
    """
    return f"{_PREFIX}{_digest(group, str(user_id), mount_space)}-"


def member_of_worker(netloc: str) -> str:
    """Name the daemon of the worker that serves at `HOST:PORT`."""
    name = _WORKER + quote(netloc, safe=":[]")
    return name if len(name) <= _MEMBER_MAX_LENGTH else _WORKER + _digest(netloc)


def member_of_store(real_path: str) -> str:
    """Name the daemon of a block store that has no worker, by the path of its directory."""
    return STORE + _digest(real_path)


def fits_socket(path: str) -> bool:
    """Whether a socket can be bound or connected to by this name."""
    return len(path.encode("utf-8", "surrogateescape")) <= SOCKET_PATH_MAX_BYTES


def path_through(directory_fd: int, name: str) -> str:
    """Name an entry of an open directory in few bytes, however deep it lies."""
    return f"/proc/self/fd/{directory_fd}/{name}"


def _digest(*words: str) -> str:
    text = "\0".join(words).encode("utf-8", "surrogateescape")
    return blake2b(text, digest_size=_DIGEST_BYTES).hexdigest()
