"""The directory of a file store: its layout, and the commit of objects.

    objects/     committed objects, 0400; the name is the id with `:` written `+`, which no id has
    incoming/    one held directory for each open store (`leases`), with its writers' temporaries
    aside/       files that had an object's name but were not objects
    owner        the process id of the owning worker, which holds a lock on the file (`leases`)

The commit point is one hard link from `incoming` to `objects`. A process that dies before the link
leaves nothing visible. If it dies after the link, the file has a second name in `incoming`, which
is removed together with the temporaries.

The store never uses an id as a path. It derives file names from ids, opens them relative to a
descriptor, and follows no links. Only regular files of this user are objects. All other files count
as missing.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from dataclasses import dataclass

from ciel.core.errors import InvalidIdError
from ciel.core.ids import check_id
from ciel.storage import leases
from ciel.storage.digests import DigestRecords, digest_of
from ciel.storage.errors import (
    CannotAdoptError,
    CorruptObjectError,
    NoSpaceError,
    ObjectConflictError,
    StorageError,
    StoreClosedError,
    StoreSystemError,
    translated,
)
from ciel.storage.fullness import Fullness
from ciel.storage.interface import ObjectInfo, Problem
from ciel.storage.segments import SEGMENT_MIN_BYTES, Segments
from ciel.storage.space import Space, free_bytes, is_full, occupied_bytes, reserve_blocks
from ciel.storage.temporaries import Temporaries, list_names, open_regular, regular_status

_COMMITTED_MODE = 0o400
# The sticky bit, which has no meaning for files. It marks files whose name a program knew. Their
# pages may remain in pipes and sockets after the program ended, so the store never reuses them.
NAMED_BIT = stat.S_ISVTX
_WRITABLE_BITS = 0o222
# Another try is needed whenever another process deleted or created a file meanwhile.
_PUBLISH_TRIES = 8
OWNER_RECOUNT_S = 1.0
"""How long the account of a directory with one owner is true without counting its objects."""


@dataclass(frozen=True, slots=True)
class ShelfOptions:
    """The options of a shelf.

    `whole`: commit files without holes. On a tmpfs, reading a hole through a mapping allocates a
    page, and SIGBUS kills the reader if none is free. `sync`: sync each commit to the device.
    `recycle_bytes`: how much memory of deleted objects to keep for reuse (`segments`).
    `links_overrun`: accept adopted objects even beyond the capacity, since their memory is in use
    in any case.
    """

    capacity_bytes: int | None = None
    sync: bool = False
    whole: bool = False
    links_overrun: bool = False
    recycle_bytes: int = 0


class Shelf:
    """One open directory of objects. Its methods raise OSError unless documented otherwise."""

    def __init__(self, directory: str, options: ShelfOptions) -> None:
        self.path = directory
        self.objects_path = f"{directory}/objects"
        self.options = options
        self.reading: dict[int, int] = {}  # inode numbers, by the descriptor of an open reader
        self.writing: set[str] = set()  # temporaries of open writers
        self._digests = DigestRecords()
        self._root_fd = self._objects_fd = self._owner_fd = -1
        # On a disk, a program fails if its write fails, so full devices need not be counted.
        self.fullness = Fullness(os.path.dirname(directory) if options.whole else None)
        try:
            os.makedirs(directory, 0o700, exist_ok=True)
            self._root_fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            self._objects_fd = leases.open_private("objects", parent_fd=self._root_fd)
            self.space = Space(options.capacity_bytes, self._recount, self._device_bytes)
            self.temporaries = Temporaries(self._root_fd, directory, self.fullness)
            self.segments = Segments(self.temporaries, options.recycle_bytes, self.fullness)
        except (OSError, StorageError) as error:
            self._close_directories()
            if isinstance(error, StorageError):
                raise
            raise StoreSystemError(f"open {directory}", error.errno or errno.EIO) from error

    def claim(self, subject: str, instead: str) -> None:
        """Own the directory as its only worker; `StoreSpecError` if another worker owns it."""
        self.require_open()
        if self._owner_fd >= 0:
            return
        what = "this store"
        try:
            self._owner_fd = leases.own(
                "owner", parent_fd=self._root_fd, subject=subject, what=what, instead=instead
            )
        except OSError as error:
            raise StoreSystemError("claim", error.errno or errno.EIO) from error
        self.space.recount_s = OWNER_RECOUNT_S

    def gone(self) -> str:
        """Return the path of a directory that was removed or replaced; empty if none was."""
        objects = self.objects_path, self._objects_fd
        return leases.moved((objects, self.temporaries.place))

    def close(self) -> None:
        """Remove the temporaries; a second call does nothing."""
        if self._root_fd >= 0:
            self.segments.drop()
            self.temporaries.close()
            self._close_directories()

    def close_reader(self, fd: int) -> None:
        """Close the descriptor of a reader."""
        number = self.reading.pop(fd, None)  # before the descriptor number can be reused
        if number in self.reading.values():
            os.close(fd)
        else:
            self.fullness.close_file(fd)

    def require_open(self) -> None:
        """Raise `StoreClosedError` after close."""
        if self._root_fd < 0:
            raise StoreClosedError("the store")

    def translated(self, error: OSError, operation: str, wanted_bytes: int = 0) -> StorageError:
        """Convert an OSError, and record that the device is full if it means that."""
        ours = translated(error, operation, wanted_bytes, self._root_fd)
        if isinstance(ours, NoSpaceError):
            self.fullness.note()
        return ours

    def drop_if_full(self) -> bool:
        """Whether the device is full; if so, free the memory kept of deleted objects."""
        if self._root_fd < 0 or not is_full(self._root_fd):
            return False
        self.fullness.note()
        self.segments.drop()
        return True

    def open(self, object_id: str) -> int | None:
        """Open a committed file for reading; None if there is none."""
        return open_regular(file_name(object_id), self._objects_fd)

    def ids(self) -> Iterator[str]:
        """Yield the ids of the committed files."""
        for name in list_names(self._objects_fd):
            object_id = _object_id(name)
            if object_id and regular_status(name, self._objects_fd):
                yield object_id

    def unlink(self, object_id: str, fd: int) -> str | None:
        """Remove a committed file, which is open as `fd`. If its memory can be reused, the file
        becomes a temporary instead, and its name is returned.
        """
        name, status = file_name(object_id), os.fstat(fd)
        size_bytes, temporary, recounts = status.st_size, None, self.space.recounts
        if self._may_recycle(size_bytes) and not status.st_mode & NAMED_BIT:
            temporary = self.temporaries.take_in(name, self._objects_fd)
        else:
            os.unlink(name, dir_fd=self._objects_fd)
        self._digests.forget(fd)
        self.space.forget(occupied_bytes(size_bytes), recounts)
        return temporary

    def note_named(self, fd: int, size_bytes: int) -> None:
        """Mark an open committed file as one whose name a program knows."""
        if self._may_recycle(size_bytes):
            try:
                os.fchmod(fd, _COMMITTED_MODE | NAMED_BIT)
            except OSError as error:
                raise self.translated(error, "name") from error

    def reserve(self, fd: int, size_bytes: int, *, keep_size: bool) -> None:
        """See `reserve_blocks`. If there is no space, free the memory that the store kept from
        deleted objects, and try once more.
        """
        try:
            with self.fullness.taking(size_bytes):
                reserve_blocks(fd, size_bytes, keep_size=keep_size)
        except OSError:
            if not self.segments.drop():
                raise
            with self.fullness.taking(size_bytes):
                reserve_blocks(fd, size_bytes, keep_size=keep_size)

    def _may_recycle(self, size_bytes: int) -> bool:
        return self.options.recycle_bytes >= size_bytes >= SEGMENT_MIN_BYTES

    def recorded(self, fd: int) -> str | None:
        """Return the recorded checksum of an open file, None if none was computed yet."""
        return self._digests.recorded(fd)

    def checksum(self, object_id: str, fd: int) -> str:
        """Return the recorded checksum, or read the file and record it."""
        recorded = self._digests.recorded(fd)
        if recorded is None:
            recorded = _digest(object_id, fd)
            self._digests.record(fd, recorded)
        return recorded

    def verify(self, object_id: str, fd: int) -> str:
        """Read the file and compare its checksum; raises `CorruptObjectError`."""
        found = _digest(object_id, fd)
        if (expected := self.checksum(object_id, fd)) != found:
            detail = f"it was committed as {expected}, and is {found} now"
            raise CorruptObjectError(object_id, "checksum", detail)
        return found

    def problems(self) -> list[Problem]:
        """Return files that are not objects, and objects that could be changed."""
        problems = []
        for name in sorted(list_names(self._objects_fd)):
            object_id, status = _object_id(name), regular_status(name, self._objects_fd)
            if status is None and not _is_there(name, self._objects_fd):
                continue  # it was deleted or moved a moment ago
            if object_id is None or status is None:
                problems.append(Problem("foreign", name, "no store has created this file"))
            elif status.st_mode & _WRITABLE_BITS:
                mode = f"mode {stat.S_IMODE(status.st_mode):04o}"
                problems.append(Problem("writable", object_id, mode))
        return problems

    def seal(
        self,
        fd: int,
        status: os.stat_result,
        surplus_bytes: int,
        checksum: str | None,
        *,
        is_named: bool,
    ) -> None:
        """Prepare a temporary for its commit. `is_named`: see `note_named`."""
        if surplus_bytes:
            beyond_bytes = max(status.st_blocks * 512 - occupied_bytes(status.st_size), 0)
            with self.fullness.giving_back(beyond_bytes):
                os.ftruncate(fd, status.st_size)  # frees what was reserved beyond the end
        if self.options.whole and status.st_blocks * 512 < status.st_size:
            self.reserve(fd, status.st_size, keep_size=False)
        if checksum is None:
            self._digests.clear(fd)
        else:
            self._digests.record(fd, checksum)
        os.fchmod(fd, _COMMITTED_MODE | (NAMED_BIT if is_named else 0))
        if self.options.sync:
            os.fsync(fd)

    def publish(
        self, object_id: str, temporary: str, fd: int, size_bytes: int, checksum: str | None
    ) -> ObjectInfo:
        """Link a sealed temporary into `objects`, unless an equal object exists.

        On return the space belongs to the object. After an error, also `ObjectConflictError`, it
        still belongs to the caller.
        """
        name = file_name(object_id)
        source_fd, charged_bytes = self.temporaries.directory_fd, occupied_bytes(size_bytes)
        for _ in range(_PUBLISH_TRIES):
            try:
                os.link(temporary, name, src_dir_fd=source_fd, dst_dir_fd=self._objects_fd)
            except FileExistsError:
                kept = self._kept_instead(object_id, fd, checksum)
                if kept is None:
                    continue
                self.space.release(charged_bytes)
                return kept
            if self.options.sync:
                os.fsync(self._objects_fd)
            self.space.commit(charged_bytes)
            return ObjectInfo(object_id, size_bytes, checksum)
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), name)

    def publish_linked(self, expected: ObjectInfo, path: str, temporary: str) -> ObjectInfo:
        """Publish another store's file, linked here as a temporary; raises `CannotAdoptError`.

        All checks use the linked file, not the path again.
        """
        object_id = expected.object_id
        fd = open_regular(temporary, self.temporaries.directory_fd)
        if fd is None:
            raise CannotAdoptError(object_id, path, "not a regular file of this user")
        try:
            status = os.fstat(fd)
            if status.st_mode & _WRITABLE_BITS:
                raise CannotAdoptError(object_id, path, "it is writable, so it is not committed")
            if status.st_size != expected.size_bytes:
                reason = f"it has {status.st_size} bytes, not {expected.size_bytes}"
                raise CannotAdoptError(object_id, path, reason)
            if (found := self.checksum(object_id, fd)) != expected.checksum:
                reason = f"it has the checksum {found}, not {expected.checksum}"
                raise CannotAdoptError(object_id, path, reason)
            return self.publish(object_id, temporary, fd, status.st_size, found)
        finally:
            os.close(fd)

    def _kept_instead(self, object_id: str, fd: int, checksum: str | None) -> ObjectInfo | None:
        """Return the equal object that was committed first; None if there is no valid one now.

        This reads the existing object and does not trust its recorded checksum: the task may have
        run again because the existing object is damaged. A damaged object is removed.
        """
        kept_fd = self.open(object_id)
        if kept_fd is None:
            self._set_aside(file_name(object_id))
            return None
        try:
            recorded, kept = self._digests.recorded(kept_fd), _digest(object_id, kept_fd)
            if recorded not in (None, kept):
                if (left := self.unlink(object_id, kept_fd)) is not None:
                    self.temporaries.discard(left)
                return None
            refused = checksum or _digest(object_id, fd)
            if kept != refused:
                raise ObjectConflictError(object_id, kept, refused)
            return ObjectInfo(object_id, os.fstat(kept_fd).st_size, kept)
        finally:
            self.fullness.close_file(kept_fd)

    def _set_aside(self, name: str) -> None:
        """Move a file that is not an object away from an object's name. The file may also be a
        directory, or belong to another user.
        """
        aside_fd = leases.open_private("aside", parent_fd=self._root_fd)
        try:
            unique = f"{name}.{secrets.token_hex(4)}"
            os.rename(name, unique, src_dir_fd=self._objects_fd, dst_dir_fd=aside_fd)
        except FileNotFoundError:
            pass  # it no longer exists
        finally:
            os.close(aside_fd)

    def _recount(self) -> tuple[int, int]:
        """Return how many bytes the objects occupy, and the number of objects."""
        sizes = [
            occupied_bytes(status.st_size)
            for name in list_names(self._objects_fd)
            if (status := regular_status(name, self._objects_fd))
        ]
        return sum(sizes), len(sizes)

    def _device_bytes(self) -> int | None:
        left_bytes = free_bytes(self._root_fd)
        return None if left_bytes is None else left_bytes + self.segments.kept_bytes

    def _close_directories(self) -> None:
        for fd in (self._owner_fd, self._root_fd, self._objects_fd):
            if fd >= 0:
                os.close(fd)
        self._root_fd = self._objects_fd = self._owner_fd = -1
        self.fullness.close()


def file_name(object_id: str) -> str:
    """Return the name of an object's file; injective, since no id contains `+`."""
    return check_id(object_id).replace(":", "+")


def _object_id(name: str) -> str | None:
    """Return the id of the object whose file has this name; None if there is none."""
    try:
        return None if ":" in name else check_id(name.replace("+", ":"))
    except InvalidIdError:
        return None


def _is_there(name: str, directory_fd: int) -> bool:
    try:
        os.lstat(name, dir_fd=directory_fd)
    except FileNotFoundError:
        return False
    return True


def _digest(object_id: str, fd: int) -> str:
    try:
        return digest_of(fd)
    except OSError as error:
        raise CorruptObjectError(object_id, "unreadable", str(error)) from error
