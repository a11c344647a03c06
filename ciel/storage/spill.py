"""The option `spill` of stores in memory: where they move objects that do not fit."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

from ciel.storage import leases
from ciel.storage.errors import (
    NoSpaceError,
    ObjectNotFoundError,
    StoreSpecError,
    StoreSystemError,
)
from ciel.storage.files import FileStore
from ciel.storage.interface import (
    MEMORY,
    Capabilities,
    ObjectInfo,
    ObjectReader,
    ObjectStore,
    ObjectWriter,
    StoreLevel,
    StoreUsage,
)
from ciel.storage.migration import Dropper
from ciel.storage.remote.memory import RemoteMemory
from ciel.storage.remote.spill import RemoteSpill
from ciel.storage.shelf import ShelfOptions
from ciel.storage.specs import Left
from ciel.storage.tiers import TieredStore, TieredWriter

_PREFIX = "ciel-spill-"


def with_spill(upper: ObjectStore, spill: str, directory: Path) -> ObjectStore:
    """Combine a store in memory with a lower level, as its option `spill` says: `yes` spills to the
    worker's directory, a path to a new directory below that path, `remote` to memory of other
    machines before the worker's directory, and `no` never spills.
    """
    with ExitStack() as undo:
        undo.callback(upper.close)
        if spill == "no":
            unspilled = UnspilledStore(upper)
            undo.pop_all()
            return unspilled
        place = str(directory / "spill") if spill in ("yes", "remote") else spill
        lower: ObjectStore
        if spill == "yes":
            lower = FileStore(Path(place), ShelfOptions())
        elif spill == "remote":
            lower = RemoteSpill(FileStore(Path(place), ShelfOptions()), RemoteMemory())
            place = ""  # most moves do not use the disk
        else:
            check_spill({"spill": spill})
            lower = SpillStore(spill)
        undo.callback(lower.close)
        store = TieredStore(upper, lower, place=place)
        undo.pop_all()
    return store


def check_spill(options: Mapping[str, str]) -> None:
    """Raise `StoreSpecError` if the option `spill` is wrong."""
    spill = options.get("spill", "yes")
    if spill not in ("yes", "no", "remote") and not spill.startswith("/"):
        raise StoreSpecError(
            f"spill={spill}", "write yes, no, remote, or a path that begins with /"
        )


def left_by_spill(options: Mapping[str, str]) -> Iterator[Left]:
    """Yield the directories that a store with this option `spill` may leave."""
    spill = options.get("spill", "")
    if spill.startswith("/"):
        yield Left(f"{spill}/{_PREFIX}*", is_leased=True)


class UnspilledStore(TieredStore):
    """A store in memory without a lower level. When it is full, it drops objects that can be
    fetched again, and evicts no others.
    """

    mover_type = Dropper

    def __init__(self, upper: ObjectStore) -> None:
        super().__init__(upper, NoStore())

    @property
    def may_wait(self) -> bool:
        return True  # dropping objects is fast, so all waits are short

    def begin_in(
        self, level: str, object_id: str, *, size_hint_bytes: int | None = None
    ) -> TieredWriter:
        return super().begin_in(MEMORY, object_id, size_hint_bytes=size_hint_bytes)

    def adopt(self, object_id: str, path: str, *, checksum: str, size_bytes: int) -> ObjectInfo:
        while True:
            try:
                return super().adopt(object_id, path, checksum=checksum, size_bytes=size_bytes)
            except NoSpaceError as error:
                if not self._has_dropped_for(error):
                    raise

    def discover(self, object_id: str) -> ObjectInfo | None:
        while True:
            try:
                return super().discover(object_id)
            except NoSpaceError as error:
                if not self._has_dropped_for(error):
                    raise

    def levels(self) -> tuple[StoreLevel, ...]:
        return super().levels()[:1]

    def _has_dropped_for(self, error: NoSpaceError) -> bool:
        """Try to free space for a request that failed; True if an object was dropped."""
        mover = self.mover
        seen = mover.dropped_count
        if error.wanted_bytes <= (self.capacity_bytes or 0):
            mover.want(error, error.wanted_bytes - error.available_bytes)
            mover.want_no_more(error)
        return mover.dropped_count > seen


class NoStore(ObjectStore):
    """A store that has no space, and so no objects."""

    capabilities = Capabilities(
        mappable=True,
        nameable=True,
        streaming=True,
        shared_between_processes=True,
        bounded=True,
        may_block=False,
    )

    def begin(self, object_id: str, *, size_hint_bytes: int | None = None) -> ObjectWriter:
        raise NoSpaceError(size_hint_bytes or 1, 0)

    def open(self, object_id: str) -> ObjectReader:
        raise ObjectNotFoundError(object_id)

    def stat(self, object_id: str) -> ObjectInfo | None:
        return None

    def checksum(self, object_id: str) -> str:
        raise ObjectNotFoundError(object_id)

    def verify(self, object_id: str) -> ObjectInfo:
        raise ObjectNotFoundError(object_id)

    def adopt(self, object_id: str, path: str, *, checksum: str, size_bytes: int) -> ObjectInfo:
        raise NoSpaceError(size_bytes, 0)

    def delete(self, object_id: str) -> bool:
        return False

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def usage(self) -> StoreUsage:
        return StoreUsage(0, 0, 0, 0)

    def close(self) -> None:
        pass


class SpillStore(FileStore):
    """A store in a private subdirectory of a directory that other processes may use in the same
    way. `close` removes the subdirectory. If the process dies, the next process that opens a store
    there removes it.
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
            self._release()
            raise StoreSystemError(f"open {parent}", error.errno or errno.EIO) from error
        except BaseException:
            self._release()
            raise

    def close(self) -> None:
        super().close()
        self._release()

    def _release(self) -> None:
        if self._hold_fd >= 0:
            os.close(self._hold_fd)
            leases.remove_unheld(self._name, parent_fd=self._parent_fd)
        if self._parent_fd >= 0:
            os.close(self._parent_fd)
        self._parent_fd = self._hold_fd = -1
