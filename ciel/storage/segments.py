"""Files whose pages are kept when their object is deleted, to be written anew: memory that was
touched before is taken several times as fast as fresh one.

Only a file that nobody else can ever see again is kept: it has no other name, and the kernel grants
a lease on it, which it does when nobody has it open or mapped, in whatever process. All others are
unlinked, as a reader may go on with them.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from typing import NamedTuple

from ciel.storage.space import reserve_blocks
from ciel.storage.temporaries import Temporaries, open_regular

SEGMENT_MIN_BYTES = 1 << 20
"""What is smaller is quicker made than found."""


class Segment(NamedTuple):
    """A file of old content, open to read and write."""

    name: str
    fd: int
    size_bytes: int


class Segments:
    """The kept files of one open store, at most `limit_bytes` of them."""

    def __init__(self, temporaries: Temporaries, limit_bytes: int) -> None:
        self._temporaries = temporaries
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._kept: list[Segment] = []
        self.used_s = time.monotonic()
        self.recycled = 0
        """How many objects were begun in one."""

    @property
    def kept_bytes(self) -> int:
        """How much memory they hold; it belongs to no object."""
        return sum(segment.size_bytes for segment in list(self._kept))

    def take(self, size_bytes: int) -> Segment | None:
        """Hand out the one that fits best: the smallest that is large enough, else the largest.

        What it has beyond that size is given back.
        """
        if size_bytes < SEGMENT_MIN_BYTES:
            return None
        with self._lock:
            if not self._kept:
                return None
            enough = [segment for segment in self._kept if segment.size_bytes >= size_bytes]
            one = min(enough or self._kept, key=lambda s: s.size_bytes if enough else -s.size_bytes)
            self._kept.remove(one)
            self.used_s = time.monotonic()
            self.recycled += 1
        if one.size_bytes > size_bytes:
            os.ftruncate(one.fd, size_bytes)
        return one._replace(size_bytes=min(one.size_bytes, size_bytes))

    def offer(self, name: str) -> bool:
        """Keep a temporary that was an object, if nobody else has it; otherwise it goes."""
        fd = None
        try:
            directory_fd = self._temporaries.directory_fd
            os.chmod(name, 0o600, dir_fd=directory_fd)
            fd = open_regular(name, directory_fd, os.O_RDWR)
            if fd is not None and self._keep(name, fd):
                return True
        except OSError:
            pass  # it is gone, or the kernel grants no leases here
        if fd is not None:
            os.close(fd)
        self._temporaries.discard(name)
        return False

    def _keep(self, name: str, fd: int) -> bool:
        status = os.fstat(fd)
        if status.st_nlink != 1 or not _is_ours_alone(fd):
            return False
        with self._lock:
            if self.kept_bytes + status.st_size > self._limit_bytes:
                return False
            self._kept.append(Segment(name, fd, status.st_size))
            self.used_s = time.monotonic()
        return True

    def make(self, size_bytes: int) -> bool:
        """Have a segment of fresh pages, touched; False if there is no room for it."""
        name, fd = self._temporaries.create()
        try:
            reserve_blocks(fd, size_bytes, keep_size=False)
            os.ftruncate(fd, size_bytes)
            if self._keep(name, fd):
                return True
        except OSError:
            pass  # no space: then it is not for us
        os.close(fd)
        self._temporaries.discard(name)
        return False

    def drop(self) -> bool:
        """Give all of it back; False if there was nothing."""
        with self._lock:
            kept, self._kept = self._kept, []
        for segment in kept:
            os.close(segment.fd)
            self._temporaries.discard(segment.name)
        return bool(kept)


def _is_ours_alone(fd: int) -> bool:
    """Whether no other descriptor or mapping of a file is left; raises OSError."""
    try:
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except BlockingIOError:
        return False
    fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    return True
