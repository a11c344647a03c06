"""Opens files of an image in programs of tasks and in clients, which read and write them in place.

A worker names a file of its image by a place: `image:BUILD:BOOT:DEVICE:INODE:INSTANCE/NAME`. If the
image lies in a file elsewhere, a link in the directory of the instance leads there
(`instances.LINK`); a place never contains a path. The process attaches to the image as one more
client, and its handle keeps the content even if the worker ends. If the process dies, other clients
free its handles (POOL-1, POOL-4). Other cores see a file that the process writes once it has
committed the file (POOL-3).
"""

from __future__ import annotations

import os
import re
import threading
import weakref
from functools import cache
from pathlib import Path
from typing import NamedTuple, cast

from ciel.scc.builds import BUILDS, Build
from ciel.scc.device import Device
from ciel.scc.instances import LINK, LOCK_TIMEOUT_MS, ROOT, directory_name
from ciel.scc.shmfs import File, Image
from ciel.storage.errors import StorageError

SCHEME = "image"
_PLACE = re.compile(r"image:(\w+):([\w-]+):(\d+):(\d+):([\w-]{1,64})/([^/\0]{1,255})", re.ASCII)

_images: weakref.WeakValueDictionary[tuple[int, str, str], Image] = weakref.WeakValueDictionary()
_lock = threading.Lock()


class NoPlaceError(StorageError):
    """A place is not on this host, or not for this user."""

    def __init__(self, place: str, reason: str) -> None:
        self.place = place
        super().__init__(f"{place!r:.200} cannot be opened: {reason}")


class _Place(NamedTuple):
    build: Build
    instance: str
    identity: str
    name: str


def place_of(build: Build, instance: str, name: str) -> str:
    """Name a file of the image of an instance on this host."""
    return f"{SCHEME}:{build}:{_identity(instance)}:{instance}/{name}"


def image_place(instance: str) -> str:
    """Name the image of an instance on this host, for `ObjectStore.places`."""
    return f"{SCHEME}:{_identity(instance)}"


def open_file(place: str) -> File:
    """Open a committed file; raises StorageError."""
    found = _parsed(place)
    return _attached(place, found).open_file(found.name)


def open_draft(place: str) -> File:
    """Open a file that a worker has prepared, for writing; raises StorageError."""
    found = _parsed(place)
    return _attached(place, found).reopen(found.name)


def open_private(place: str) -> memoryview:
    """Return the content of a committed file in private, writable memory; raises StorageError.

    Pages are copied when they are written to.
    """
    with open_file(place) as file:
        return private_part(file, file.info().size_bytes)


def private_part(file: File, size_bytes: int, offset_bytes: int = 0) -> memoryview:
    """Return a part of a committed file in private, writable memory; raises StorageError."""
    if file.build != "strict":
        return file.mapped(size_bytes, offset_bytes, private=True)
    copied = bytearray(size_bytes)
    file.read_into(copied, offset_bytes)
    return memoryview(copied)


def content_of(file: File) -> memoryview:
    """Return the content of a committed file, in pages that nobody can write to.

    In the strict build it is a copy. Raises StorageError.
    """
    return file.view() if file.build == "strict" else file.mapped(file.info().size_bytes)


def _parsed(place: str) -> _Place:
    found = _PLACE.fullmatch(place)
    if found is None or found[1] not in BUILDS:
        raise NoPlaceError(place, "it is not the place of a file")
    return _Place(cast(Build, found[1]), found[5], ":".join(found.groups()[1:4]), found[6])


def _attached(place: str, found: _Place) -> Image:
    """Return this process's image of an instance; attach to it if it is not open."""
    key = os.getpid(), found.instance, found.identity
    with _lock:
        image = _images.get(key)
        if image is not None:
            return image
        try:
            is_here = _identity(found.instance) == found.identity
        except OSError:
            is_here = False
        if not is_here:
            raise NoPlaceError(place, "its image is not on this host")
        if not _is_ours(found.instance):
            raise NoPlaceError(place, "its image belongs to another user")
        image = _opened(found)
        _images[key] = image
        return image


def _is_ours(instance: str) -> bool:
    """Return whether this user created the instance. The memory of a device belongs to root."""
    link, owner = _path(instance, LINK), _file(instance).stat().st_uid
    if not link.is_symlink():
        return owner == os.geteuid()
    return owner in (os.geteuid(), 0) and link.lstat().st_uid == os.geteuid()


def _opened(found: _Place) -> Image:
    if _path(found.instance, LINK).is_symlink():
        device = Device(_file(found.instance), build=found.build)
        return Image.on(device, build=found.build, lock_timeout_ms=LOCK_TIMEOUT_MS)
    control, data = (_path(found.instance, part) for part in ("control", "data"))
    return Image.open(control, data, build=found.build, lock_timeout_ms=LOCK_TIMEOUT_MS)


def _identity(instance: str) -> str:
    """Return the boot id, device and inode, which differ for each image, also on other hosts."""
    status = _file(instance).stat()
    return f"{_boot()}:{status.st_dev}:{status.st_ino}"


def _file(instance: str) -> Path:
    """Return the file that identifies an image: the one of control data, or the only one."""
    link = _path(instance, LINK)
    return link.readlink() if link.is_symlink() else _path(instance, "control")


def _path(instance: str, part: str) -> Path:
    return Path(ROOT, directory_name(instance), part)


@cache
def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
