"""Identifies files to other processes on the same host, which can then read them directly.

The reader checks whether it is on the same host: the path must exist there and lead to the same
file.
"""

from __future__ import annotations

import os
from typing import Final

FILE_HEADER: Final = "X-Ciel-File"
"""The header that gives the identity of an object's file in a response to `HEAD /data/<id>`, or the
place of an object that is in no file. It is empty if the object has neither."""


def file_identity(path: str) -> str:
    """Return a file's identity: device, inode, modification time and path."""
    try:
        found = os.stat(path)
    except OSError:
        return ""
    return f"{found.st_dev}:{found.st_ino}:{found.st_mtime_ns}:{path}"


def scheme_of(identity: str) -> str | None:
    """Return the scheme of a place (`ObjectReader.place`), None for the identity of a file."""
    scheme, colon, _ = identity.partition(":")
    return scheme if colon and scheme.isalpha() else None


def open_identified(identity: str) -> int | None:
    """Open the file for reading; None if it does not exist here, or is another file."""
    path = identity.split(":", 3)[-1]
    if not path.startswith("/"):
        return None
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    # The store may reuse the file's memory for another object while no process has it open. So
    # check what is at the path now, with the file open: if the identity is unchanged, the store
    # cannot reuse the file before we close it.
    found = os.fstat(fd)
    is_it = f"{found.st_dev}:{found.st_ino}:{found.st_mtime_ns}:{path}" == identity
    if is_it and file_identity(path) == identity:
        return fd
    os.close(fd)
    return None
