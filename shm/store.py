"""The store of files in memory: a directory `/dev/shm/ciel-<instance>` for each instance (CIB-20).

It extends `ciel.storage.files` in three ways. It allocates space before programs use it, so a full
`/dev/shm` raises `NoSpaceError` and never causes SIGBUS. The capacity is always bounded. The last
process that closes an instance removes it. If that process was killed, the next start of any such
store on the host removes it, or the process that chose the instance's name calls `remove_instance`.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from ciel.core.graph.failures import size_text
from ciel.shm.arena import ROOT, Arena, arena_path, open_arena, plain, remove_arena
from ciel.shm.upkeep import Upkeep, prefault_bytes
from ciel.storage import leases
from ciel.storage.errors import StoreSystemError
from ciel.storage.files import FileStore
from ciel.storage.interface import ObjectStore
from ciel.storage.shelf import ShelfOptions
from ciel.storage.specs import (
    Left,
    OwnInstances,
    StoreKind,
    WorkerOptions,
    check_instance,
    check_options,
    parse_flag,
    parse_size,
    share_bytes,
)
from ciel.storage.spill import check_spill, left_by_spill, with_spill

RECYCLED_SHARE = 4
"""Memory of deleted objects may take the capacity divided by this."""
_PREFIX = "ciel-"


def open_shm(options: Mapping[str, str], directory: Path) -> ObjectStore:
    """Open a store in memory; objects that do not fit move to a store on a disk.

    Options:
    - `capacity`: a size; half of the free space of `/dev/shm` by default.
    - `instance`: a name of letters, digits, `_` and `-`; random by default. The store joins an
      instance that exists, but only one process may claim it.
    - `spill`: the store on a disk. `yes`, the default, puts it into `directory`, a path below that
      path; `no` means none.
    - `arena`: `yes` for files of huge pages, if this user may mount, and for memory that is
      allocated in advance.

    The store reuses the memory of deleted objects with any options (`upkeep`).
    """
    KIND.check(options)
    capacity = options.get("capacity")
    spill = options.get("spill", "yes")
    store = ShmStore(
        options.get("instance") or secrets.token_hex(8),
        parse_size(capacity) if capacity else None,
        spills=spill != "no",
        uses_arena=options.get("arena") == "yes",
    )
    return with_spill(store, spill, directory)


class ShmKind(StoreKind):
    """The store `shm`: each worker has its own instance, and they share `/dev/shm`."""

    def check(self, options: Mapping[str, str]) -> None:
        check_options("shm", options, ("capacity", "instance", "spill", "arena"))
        parse_flag(options.get("arena", "no"))
        if "capacity" in options:
            parse_size(options["capacity"])
        if "instance" in options:
            check_instance(options["instance"])
        check_spill(options)

    def places(self, options: Mapping[str, str]) -> Sequence[str]:
        return (ROOT,)

    def of_workers(self, options: Mapping[str, str], workers: int) -> WorkerOptions:
        has_memory = options.get("arena") == "yes"  # the arena has its own memory
        usual = {} if has_memory else {"capacity": str(share_bytes(ROOT, workers))}
        return ShmOptions(options, directories_of, usual)


class ShmOptions(OwnInstances):
    """The options of the workers' stores, which may also spill to a directory that others use."""

    def left(self, number: int, names: Sequence[str]) -> Iterator[Left]:
        yield from super().left(number, names)
        yield from left_by_spill(self.given)


KIND = ShmKind(open_shm)


class ShmStore(FileStore):
    """Objects in memory, which exist while a process has the instance open."""

    def __init__(
        self,
        instance: str,
        capacity_bytes: int | None = None,
        *,
        spills: bool = False,
        uses_arena: bool = False,
    ) -> None:
        self.instance = instance
        self.about = ""
        self._hold_fd = self._arena_fd = -1
        self._upkeep: Upkeep | None = None
        name = _directory_name(instance)
        try:
            _sweep()
            root = self._open_root(uses_arena)
            self._hold_fd = leases.hold(name, parent_fd=root.fd)
            device = os.fstatvfs(root.fd)
        except OSError as error:
            self._let_go()
            raise StoreSystemError(f"open {ROOT}/{name}", error.errno or errno.EIO) from error
        free_bytes, all_bytes = (n * device.f_frsize for n in (device.f_bavail, device.f_blocks))
        capacity_bytes = capacity_bytes or free_bytes // 2
        if 0 < all_bytes < capacity_bytes:
            what = f"which has {size_text(all_bytes)}, less than its capacity"
            full = "the store is full when this file system is full"
            self.about += f", {what} of {size_text(capacity_bytes)}: {full}"
        options = ShelfOptions(
            capacity_bytes=capacity_bytes, whole=True, links_overrun=spills,
            recycle_bytes=_recycled_bytes(capacity_bytes, free_bytes),
        )  # fmt: skip
        try:
            super().__init__(Path(root.path, name), options, may_block=False)
        except BaseException:
            self._let_go()
            raise
        ahead_bytes = prefault_bytes(min(capacity_bytes, free_bytes)) if uses_arena else 0
        is_huge = root.path != ROOT
        self._upkeep = Upkeep(self._shelf.segments, ahead_bytes, is_huge=is_huge)

    def _open_root(self, uses_arena: bool) -> Arena:
        root = open_arena() if uses_arena else plain()
        self._arena_fd = root.fd
        self.about = root.about
        return root

    def claim(self) -> None:
        self._shelf.claim(f"instance={self.instance}", "instance")

    def close(self) -> None:
        if self._upkeep is not None:
            self._upkeep.close()
            self._upkeep = None
        super().close()
        self._let_go()

    def _let_go(self) -> None:
        for fd in (self._hold_fd, self._arena_fd):
            if fd >= 0:
                os.close(fd)
        if self._arena_fd >= 0:
            self._hold_fd = self._arena_fd = -1
            remove_instance(self.instance)  # unless another process has it open


def _recycled_bytes(capacity_bytes: int, free_bytes: int) -> int:
    """Return how much memory of deleted objects to keep, so that other processes have enough."""
    return min(capacity_bytes, free_bytes // 2) // RECYCLED_SHARE


def _sweep() -> None:
    """Remove the instances of killed processes, in `/dev/shm` and in the arena."""
    remove_arena()
    for place in (ROOT, arena_path()):
        with suppress(FileNotFoundError):
            fd = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                leases.sweep(fd, prefix=_PREFIX)
            finally:
                os.close(fd)


def remove_instance(instance: str) -> bool:
    """Remove the instance of a killed process; False if there is none, or a process has it open.

    After its parent has waited for it, a process no longer has its instance open.
    """
    name, went = _directory_name(instance), False
    for place in (ROOT, arena_path()):
        with suppress(FileNotFoundError):
            fd = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                went = leases.remove_unheld(name, parent_fd=fd) or went
            finally:
                os.close(fd)
    remove_arena()
    return went


def directories_of(instance: str) -> Sequence[Path]:
    """Return the directories of an instance in `/dev/shm` and in the arena; it has one of them."""
    name = _directory_name(instance)
    return Path(ROOT, name), Path(arena_path(), name)


def _directory_name(instance: str) -> str:
    return _PREFIX + check_instance(instance)
