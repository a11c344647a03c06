"""Retains the files of failed attempts for inspection, within limits of number and size.

The oldest entries are removed when there are too many, when they exceed a total size, or when they
exceed the free space of the device. So retained files do not take space that running tasks need.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

from ciel.storage.trees import bytes_below, remove_tree

KEPT_ATTEMPTS_MAX = 100
KEPT_BYTES_MAX = 1 << 30
"""The limits for each directory, and so for each worker."""

_FREE_FILES_SHARE_MIN = 1 / 16
"""Entries are also removed when a smaller share of the device's inodes is free."""


class KeptAttempts:
    """A directory with an entry for each failed attempt. The creator of an entry calls `admit`.

    Several threads may use it. The methods take time in proportion to the size of the files. The
    directory is read on first use.
    """

    def __init__(
        self,
        path: Path,
        *,
        attempts_max: int = KEPT_ATTEMPTS_MAX,
        bytes_max: int = KEPT_BYTES_MAX,
    ) -> None:
        self.path = path
        self._attempts_max = attempts_max
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._sizes: dict[str, int] | None = None  # the oldest first

    def admit(self, name: str) -> str:
        """Add a new entry; if there is no space for it, remove it and return the reason."""
        size_bytes = bytes_below(self.path / name)
        if size_bytes > self._bytes_max:
            remove_tree(self.path / name)
            limit = f"the limit for all retained files is {self._bytes_max}"
            return f"they take {size_bytes} bytes; {limit}"
        with self._lock:
            sizes = self._known()
            sizes.pop(name, None)
            sizes[name] = size_bytes
            self._remove_surplus(sizes)
            is_kept = name in sizes
        return (
            "" if is_kept else f"they take {size_bytes} bytes, more than the free space on the disk"
        )

    def make_room(self) -> None:
        """Remove entries beyond the limits."""
        with self._lock:
            self._remove_surplus(self._known())

    def _known(self) -> dict[str, int]:
        if self._sizes is None:
            names = sorted(_ages_ns(self.path).items(), key=lambda item: item[1])
            self._sizes = {name: bytes_below(self.path / name) for name, _ in names}
        return self._sizes

    def _remove_surplus(self, sizes: dict[str, int]) -> None:
        while sizes and (
            len(sizes) > self._attempts_max
            or sum(sizes.values()) > min(self._bytes_max, _free_bytes(self.path))
        ):
            oldest = next(iter(sizes))
            del sizes[oldest]
            remove_tree(self.path / oldest)


def _ages_ns(path: Path) -> dict[str, int]:
    """Return when each entry was last changed, by name."""
    found = {}
    try:
        for entry in path.iterdir():
            found[entry.name] = entry.lstat().st_mtime_ns
    except FileNotFoundError:
        pass  # nothing was retained yet, or the directory is being removed
    return found


def _free_bytes(path: Path) -> int:
    """Return the free bytes of a device; 0 if it has few free inodes, or does not exist."""
    try:
        device = os.statvfs(path)
    except OSError:
        return 0
    # Some file systems do not count inodes, and report 0 for both.
    few_files = device.f_favail < device.f_files * _FREE_FILES_SHARE_MIN
    return 0 if few_files else device.f_bavail * device.f_frsize
