"""Recycles the files of deleted objects in memory for new objects.

Writing to memory whose pages are already allocated is many times as fast as to fresh memory.

A file is reused only if no process can still see its old content. It must have no other name, and
programs must have read it only by mappings and copies (`shelf`). The kernel must also grant a lease
on it, which it does only if the file has no other descriptor and no mapping. The store requests the
lease when it reuses the file, so processes may read a deleted object for any time.
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
from ciel.storage.temporaries import Temporaries, open_regular, regular_status

SEGMENT_MIN_BYTES = 1 << 20
"""Below this size creating a file is faster than finding one to reuse."""
LINKED_MAX = 16
"""How many files that other stores have, too, may wait to be reused."""
FIT_SHARE = 8
"""A reused file may be larger or smaller than the new object by up to this factor. Pages beyond the
object's size are freed, missing ones are allocated."""


@dataclass(slots=True)
class Segment:
    """A file with old content, open to read and write. `settled_bytes`: see `Segments.settle`."""

    name: str
    fd: int
    size_bytes: int
    settled_bytes: int = 0


class Segments:
    """The reusable files of one open store. It adds no file once they have `limit_bytes`."""

    def __init__(self, temporaries: Temporaries, limit_bytes: int, fullness: Fullness) -> None:
        self._temporaries = temporaries
        self._fullness = fullness
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._kept: list[Segment] = []
        self._linked: list[str] = []  # files of deleted objects that other stores still have
        self._pid = os.getpid()  # a forked process has the same files open, and must not use them
        self.when_kept: Callable[[], None] | None = None
        self.used_s = time.monotonic()
        self.recycled = 0
        """How many objects were started in a reused file."""

    def __bool__(self) -> bool:
        """Whether there are files, even if other stores still have them."""
        return bool(self._kept or self._linked)

    @property
    def kept_bytes(self) -> int:
        """How much memory the files have. It belongs to no object, except to deleted objects that
        readers still have open.
        """
        return sum(segment.size_bytes for segment in list(self._kept))

    def take(self, size_bytes: int) -> Segment | None:
        """Return the segment that fits best: the smallest that is large enough, else the largest.

        Its pages beyond `size_bytes` are freed.
        """
        if size_bytes < SEGMENT_MIN_BYTES:
            return None
        one = self._take_first(self._fitting, size_bytes)
        if one is None or one.size_bytes <= size_bytes:
            return one
        with self._fullness.giving_back(one.size_bytes - size_bytes):
            os.ftruncate(one.fd, size_bytes)
        return replace(one, size_bytes=size_bytes)

    def take_any(self) -> Segment | None:
        """Return the segment that was added last, for content of unknown size."""
        return self._take_first(lambda _: self._kept[::-1], 0)

    def _take_first(self, among: Callable[[int], list[Segment]], size_bytes: int) -> Segment | None:
        if self._pid != os.getpid():
            return None
        self._keep_unlinked()
        with self._lock:
            one = next((one for one in among(size_bytes) if _is_free(one.fd)), None)
            if one is not None:
                self._kept.remove(one)
                self.used_s = time.monotonic()
                self.recycled += 1
        return one

    def _fitting(self, size_bytes: int) -> list[Segment]:
        most, least = size_bytes * FIT_SHARE, size_bytes // FIT_SHARE
        fitting = [segment for segment in self._kept if least <= segment.size_bytes <= most]
        fitting.sort(key=lambda s: (s.size_bytes < size_bytes, abs(s.size_bytes - size_bytes)))
        return fitting

    def offer(self, name: str, *, is_own: bool = True) -> bool:
        """Keep the temporary file of a deleted object, or remove it.

        If other stores have linked the object, too, its file is kept until they have deleted it; a
        store in which the object `is_own` does so, as it has written the file.
        """
        status = regular_status(name, self._temporaries.directory_fd)
        if status is None or status.st_nlink == 1:
            return self._offer_alone(name)
        with self._lock:
            may_wait = is_own and self._pid == os.getpid() and len(self._linked) < LINKED_MAX
            if may_wait:
                self._linked.append(name)
                self.used_s = time.monotonic()
        if not may_wait:
            self._temporaries.discard(name)
        elif self.when_kept is not None:
            self.when_kept()
        return may_wait

    def _keep_unlinked(self) -> None:
        """Keep the files that other stores have deleted meanwhile."""
        with self._lock:
            names, self._linked = self._linked, []
        for name in names:
            self.offer(name)

    def _offer_alone(self, name: str) -> bool:
        fd = None
        try:
            directory_fd = self._temporaries.directory_fd
            os.chmod(name, 0o600, dir_fd=directory_fd)  # other stores refuse to adopt it from now
            fd = open_regular(name, directory_fd, os.O_RDWR)
            if fd is not None and self._keep(name, fd):
                return True
        except OSError:
            pass  # it no longer exists
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
        """Add a segment of fresh, allocated pages; False if there is no space for it."""
        name, fd = self._temporaries.create()
        try:
            with self._fullness.taking(size_bytes):
                reserve_blocks(fd, size_bytes, keep_size=False)
            os.ftruncate(fd, size_bytes)
            if self._keep(name, fd):
                return True
        except OSError:
            pass  # no space, so add none
        os.close(fd)
        self._temporaries.discard(name)
        return False

    def settle(self, step: Callable[[int, int, int], object], step_bytes: int) -> bool:
        """Call `step(descriptor, offset, length)` for the next part of a segment for which it was
        not called yet; False if there is none.

        `step` must not change the content, because `take` may return the segment meanwhile. The
        descriptor stays open until `step` returns, so the file is reused at most once before.
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
        """Free all segments; False if there were none."""
        with self._lock:
            for name in self._linked:
                if self._pid == os.getpid():
                    self._temporaries.discard(name)
            self._linked.clear()
            return self._discard(list(self._kept))

    def _discard(self, segments: list[Segment]) -> bool:
        for segment in segments:
            self._kept.remove(segment)
            os.close(segment.fd)
            if self._pid == os.getpid():
                self._temporaries.discard(segment.name)
        return bool(segments)


def _is_free(fd: int) -> bool:
    """Whether a file has no other name, descriptor or mapping, so that no process can open it."""
    try:
        # If a process opens the file between these calls, the kernel sends us a signal. Choose one
        # that is ignored.
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        return os.fstat(fd).st_nlink == 1
    except OSError:
        return False  # a process has it open, or the kernel grants no leases here
