"""Files whose pages are kept when their object is deleted, to be written anew: memory that was
touched before is taken many times as fast as fresh one.

A file is used again only when nobody can ever see it again: it has no other name, its pages were
given to nobody but by mappings and copies (`shelf`), and the kernel grants a lease on it, which it
does when nobody else has it open or mapped, in whatever process. That is asked when it is taken, so
that who reads on may do so as long as it likes.
"""

from __future__ import annotations

import fcntl
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from ciel.storage.fullness import Fullness
from ciel.storage.space import reserve_blocks
from ciel.storage.temporaries import Temporaries, open_regular

SEGMENT_MIN_BYTES = 1 << 20
"""What is smaller is quicker made than found."""
FIT_SHARE = 8
"""By so much a file may differ in size from what it is to hold: the rest of it is lost, or has to
be made."""


@dataclass(slots=True)
class Segment:
    """A file of old content, open to read and write. `settled_bytes`: see `Segments.settle`."""

    name: str
    fd: int
    size_bytes: int
    settled_bytes: int = 0


class Segments:
    """The kept files of one open store: no more of them once they have `limit_bytes`."""

    def __init__(self, temporaries: Temporaries, limit_bytes: int, fullness: Fullness) -> None:
        self._temporaries = temporaries
        self._fullness = fullness
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._kept: list[Segment] = []
        self._pid = os.getpid()  # a forked copy has the same files open, and must leave them alone
        self.when_kept: Callable[[], None] | None = None
        self.used_s = time.monotonic()
        self.recycled = 0
        """How many objects were begun in one."""

    @property
    def kept_bytes(self) -> int:
        """How much memory they hold; it belongs to no object, unless to one that is still read."""
        return sum(segment.size_bytes for segment in list(self._kept))

    def take(self, size_bytes: int) -> Segment | None:
        """Hand out the one that fits best: the smallest that is large enough, else the largest.

        What it has beyond that size is given back.
        """
        if size_bytes < SEGMENT_MIN_BYTES or self._pid != os.getpid():
            return None
        with self._lock:
            one = next((one for one in self._fitting(size_bytes) if _is_free(one.fd)), None)
            if one is None:
                return None
            self._kept.remove(one)
            self.used_s = time.monotonic()
            self.recycled += 1
        if one.size_bytes > size_bytes:
            with self._fullness.giving_back(one.size_bytes - size_bytes):
                os.ftruncate(one.fd, size_bytes)
        return replace(one, size_bytes=min(one.size_bytes, size_bytes))

    def _fitting(self, size_bytes: int) -> list[Segment]:
        most, least = size_bytes * FIT_SHARE, size_bytes // FIT_SHARE
        fitting = [segment for segment in self._kept if least <= segment.size_bytes <= most]
        fitting.sort(key=lambda s: (s.size_bytes < size_bytes, abs(s.size_bytes - size_bytes)))
        return fitting

    def offer(self, name: str) -> bool:
        """Keep a temporary that was an object, if no other has its file; otherwise it goes."""
        fd = None
        try:
            directory_fd = self._temporaries.directory_fd
            os.chmod(name, 0o600, dir_fd=directory_fd)  # who links it from now on will not have it
            fd = open_regular(name, directory_fd, os.O_RDWR)
            if fd is not None and self._keep(name, fd):
                return True
        except OSError:
            pass  # it is gone
        if fd is not None:
            os.close(fd)
        self._temporaries.discard(name)
        return False

    def _keep(self, name: str, fd: int) -> bool:
        status = os.fstat(fd)
        if status.st_nlink != 1 or self._pid != os.getpid():
            return False
        with self._lock:
            if self.kept_bytes >= self._limit_bytes:
                self._discard([one for one in self._kept if not _is_free(one.fd)])
                if self.kept_bytes >= self._limit_bytes:
                    return False
            self._kept.append(Segment(name, fd, status.st_size))
            self.used_s = time.monotonic()
        if self.when_kept is not None:
            self.when_kept()
        return True

    def make(self, size_bytes: int) -> bool:
        """Have a segment of fresh pages, touched; False if there is no room for it."""
        name, fd = self._temporaries.create()
        try:
            with self._fullness.taking(size_bytes):
                reserve_blocks(fd, size_bytes, keep_size=False)
            os.ftruncate(fd, size_bytes)
            if self._keep(name, fd):
                return True
        except OSError:
            pass  # no space: then it is not for us
        os.close(fd)
        self._temporaries.discard(name)
        return False

    def settle(self, step: Callable[[int, int, int], object], step_bytes: int) -> bool:
        """Have a part of a segment looked after that was not yet: `step` is told a descriptor, the
        offset and the length. It may change nothing in the content, as somebody may take the file
        meanwhile; nobody can take it again before the step is done. False if there is none.
        """
        with self._lock:
            unsettled = (one for one in self._kept if one.settled_bytes < one.size_bytes)
            one = next((one for one in unsettled if _is_free(one.fd)), None)
            if one is None:
                return False
            start = one.settled_bytes
            one.settled_bytes += step_bytes
            fd = os.dup(one.fd)
        try:
            step(fd, start, min(step_bytes, one.size_bytes - start))
        finally:
            os.close(fd)
        return True

    def drop(self) -> bool:
        """Give all of it back; False if there was nothing."""
        with self._lock:
            return self._discard(list(self._kept))

    def _discard(self, segments: list[Segment]) -> bool:
        for segment in segments:
            self._kept.remove(segment)
            os.close(segment.fd)
            if self._pid == os.getpid():
                self._temporaries.discard(segment.name)
        return bool(segments)


def _is_free(fd: int) -> bool:
    """Whether no other name, descriptor or mapping of a file is left, so that none can come."""
    try:
        # Who opens it between these two calls has us told by a signal: by one that is ignored.
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        return os.fstat(fd).st_nlink == 1
    except OSError:
        return False  # somebody has it, or the kernel grants no leases here
