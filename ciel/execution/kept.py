"""What failed attempts left behind, for people to look at: a directory that cannot fill its device.

Nobody says when they have seen it, so the oldest goes when there are too many, when they take too
much, and when they take more than is left on the device, whatever fills it: a task that runs is
worth more than one that failed.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

from ciel.storage.trees import bytes_below, remove_tree

KEPT_ATTEMPTS_MAX = 100
KEPT_BYTES_MAX = 1 << 30
"""Of each directory, and so of each worker."""

_FREE_FILES_SHARE_MIN = 1 / 16
"""What is kept goes when fewer of a device's files are left: their number may be limited, too."""


class KeptAttempts:
    """A directory with an entry for each failed attempt; whoever makes one has it admitted.

    Several threads may use it; the methods may take as long as the files are large. It is first
    read when it is first used.
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
        """Count in an entry just made; if there is no room for it, it goes: return why."""
        size_bytes = bytes_below(self.path / name)
        if size_bytes > self._bytes_max:
            remove_tree(self.path / name)
            return f"they take {size_bytes} bytes, of {self._bytes_max} for all that is kept"
        with self._lock:
            sizes = self._known()
            sizes.pop(name, None)
            sizes[name] = size_bytes
            self._remove_surplus(sizes)
            is_kept = name in sizes
        return "" if is_kept else f"they take {size_bytes} bytes, more than the disk has left"

    def make_room(self) -> None:
        """Remove what is too much."""
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
        pass  # nothing was kept yet, or it is just being removed
    return found


def _free_bytes(path: Path) -> int:
    """Return how much is left on a device; none if it can hardly hold another file, or is gone."""
    try:
        device = os.statvfs(path)
    except OSError:
        return 0
    # Some file systems do not count files, and say 0 of all of them.
    few_files = device.f_favail < device.f_files * _FREE_FILES_SHARE_MIN
    return 0 if few_files else device.f_bavail * device.f_frsize
