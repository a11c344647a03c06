"""The errors of stores. Each error carries its data as attributes, and builds its message from it.

An invalid object id raises `ciel.core.errors.InvalidIdError`, as everywhere. Only `translated`
converts OSErrors, so callers need not check an errno to learn that a disk is full.
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
    """A program modified an object's file, so the store deleted the object."""

    def __init__(self, object_id: str, size_bytes: int, found_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.found_bytes = found_bytes
        why = "was changed"
        if found_bytes != size_bytes:
            why = f"had {found_bytes} bytes instead of {size_bytes}"
        super().__init__(
            object_id, f"{object_id} {why}: a program that may only read it has written to it"
        )


class ObjectConflictError(StorageError):
    """The id is committed with other content, which stays. Its task is not deterministic."""

    def __init__(self, object_id: str, kept_checksum: str, refused_checksum: str) -> None:
        self.object_id = object_id
        self.kept_checksum = kept_checksum
        self.refused_checksum = refused_checksum
        super().__init__(
            f"{object_id} is already committed with checksum {kept_checksum}, so the store refuses "
            f"content with checksum {refused_checksum}; its task is not deterministic"
        )


class NoSpaceError(StorageError):
    """The store or its device is full. The operation that failed has changed nothing. `lacking`
    names the resource that ran out, if that is not bytes. `place`: a path on the device, if that
    refused the bytes.
    """

    def __init__(
        self, wanted_bytes: int, available_bytes: int, lacking: str = "", place: str = ""
    ) -> None:
        self.wanted_bytes = wanted_bytes
        self.available_bytes = available_bytes
        self.lacking = lacking
        self.place = place
        lack = lacking or f"wanted {wanted_bytes} bytes, {available_bytes} available"
        super().__init__(f"no space: {lack}")


class ShortOutputError(StorageError):
    """The device was full while a program wrote to the file itself. A write of the program may have
    failed without the program reporting it.
    """

    def __init__(self, object_id: str, size_bytes: int) -> None:
        self.object_id = object_id
        self.size_bytes = size_bytes
        super().__init__(
            f"{object_id}: the device was full while a program wrote the object; it has "
            f"{size_bytes} bytes, and may be incomplete; free some space, and run the task again"
        )


class CorruptObjectError(StorageError):
    """The content differs from what was committed; `code` is one of `interface.Problem`'s codes."""

    def __init__(self, object_id: str, code: str, detail: str) -> None:
        self.object_id = object_id
        self.code = code
        self.detail = detail
        super().__init__(f"{object_id}: {code}: {detail}")


ANOTHER_FILE_SYSTEM = "on another file system"
"""The reason of `CannotAdoptError` after which another store of this process may still succeed."""


class CannotAdoptError(StorageError):
    """Another store's file cannot be linked into this store; copy it, or fetch it another way."""

    def __init__(self, object_id: str, path: str, reason: str) -> None:
        self.object_id = object_id
        self.path = path
        self.reason = reason
        super().__init__(f"cannot adopt {path} as {object_id}: {reason}")


class StoreClosedError(StorageError):
    """The store, reader or writer was used after close, commit or abort."""

    def __init__(self, subject: str) -> None:
        self.subject = subject
        super().__init__(f"{subject} is closed")


class StoreSpecError(StorageError):
    """A store specification is invalid, or names a place that the store must not use."""

    def __init__(self, subject: str, reason: str) -> None:
        self.subject = subject
        self.reason = reason
        super().__init__(f"{subject!r}: {reason}")


class StoreSystemError(StorageError):
    """A system call failed for a reason other than space: descriptors, permissions, a device."""

    def __init__(self, operation: str, error_number: int) -> None:
        self.operation = operation
        self.error_number = error_number
        super().__init__(f"{operation}: {os.strerror(error_number)}")


def translated(error: OSError, operation: str, wanted_bytes: int, root_fd: int) -> StorageError:
    """Convert an OSError. If space is lacking, query the device of `root_fd` for free bytes."""
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return StoreSystemError(operation, error.errno or errno.EIO)
    device = os.fstatvfs(root_fd)
    free_bytes = device.f_bavail * device.f_frsize if device.f_favail else 0
    place = os.readlink(f"/proc/self/fd/{root_fd}")
    return NoSpaceError(wanted_bytes, free_bytes, place=place)
