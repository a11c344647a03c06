"""Where a store in memory moves to what it has no room for, as its option `spill` says."""

from __future__ import annotations

import errno
import os
import secrets
from contextlib import ExitStack
from pathlib import Path

from ciel.storage import leases
from ciel.storage.errors import StoreSpecError, StoreSystemError
from ciel.storage.files import FileStore
from ciel.storage.interface import ObjectStore
from ciel.storage.shelf import ShelfOptions
from ciel.storage.tiers import TieredStore

_PREFIX = "ciel-spill-"


def with_spill(upper: ObjectStore, spill: str, directory: Path) -> ObjectStore:
    """Put a store in memory over one on a disk, as its option `spill` says: `yes` under the
    worker's directory, `no` not at all, or under another directory.
    """
    if spill == "no":
        return upper
    with ExitStack() as undo:
        undo.callback(upper.close)
        place = str(directory / "spill") if spill == "yes" else spill
        if spill == "yes":
            lower = FileStore(Path(place), ShelfOptions())
        elif spill.startswith("/"):
            lower = SpillStore(spill)
        else:
            raise StoreSpecError(f"spill={spill}", "write yes, no, or a path that begins with /")
        undo.callback(lower.close)
        store = TieredStore(upper, lower, place=place)
        undo.pop_all()
    return store


class SpillStore(FileStore):
    """A store in a directory of its own under one that others may use for the same. It goes with
    its process: by `close`, or when the next one comes.
    """

    def __init__(self, parent: str) -> None:
        self._name = f"{_PREFIX}{secrets.token_hex(8)}"
        self._parent_fd = self._hold_fd = -1
        try:
            os.makedirs(parent, 0o700, exist_ok=True)
            self._parent_fd = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            leases.sweep(self._parent_fd, prefix=_PREFIX)
            self._hold_fd = leases.hold(self._name, parent_fd=self._parent_fd)
            super().__init__(Path(parent, self._name), ShelfOptions())
        except OSError as error:
            self._let_go()
            raise StoreSystemError(f"open {parent}", error.errno or errno.EIO) from error
        except BaseException:
            self._let_go()
            raise

    def close(self) -> None:
        super().close()
        self._let_go()

    def _let_go(self) -> None:
        if self._hold_fd >= 0:
            os.close(self._hold_fd)
            leases.remove_unheld(self._name, parent_fd=self._parent_fd)
        if self._parent_fd >= 0:
            os.close(self._parent_fd)
        self._parent_fd = self._hold_fd = -1
