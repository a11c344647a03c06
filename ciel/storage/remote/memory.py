"""Keeps the content of objects in memory of other machines, in pages of volumes.

A volume is an address space that a `Lender` creates. It fits a fixed number of pages, which are
reserved for it, so a write into a volume never lacks space. Volumes are created when objects need
them, and given back when they are empty. The content of an object may lie in several ranges of
several volumes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple, Protocol

from ciel.core.errors import CielError

PAGE_BYTES: Final = 4096
VOLUME_BYTES: Final = 256 << 20
"""The size of a volume: creating one takes the master about a millisecond."""
VOLUME_MIN_BYTES: Final = 1 << 20
RETRY_S: Final = 5.0
"""How long the store asks for no memory after the lender had none, or after an error."""
CLOSE_TIMEOUT_S: Final = 5.0
"""How long `close` waits for reads and writes that run; each ends within its own time limit."""


class RemoteMemoryError(CielError, OSError):
    """Memory of other machines could not be read or written; the message says why."""


class Space(Protocol):
    """The address space of a volume. The methods raise OSError."""

    def read_into(self, address: int, buffer: memoryview) -> None: ...
    def write(self, address: int, content: bytes | bytearray | memoryview) -> None: ...
    def close(self) -> None: ...

    def remove(self) -> None:
        """Close the space, and remove its volume. It may wait for another machine."""
        ...


class Lender(Protocol):
    """Creates volumes. It may wait for another machine, so only threads call it."""

    def create(self, size_bytes: int) -> Space | None:
        """Return the space of a new volume; None if no memory server has room for it now."""
        ...

    def call_now_and_then(self, tidy: Callable[[], None]) -> None:
        """Call a function in a thread, again and again until the lender is closed."""
        ...


class FreePages:
    """The free pages of one address space, as disjoint ranges that do not touch, by address."""

    def __init__(self, pages: int) -> None:
        self.pages = pages
        self.free = pages
        self._ranges: list[tuple[int, int]] = [(0, pages)]  # start, length

    @property
    def is_empty(self) -> bool:
        """Whether no page is taken."""
        return self.free == self.pages

    def take(self, pages: int) -> list[tuple[int, int]]:
        """Take pages from the first ranges; all must be free."""
        assert pages <= self.free
        taken = []
        self.free -= pages
        while pages:
            start, length = self._ranges[0]
            count = min(length, pages)
            taken.append((start, count))
            pages -= count
            self._ranges[0:1] = [(start + count, length - count)] if count < length else []
        return taken

    def give_back(self, start: int, pages: int) -> None:
        """Free a range that was taken."""
        self.free += pages
        after = next((n for n, (at, _) in enumerate(self._ranges) if at > start), None)
        place = len(self._ranges) if after is None else after
        end, first, last = start + pages, place, place
        if place and sum(self._ranges[place - 1]) == start:
            start, first = self._ranges[place - 1][0], place - 1
        if place < len(self._ranges) and self._ranges[place][0] == end:
            end, last = sum(self._ranges[place]), place + 1
        self._ranges[first:last] = [(start, end - start)]


class Volume:
    """One volume: its space, and which of its pages are free."""

    def __init__(self, space: Space, pages: int) -> None:
        self.space = space
        self.free_pages = FreePages(pages)
        self.has_failed = False  # then no further object is written there
        self.calls = 0  # reads and writes that run


class Range(NamedTuple):
    """Pages of one volume."""

    volume: Volume
    start: int
    pages: int


class RemoteMemory:
    """The volumes of one store. Any thread may use it."""

    def __init__(
        self, volume_bytes: int = VOLUME_BYTES, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._volume_pages = volume_bytes // PAGE_BYTES
        self._now_s = now_s
        self._lender: Lender | None = None
        self._volumes: list[Volume] = []
        self._not_before_s = 0.0
        self._is_closed = False
        self._creating = threading.Lock()
        # The lock is reentrant: collecting a writer may call `give_back` in any call.
        self._lock = threading.Condition()

    def use(self, lender: Lender) -> None:
        """Begin to use the memory of a lender."""
        self._lender = lender
        lender.call_now_and_then(self.remove_empty)

    @property
    def capacity_bytes(self) -> int:
        """The size of all volumes."""
        return sum(volume.free_pages.pages for volume in [*self._volumes]) * PAGE_BYTES

    @property
    def used_bytes(self) -> int:
        volumes = [volume.free_pages for volume in [*self._volumes]]
        return sum(free.pages - free.free for free in volumes) * PAGE_BYTES

    def take(self, size_bytes: int) -> list[Range] | None:
        """Reserve pages for so many bytes; None if no memory server has room for them now."""
        pages = -(-size_bytes // PAGE_BYTES)
        while True:
            with self._lock:
                free = sum(v.free_pages.free for v in self._volumes if not v.has_failed)
                if free >= pages:
                    return self._taken(pages)
                if self._lender is None or self._now_s() < self._not_before_s:
                    return None
            with self._creating:
                if not self._create(pages):
                    return None

    def _taken(self, pages: int) -> list[Range]:
        found: list[Range] = []
        for volume in self._volumes:
            if not volume.has_failed and pages:
                count = min(pages, volume.free_pages.free)
                found += [Range(volume, *part) for part in volume.free_pages.take(count)]
                pages -= count
        return found

    def _create(self, pages: int) -> bool:
        """Create a volume, unless another thread has created one; False if none can be created.

        If the memory servers have no room for a whole volume, create a smaller one.
        """
        with self._lock:
            free = sum(v.free_pages.free for v in self._volumes if not v.has_failed)
            lender = self._lender
        if free >= pages:
            return True
        size = self._volume_pages
        while lender is not None and size >= VOLUME_MIN_BYTES // PAGE_BYTES:
            if (space := lender.create(size * PAGE_BYTES)) is not None:
                with self._lock:
                    self._volumes.append(Volume(space, size))
                return True
            size //= 4
        self._not_before_s = self._now_s() + RETRY_S
        return False

    def give_back(self, ranges: Sequence[Range]) -> None:
        """Free pages."""
        with self._lock:
            for volume, start, pages in ranges:
                volume.free_pages.give_back(start, pages)

    def remove_empty(self) -> None:
        """Remove the volumes that have no pages of objects."""
        with self._lock:
            empty = [volume for volume in self._volumes if volume.free_pages.is_empty]
            self._volumes = [volume for volume in self._volumes if volume not in empty]
        for volume in empty:
            volume.space.remove()

    def close(self) -> None:
        """Close all spaces when no thread reads or writes them; wait for that CLOSE_TIMEOUT_S.

        The master removes the volumes when this process has ended.
        """
        with self._lock:
            volumes, self._volumes = self._volumes, []
            self._lender, self._is_closed = None, True
            self._lock.wait_for(lambda: not any(v.calls for v in volumes), CLOSE_TIMEOUT_S)
            idle = [volume for volume in volumes if not volume.calls]
        for volume in idle:
            volume.space.close()

    # --- content ----------------------------------------------------------------------------------

    def write(self, ranges: Sequence[Range], offset: int, content: memoryview) -> None:
        """Write bytes at an offset that is a whole number of pages; the last page is filled with
        zeros. Raises RemoteMemoryError; then no further object is written to that volume.
        """
        for volume, address, part in _parts(ranges, offset, content.nbytes):
            piece: bytes | memoryview = content[part]
            if padding := -len(piece) % PAGE_BYTES:
                piece = bytes(piece) + bytes(padding)
            with self._calling(volume):
                volume.space.write(address, piece)

    def read(self, ranges: Sequence[Range], offset: int, buffer: memoryview) -> None:
        """Fill a buffer with the bytes from an offset. Raises RemoteMemoryError."""
        for volume, address, part in _parts(ranges, offset, buffer.nbytes):
            with self._calling(volume):
                volume.space.read_into(address, buffer[part])

    @contextmanager
    def _calling(self, volume: Volume) -> Iterator[None]:
        """Keep a space open during a call; translate its error, and note that it has failed."""
        with self._lock:
            if self._is_closed:
                raise RemoteMemoryError("the store is closed")
            volume.calls += 1
        try:
            yield
        except OSError as error:
            with self._lock:
                volume.has_failed = True
                self._not_before_s = self._now_s() + RETRY_S
            raise RemoteMemoryError(str(error)) from error
        finally:
            with self._lock:
                volume.calls -= 1
                self._lock.notify_all()


def _parts(
    ranges: Sequence[Range], offset: int, length: int
) -> Iterator[tuple[Volume, int, slice]]:
    """Yield the addresses of some bytes of an object: volume, address, and part of the bytes."""
    end, before, done = offset + length, 0, 0
    for volume, start, pages in ranges:
        size = pages * PAGE_BYTES
        first, last = max(offset, before), min(end, before + size)
        if first < last:
            address = start * PAGE_BYTES + first - before
            yield volume, address, slice(done, done + last - first)
            done += last - first
        before += size
