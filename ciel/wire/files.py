"""How a file is told to another process that may see it, too: then nothing needs to be sent.

Whoever reads finds out by itself whether it is on the same host: a file of that name must be there,
and be that very file.
"""

from __future__ import annotations

import os
from typing import Final

FILE_HEADER: Final = "X-Ciel-File"
"""Of an answer to `HEAD /data/<id>`: the file that holds the object; empty if there is none."""


def file_identity(path: str) -> str:
    """Return what tells a file from any other: device, inode, time of its making, and its path."""
    try:
        found = os.stat(path)
    except OSError:
        return ""
    return f"{found.st_dev}:{found.st_ino}:{found.st_mtime_ns}:{path}"


def open_identified(identity: str) -> int | None:
    """Return a descriptor of the file, open for reading; None if it is not here, or another."""
    path = identity.split(":", 3)[-1]
    if not path.startswith("/"):
        return None
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    # Its memory may serve another object once nobody has it open. So it is looked for once more, by
    # its name: if it is that now, it has been so ever since we had it open, and will be.
    found = os.fstat(fd)
    is_it = f"{found.st_dev}:{found.st_ino}:{found.st_mtime_ns}:{path}" == identity
    if is_it and file_identity(path) == identity:
        return fd
    os.close(fd)
    return None
