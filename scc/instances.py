"""Instances of the store `scc`: a directory under `/dev/shm` with a lease, and its image.

If the image lies in a file elsewhere, the directory has a link `image` to it. Each kernel has its
own directory for the file, and derives the name from the file.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from ciel.scc.builds import Build
from ciel.scc.device import KERNELS, Device, Kernels, may_have_other_kernels
from ciel.scc.shapes import Geometry
from ciel.scc.shmfs import Image
from ciel.storage import leases
from ciel.storage.errors import StoreSpecError, StoreSystemError, translated
from ciel.storage.specs import check_instance

ROOT = "/dev/shm"
_SHM_PREFIX = "ciel-"  # of all stores in memory: each start sweeps all of them
_PREFIX = "ciel-scc-"
LINK = "image"
"""The name, in the directory of an instance, of a link to the file of its image."""

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


class ImageFile(NamedTuple):
    """The file of an image, for the options `path` and `kernels`.

    `given`: the names of the options that the user has given; an existing image decides about all
    others. `kernel`: see `Device`.
    """

    path: Path
    kernels: Kernels | None
    given: frozenset[str]
    kernel: int = 0


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


def instance_of(path: str | Path, kernel: int = 0) -> str:
    """Return the instance of the processes of this kernel that use the image in a file."""
    try:
        status = os.stat(path)
    except OSError as error:
        raise StoreSystemError(f"open {path}", error.errno or errno.EIO) from error
    identity = f"{kernel}:{status.st_dev}:{status.st_ino}"
    return f"file-{blake2b(identity.encode(), digest_size=8).hexdigest()}"


def open_instance(name: str, layout: Layout) -> tuple[int, Image]:
    """Take a lease on an instance's directory, and attach to its image; create it if missing."""
    geometry = layout.geometry()
    hold_fd = _hold(name)
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


def open_in_file(
    name: str, layout: Layout, file: ImageFile
) -> tuple[int, Image, Device, Layout, Kernels]:
    """Take a lease on the directory of this kernel, and attach to the image in a file; create it if
    the file is empty. Also return the device, the layout as it is, and which kernels use the image.
    """
    hold_fd = _hold(name)
    try:
        _link(hold_fd, file.path)
        device = Device(file.path, build=layout.build, kernel=file.kernel)
        try:
            kernels = _made(device, layout, file)
            image = Image.on(device.use(), build=layout.build, lock_timeout_ms=LOCK_TIMEOUT_MS)
            found = _found(device, image.geometry, layout)
            if differing := _differing(layout, found, file.given):
                image.close()
                raise StoreSpecError(
                    str(file.path), f"the image was made with other options: {differing}; leave "
                    "them out, or replace the image with shminit --force",
                )  # fmt: skip
        except BaseException:
            device.close()
            raise
    except BaseException:
        os.close(hold_fd)
        remove_instance(name.removeprefix(_PREFIX))
        raise
    return hold_fd, image, device, found, kernels


def _made(device: Device, layout: Layout, file: ImageFile) -> Kernels:
    """Create the image unless there is one; return which kernels use it."""
    with device.alone():
        found = device.layout()
        if found is None:
            return _make(device, layout, file)
    kernels = KERNELS[found.kernels - 1]
    if file.kernels not in (None, kernels):
        raise StoreSpecError(
            f"kernels={file.kernels}",
            f"the image in {file.path} was made for kernels={kernels}; leave this out, or replace "
            f"the image: shminit --force --kernels {file.kernels}",
        )
    if kernels == "shared" and found.kernel != device.kernel:
        raise StoreSpecError(
            str(file.path),
            "the image was made for one kernel, and this is another one, or the host has "
            "restarted; replace the image: shminit --force, with --kernels shared if only this "
            "kernel uses it",
        )
    return kernels


def _make(device: Device, layout: Layout, file: ImageFile) -> Kernels:
    if "capacity" not in file.given:
        reason = "there is no image in the file yet; add capacity=SIZE, or use shminit"
        raise StoreSpecError(str(file.path), reason)
    others = may_have_other_kernels(device.fd)
    if not others:  # allocate all of it, so that no access raises SIGBUS
        try:
            os.posix_fallocate(device.fd, 0, device.size_bytes)
        except OSError as error:
            raise translated(error, "reserve an image", device.size_bytes, device.fd) from error
    kernels: Kernels = file.kernels or ("separate" if others else "shared")
    Image.make_on(
        device, layout.geometry(), build=layout.build, cores=layout.cores, kernels=kernels
    )
    return kernels


def _found(device: Device, geometry: Geometry, layout: Layout) -> Layout:
    made = device.layout()
    assert made is not None
    return layout._replace(
        cores=made.core_count, capacity_bytes=geometry.block_bytes * geometry.block_count,
        block_bytes=geometry.block_bytes, shards=geometry.shard_count,
    )  # fmt: skip


def _differing(wanted: Layout, found: Layout, given: frozenset[str]) -> str:
    whole_bytes = wanted.capacity_bytes // found.block_bytes * found.block_bytes
    wanted = wanted._replace(capacity_bytes=max(whole_bytes, found.block_bytes))
    names = {"cores": "cores", "capacity": "capacity_bytes", "block": "block_bytes"}
    names["shards"] = "shards"
    return ", ".join(
        f"its {option} is {getattr(found, field)}, not {getattr(wanted, field)}"
        for option, field in names.items()
        if option in given and getattr(found, field) != getattr(wanted, field)
    )


def _link(hold_fd: int, path: Path) -> None:
    """Let the directory lead to the file of its image."""
    with suppress(FileExistsError):  # by an earlier process, to the same file
        os.symlink(path.resolve(), LINK, dir_fd=hold_fd)


def _hold(name: str) -> int:
    try:
        root_fd = os.open(ROOT, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            leases.sweep(root_fd, prefix=_SHM_PREFIX)
            return leases.hold(name, parent_fd=root_fd)
        finally:
            os.close(root_fd)
    except OSError as error:
        raise StoreSystemError(f"open {ROOT}/{name}", error.errno or errno.EIO) from error


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
