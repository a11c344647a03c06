"""Finds the device that stores a path, and whether that device is a rotating disk.

The limit of concurrent disk jobs (`device_semaphores`) applies to each physical disk. A partition
therefore counts as its disk, a loop device as the device that stores its backing file, a mapped
device over a single device as that device, and an overlay as the device of its upper layer. File
systems in memory have no limit. `scc/tools/io_token.c` implements the same rules.
"""

from __future__ import annotations

import os
import re
import stat
from enum import Enum
from pathlib import Path
from typing import NamedTuple

_IN_MEMORY = frozenset(("tmpfs", "ramfs", "hugetlbfs", "devtmpfs"))
_DEPTH_MAX = 8
"""How many layers of devices a lookup follows. The device at that depth counts as the physical one.
So several deeper stacks on one disk may each get a limit of their own."""


class Kind(Enum):
    """The kind of a device."""

    MEMORY = "memory"
    ROTATING = "rotating"
    SOLID = "solid"
    UNKNOWN = "unknown"
    """Not a disk of this machine, or a disk whose kind the system does not report."""


class Device(NamedTuple):
    """A device, identified by its device numbers, which are the same in all processes of a host."""

    major: int
    minor: int
    kind: Kind

    @property
    def name(self) -> str:
        return f"{self.major}-{self.minor}"

    @property
    def is_limited(self) -> bool:
        return self.kind is not Kind.MEMORY


def device_of(path: str | os.PathLike[str], *, system: Path = Path("/")) -> Device:
    """Find the device of a path that exists. `system` is the directory of /sys and /proc."""
    return _DeviceLookup(system).at_path(os.fspath(path))


def device_behind(major: int, minor: int, *, system: Path = Path("/")) -> Device:
    """Find the physical device under a block device."""
    return _DeviceLookup(system).numbered(major, minor)


class _DeviceLookup:
    def __init__(self, system: Path) -> None:
        self._system = system
        self._depth = 0

    def at_path(self, path: str) -> Device:
        status = os.stat(path)
        if not stat.S_ISDIR(status.st_mode):  # an overlay reports its own device for directories
            path = os.path.dirname(os.path.realpath(path))
            parent = os.stat(path)
            status = parent if not os.major(status.st_dev) else status
        major, minor = os.major(status.st_dev), os.minor(status.st_dev)
        return self.numbered(major, minor) if major else self._anonymous(major, minor)

    def numbered(self, major: int, minor: int) -> Device:
        """Find the physical device under a device by the device's numbers."""
        place = self._system / "sys/dev/block" / f"{major}:{minor}"
        self._depth += 1
        if self._depth <= _DEPTH_MAX:
            if (place / "partition").exists():
                # The link leads to .../DISK/PARTITION.
                return self._from_number_file(place.resolve().parent / "dev", major, minor)
            if (backing := _text(place / "loop/backing_file")) is not None:
                try:
                    return self.at_path(backing)
                except OSError:
                    pass  # seen from another mount namespace, or deleted
            carriers = list((place / "slaves").glob("*"))
            if len(carriers) == 1:
                return self._from_number_file(carriers[0] / "dev", major, minor)
        if place.resolve().name.startswith(("zram", "ram")):
            return Device(major, minor, Kind.MEMORY)
        rotates = _text(place / "queue/rotational")
        kinds = {"1": Kind.ROTATING, "0": Kind.SOLID}
        return Device(major, minor, kinds.get(rotates or "", Kind.UNKNOWN))

    def _from_number_file(self, file: Path, major: int, minor: int) -> Device:
        """Continue with the device whose numbers a file contains."""
        found = re.fullmatch(r"(\d+):(\d+)", _text(file) or "")
        if found is None:
            return Device(major, minor, Kind.UNKNOWN)
        return self.numbered(int(found[1]), int(found[2]))

    def _anonymous(self, major: int, minor: int) -> Device:
        """Find the device of a file system with an anonymous device number, by its mount source."""
        unknown = Device(major, minor, Kind.UNKNOWN)
        self._depth += 1
        mounts = _text(self._system / "proc/self/mountinfo")
        if mounts is None or self._depth > _DEPTH_MAX:
            return unknown
        for line in mounts.splitlines():
            fields, _, rest = line.partition(" - ")
            if fields.split()[2] != f"{major}:{minor}":
                continue
            kind, source, options = [*rest.split(), "", "", ""][:3]
            if kind in _IN_MEMORY:
                return unknown._replace(kind=Kind.MEMORY)
            upper = re.search(r"(?:^|,)upperdir=([^,]+)", options)
            try:
                if kind == "overlay" and upper:
                    return self.at_path(_unescaped(upper[1]))
                carrier = os.stat(_unescaped(source))
            except OSError:
                return unknown
            if stat.S_ISBLK(carrier.st_mode):  # such as for btrfs
                return self.numbered(os.major(carrier.st_rdev), os.minor(carrier.st_rdev))
            return unknown
        return unknown


def _text(file: Path) -> str | None:
    try:
        return file.read_text(errors="replace").strip()
    except OSError:
        return None


def _unescaped(text: str) -> str:
    """Undo the octal escapes of spaces and similar characters in mountinfo."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)
