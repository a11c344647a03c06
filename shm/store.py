"""The store of files in memory: a directory `/dev/shm/ciel-<instance>` for each instance (CIB-20).

It is `ciel.storage.files` with three promises more. Space is real before it is used, so that a full
`/dev/shm` is a `NoSpaceError` and never a SIGBUS. The capacity is always bounded. And an instance
is gone with the last process that has it open: by `close`, or, when that process was killed, by the
next start of any such store on the host, or by whoever chose the instance id and calls
`remove_instance`.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path

from ciel.storage import leases
from ciel.storage.errors import StoreSpecError, StoreSystemError
from ciel.storage.files import FileStore
from ciel.storage.shelf import ShelfOptions
from ciel.storage.specs import check_options, parse_size

_ROOT = "/dev/shm"
_PREFIX = "ciel-"
_INSTANCE = re.compile(r"[A-Za-z0-9_-]{1,64}")


def open_shm(options: Mapping[str, str], directory: Path) -> ShmStore:
    """Open a store in memory; the directory, which the worker gives to every store, stays unused.

    Options: `capacity` (a size; half of what `/dev/shm` has free, when not given) and `instance`
    (letters, digits, `_` and `-`; random when not given). A live instance is joined.
    """
    check_options("shm", options, ("capacity", "instance"))
    capacity = options.get("capacity")
    return ShmStore(
        options.get("instance") or secrets.token_hex(8), parse_size(capacity) if capacity else None
    )


class ShmStore(FileStore):
    """Objects in memory, for as long as somebody has the instance open."""

    def __init__(self, instance: str, capacity_bytes: int | None = None) -> None:
        self.instance = instance
        self._hold_fd = -1
        name = _directory_name(instance)
        try:
            root_fd = os.open(_ROOT, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                leases.sweep(root_fd, prefix=_PREFIX)
                self._hold_fd = leases.hold(name, parent_fd=root_fd)
                device = os.fstatvfs(root_fd)
            finally:
                os.close(root_fd)
        except OSError as error:
            raise StoreSystemError(f"open {_ROOT}/{name}", error.errno or errno.EIO) from error
        free_bytes = device.f_bavail * device.f_frsize
        options = ShelfOptions(capacity_bytes=capacity_bytes or free_bytes // 2, whole=True)
        try:
            super().__init__(Path(_ROOT, name), options, may_block=False)
        except BaseException:
            self._let_go()
            raise

    def close(self) -> None:
        super().close()
        self._let_go()

    def _let_go(self) -> None:
        if self._hold_fd >= 0:
            os.close(self._hold_fd)
            self._hold_fd = -1
            remove_instance(self.instance)  # unless somebody else has it open


def remove_instance(instance: str) -> bool:
    """Remove what a killed process left; False when there is nothing, or somebody has it open.

    A process has let go once its parent has waited for it.
    """
    root_fd = os.open(_ROOT, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return leases.remove_unheld(_directory_name(instance), parent_fd=root_fd)
    finally:
        os.close(root_fd)


def _directory_name(instance: str) -> str:
    if not _INSTANCE.fullmatch(instance):
        raise StoreSpecError(instance, "an instance is 1 to 64 letters, digits, _ and -")
    return _PREFIX + instance
