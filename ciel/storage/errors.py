"""What goes wrong in a store. Each error carries its data; the message is built from it.

A bad object id is `ciel.core.errors.InvalidIdError`, as everywhere. The system's own errors become
ours in one place, `translated`, so that callers never read an errno to learn that a disk is full.
"""

from __future__ import annotations

import errno
import os

from ciel.core.errors import CielError


class StorageError(CielError):
    """Root of the errors of every store."""


class ObjectNotFoundError(StorageError):
    """No committed object of this id: never written, not yet committed, or deleted."""

    def __init__(self, object_id: str, why: str = "") -> None:
        self.object_id = object_id
        super().__init__(why or f"no object {object_id}")


class ChangedObjectError(ObjectNotFoundError):
    """A program wrote into an object, which was deleted therefore: it is as good as gone."""

    def __init__(self, object_id: str, size_bytes: int, found_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.found_bytes = found_bytes
        why = "was changed"
        if found_bytes != size_bytes:
            why = f"had {found_bytes} bytes instead of {size_bytes}"
        super().__init__(
            object_id, f"{object_id} {why}: a program wrote into it that was to read it"
        )


class ObjectConflictError(StorageError):
    """The id is committed with other content, which stays: its producer is not deterministic."""

    def __init__(self, object_id: str, kept_checksum: str, refused_checksum: str) -> None:
        self.object_id = object_id
        self.kept_checksum = kept_checksum
        self.refused_checksum = refused_checksum
        super().__init__(
            f"{object_id} is committed with checksum {kept_checksum}; refused {refused_checksum}"
        )


class NoSpaceError(StorageError):
    """The store or its device is full; nothing of the refused step remains. `lacking` says what ran
    out, if that is not bytes.
    """

    def __init__(self, wanted_bytes: int, available_bytes: int, lacking: str = "") -> None:
        self.wanted_bytes = wanted_bytes
        self.available_bytes = available_bytes
        self.lacking = lacking
        lack = lacking or f"wanted {wanted_bytes} bytes, {available_bytes} available"
        super().__init__(f"no space: {lack}")


class ShortOutputError(StorageError):
    """The device was full while a program wrote by itself: it may have been refused a block, and
    not have said so.
    """

    def __init__(self, object_id: str, size_bytes: int) -> None:
        self.object_id = object_id
        self.size_bytes = size_bytes
        super().__init__(
            f"{object_id}: its device was full while it was written; of it {size_bytes} bytes came"
        )


class CorruptObjectError(StorageError):
    """What lies there is not what was put there; `code` is one of `interface.Problem`'s codes."""

    def __init__(self, object_id: str, code: str, detail: str) -> None:
        self.object_id = object_id
        self.code = code
        self.detail = detail
        super().__init__(f"{object_id}: {code}: {detail}")


ANOTHER_FILE_SYSTEM = "on another file system"
"""The reason for which another store here may still adopt it."""


class CannotAdoptError(StorageError):
    """Another store's file cannot become ours by a link; copy it instead, or try another plan."""

    def __init__(self, object_id: str, path: str, reason: str) -> None:
        self.object_id = object_id
        self.path = path
        self.reason = reason
        super().__init__(f"cannot adopt {path} as {object_id}: {reason}")


class StoreClosedError(StorageError):
    """Used after close, commit or abort."""

    def __init__(self, subject: str) -> None:
        self.subject = subject
        super().__init__(f"{subject} is closed")


class StoreSpecError(StorageError):
    """A store was asked for in words it does not understand, or in a place it must not use."""

    def __init__(self, subject: str, reason: str) -> None:
        self.subject = subject
        self.reason = reason
        super().__init__(f"{subject!r}: {reason}")


class StoreSystemError(StorageError):
    """The system refused for a reason that is not space: descriptors, rights, a failing device."""

    def __init__(self, operation: str, error_number: int) -> None:
        self.operation = operation
        self.error_number = error_number
        super().__init__(f"{operation}: {os.strerror(error_number)}")


def translated(error: OSError, operation: str, wanted_bytes: int, root_fd: int) -> StorageError:
    """Return our error for the system's; `root_fd` tells which device is asked what it has left."""
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return StoreSystemError(operation, error.errno or errno.EIO)
    device = os.fstatvfs(root_fd)
    return NoSpaceError(wanted_bytes, device.f_bavail * device.f_frsize if device.f_favail else 0)
