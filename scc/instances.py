"""Instances of the store `scc`: a directory under `/dev/shm` with a lease, and its image."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import NamedTuple

from ciel.scc.builds import Build
from ciel.scc.shapes import Geometry
from ciel.scc.shmfs import Image
from ciel.storage import leases
from ciel.storage.errors import StoreSpecError, StoreSystemError
from ciel.storage.specs import check_instance

ROOT = "/dev/shm"
_SHM_PREFIX = "ciel-"  # of all stores in memory: each start sweeps all of them
_PREFIX = "ciel-scc-"

CAPACITY_BYTES = 2**30
BLOCK_BYTES = 64 * 2**10
CORES = 64
CORES_MAX = 1024
SHARDS_MAX = 64
BLOCK_MIN_BYTES, BLOCK_MAX_BYTES, BLOCKS_MAX = 2**12, 2**30, 2**28  # as in `shmfs.h`
_FILES_MIN = 1024
_FILES_MAX = 2**20
_CLIENTS_MIN = 64  # several processes may use one core
_CLIENTS_PER_CORE = 2
_HANDLES_MIN, _HANDLES_MAX = 2**10, 2**16
_HANDLES_SHARE = 64  # of the capacity, at most, for all clients together
_HANDLE_BYTES, _ENTRY_BYTES = 8, 384  # as in `FORMAT.md`
_ENTRIES_MAX = 2**26
_ENTRIES_SHARE = 16  # of the capacity, at most, unless the capacity is very small
_ENTRIES_MIN_BYTES = 4 * 2**20
LOCK_TIMEOUT_MS = 10_000
"""Locks are held for microseconds, unless their owner is stopped."""


class Layout(NamedTuple):
    """The parameters of an image; the first worker to open an instance sets them."""

    cores: int = CORES
    capacity_bytes: int = CAPACITY_BYTES
    block_bytes: int = BLOCK_BYTES
    shards: int = 0
    build: Build = "coherent"

    def geometry(self) -> Geometry:
        """Return the image's geometry.

        A nonempty object takes at least one block. It has one name for each core that holds it, and
        each process that has it open takes one handle; one handle more serves a second open. Names
        and handles for all cores are limited to a share of the capacity.
        """
        block_count = max(1, self.capacity_bytes // self.block_bytes)
        files = min(max(block_count, _FILES_MIN), _FILES_MAX)
        clients = max(_CLIENTS_MIN, min(_CLIENTS_PER_CORE * self.cores, CORES_MAX))
        names_bytes = max(self.capacity_bytes // _ENTRIES_SHARE, _ENTRIES_MIN_BYTES)
        names = max(2 * files, min(self.cores * files, names_bytes // _ENTRY_BYTES))
        handles = self.capacity_bytes // _HANDLES_SHARE // (clients * _HANDLE_BYTES)
        return Geometry(
            block_bytes=self.block_bytes,
            block_count=block_count,
            inode_count=files,
            entry_count=min(names, _ENTRIES_MAX),
            client_count=clients,
            handle_count=min(max(handles, _HANDLES_MIN) + 1, files + 1, _HANDLES_MAX),
            shard_count=self.shards or min(4 << (self.cores - 1).bit_length(), SHARDS_MAX),
        )


def remove_instance(instance: str) -> bool:
    """Remove what killed processes left; False if there is nothing, or a process has it open."""
    root_fd = os.open(ROOT, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return leases.remove_unheld(directory_name(instance), parent_fd=root_fd)
    finally:
        os.close(root_fd)


def directory_name(instance: str) -> str:
    """Return the name of an instance's directory under `/dev/shm`."""
    return _PREFIX + check_instance(instance)


def open_instance(name: str, layout: Layout) -> tuple[int, Image]:
    """Take a lease on an instance's directory, and attach to its image; create it if missing."""
    geometry = layout.geometry()
    try:
        root_fd = os.open(ROOT, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            leases.sweep(root_fd, prefix=_SHM_PREFIX)
            hold_fd = leases.hold(name, parent_fd=root_fd)
        finally:
            os.close(root_fd)
    except OSError as error:
        raise StoreSystemError(f"open {ROOT}/{name}", error.errno or errno.EIO) from error
    try:
        image = Image.open(
            Path(ROOT, name, "control"), Path(ROOT, name, "data"), geometry,
            build=layout.build, lock_timeout_ms=LOCK_TIMEOUT_MS,
        )  # fmt: skip
        if image.geometry != geometry:
            image.close()
            raise StoreSpecError(name, _difference(image.geometry, geometry))
    except BaseException:
        os.close(hold_fd)
        remove_instance(name.removeprefix(_PREFIX))
        raise
    return hold_fd, image


def _difference(found: Geometry, wanted: Geometry) -> str:
    differing = [
        f"its {field} is {there}, not {here}"
        for field, there, here in zip(Geometry._fields, found, wanted, strict=True)
        if there != here
    ]
    text = "; ".join(differing)
    return (
        f"the instance exists with other options ({text}); specify the same cores, capacity, "
        "block and shards for all workers that share it, or choose another instance"
    )
