"""Computes and records the checksums of objects; see docs/adr/0004.

A checksum is XXH3-64 in 16 hex digits. It is stored in the extended attribute `user.ciel.xxh3` of
the object's file, so it is deleted with the file and shared by its hard links. It detects
accidental damage. It does not authenticate the content.
"""

from __future__ import annotations

import os
import stat

import xxhash

ATTRIBUTE = "user.ciel.xxh3"
_CHUNK_BYTES = 2**20


def digest_of(fd: int) -> str:
    """Return the checksum of a whole file, in constant memory; the file's position is not used."""
    digest = xxhash.xxh3_64()
    buffer = memoryview(bytearray(_CHUNK_BYTES))
    offset_bytes = 0
    while count := os.preadv(fd, [buffer], offset_bytes):
        digest.update(buffer[:count])
        offset_bytes += count
    return str(digest.hexdigest())


class DigestRecords:
    """The recorded checksums of one store's files.

    If the file system has no extended attributes (tmpfs before Linux 6.6, some network file
    systems), checksums are kept in memory while the store is open, and recomputed later.
    """

    def __init__(self) -> None:
        self._remembered: dict[tuple[int, int, int], str] = {}

    def recorded(self, fd: int) -> str | None:
        """Return the checksum recorded for an open file, None if there is none."""
        try:
            return os.getxattr(fd, ATTRIBUTE).decode("ascii", "replace")
        except OSError:
            pass  # no record, or no attributes here
        return self._remembered.get(_identity(fd)) if self._remembered else None

    def record(self, fd: int, checksum: str) -> None:
        """Record the checksum of an open file, which is committed or will be committed next."""
        try:
            _set_attribute(fd, checksum)
        except OSError:
            self._remembered[_identity(fd)] = checksum

    def clear(self, fd: int) -> None:
        """Remove a record that a program may have copied together with another object's file."""
        try:
            os.removexattr(fd, ATTRIBUTE)
        except OSError:
            pass  # no record, as nearly always

    def forget(self, fd: int) -> None:
        """Drop the in-memory record of a deleted file; other links may need its attribute."""
        if self._remembered:
            self._remembered.pop(_identity(fd), None)


def _set_attribute(fd: int, checksum: str) -> None:
    try:
        os.setxattr(fd, ATTRIBUTE, checksum.encode())
    except PermissionError:
        # Setting an attribute requires write permission in the file's mode, not in the descriptor.
        # So a committed file (0400) becomes writable for a moment, unless the process is
        # privileged.
        mode = stat.S_IMODE(os.fstat(fd).st_mode)
        os.fchmod(fd, mode | stat.S_IWUSR)
        try:
            os.setxattr(fd, ATTRIBUTE, checksum.encode())
        finally:
            os.fchmod(fd, mode)


def _identity(fd: int) -> tuple[int, int, int]:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino, status.st_mtime_ns
