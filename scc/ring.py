"""Ring buffers in shared memory: the binding of `include/ring.h`, which defines them.

Only one thread at a time may use a side. `Ring.wait` is the only call that waits.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final

from ciel.core.errors import CielError
from ciel.scc.builds import load

CAPACITY_BYTES: Final = 64 * 1024
"""For each direction. It holds many calls of a program; a larger call is sent in pieces."""

LOOKS_PER_US: Final = 40
"""A poll with the pause before it takes about 25 ns; polling is limited by count, not by time."""

WAKE_UP_US: Final = 50
"""The minimum duration of a sleep; if one takes little longer, polling would have been better."""

BYTES: Final = 1
ROOM: Final = 2
"""The conditions that a side can wait for."""

_module = load("ring")
_ffi: Any = _module.ffi
_lib: Any = _module.lib


class RingError(CielError):
    """An invalid segment, or a segment that the peer has corrupted. `code` is an error of ring.h;
    `number` is the errno of a failed system call.
    """

    def __init__(self, code: int, number: int = 0) -> None:
        self.code = code
        text = _ffi.string(_lib.ring_error_text(code)).decode()
        super().__init__(f"{text}: {os.strerror(number)}" if number else text)


_SYSTEM: Final[int] = _lib.RING_ERROR_SYSTEM
_SIGNAL: Final[int] = _lib.RING_ERROR_SIGNAL


def make_segment(capacity_bytes: int = CAPACITY_BYTES) -> int:
    """Create a segment; returns its descriptor, which the caller owns. Raises RingError."""
    return _checked(_lib.ring_make(capacity_bytes))


def _checked(result: int) -> int:
    if result < 0:
        raise RingError(result, _ffi.errno if result == _SYSTEM else 0)
    return result


def make_patience(spin_us: float) -> Any:
    """Return the state of a waiting side that polls for at most `spin_us` before sleeping."""
    looks = int(spin_us * LOOKS_PER_US)
    how = {"looks_max": looks, "looks": looks, "soon_us": int(spin_us) + WAKE_UP_US}
    return _ffi.new("struct ring_patience *", how)


class Ring:
    """One side of a segment. The caller owns the descriptors: this side rings its peer through
    `bell_fd`, and the peer rings it through `wait_fd` (-1: the caller waits by itself). With
    `keeps_bell`, the ring duplicates the bell, so that it stays open until the ring is closed.
    Raises RingError.
    """

    __slots__ = ("_buffer", "_kept_fd", "_patience", "_side", "_storage", "_view")

    def __init__(
        self,
        segment_fd: int,
        side: int,
        bell_fd: int,
        wait_fd: int = -1,
        spin_us: float = 0,
        *,
        keeps_bell: bool = False,
    ) -> None:
        try:
            self._kept_fd = os.dup(bell_fd) if keeps_bell else -1
        except OSError as error:
            raise RingError(_SYSTEM, error.errno or 0) from None
        size_bytes = _lib.ring_size()
        self._storage = _ffi.new("char[]", size_bytes + 64)
        start = self._storage + -int(_ffi.cast("uintptr_t", self._storage)) % 64
        found = _ffi.new("struct ring **")
        bell_fd = self._kept_fd if keeps_bell else bell_fd
        result = _lib.ring_open(found, start, size_bytes, segment_fd, side, bell_fd, wait_fd)
        self._side = found[0]
        if result:
            number = _ffi.errno if result == _SYSTEM else 0
            self._let_go()
            raise RingError(result, number)
        self._patience = make_patience(spin_us)
        self._buffer = _ffi.new("char[]", self.capacity_bytes)
        self._view = _ffi.buffer(self._buffer)

    def close(self) -> None:
        """Unmap the memory. The ring must not be used afterwards."""
        if self._side != _ffi.NULL:
            _lib.ring_close(self._side)
            self._side = _ffi.NULL
            self._let_go()

    def _let_go(self) -> None:
        if self._kept_fd >= 0:
            os.close(self._kept_fd)
            self._kept_fd = -1

    @property
    def is_open(self) -> bool:
        return bool(self._side != _ffi.NULL)

    @property
    def capacity_bytes(self) -> int:
        return int(_lib.ring_capacity(self._side))

    def write(self, data: bytes) -> int:
        """Write as many bytes as there is room for; returns the number. Raises RingError."""
        count: int = _lib.ring_write(self._side, data, len(data))
        return count if count >= 0 else _checked(count)

    def read(self) -> bytes:
        """Return all available bytes, or none. Raises RingError."""
        count: int = _lib.ring_read(self._side, self._buffer, len(self._buffer))
        if count <= 0:
            _checked(count)
            return b""
        data: bytes = self._view[:count]
        return data

    @property
    def readable_bytes(self) -> int:
        return _checked(_lib.ring_readable(self._side))

    @property
    def unread_bytes(self) -> int:
        """The number of written bytes that the peer has not read yet."""
        return self.capacity_bytes - _checked(_lib.ring_room(self._side))

    def wait(self, wants_room: bool = False) -> bool:
        """Wait until there are bytes to read (or room, if wanted); False when the peer is gone.
        Python handles signals meanwhile. Raises RingError.
        """
        while True:
            result: int = _lib.ring_wait(self._side, self._patience, wants_room)
            if result != _SIGNAL:
                return bool(_checked(result))


class Lookout:
    """The rings of one event loop, which calls it before and after each wait.

    The loop registers a ring with `add` and sets the awaited events with `want`. The lookout then
    calls `found` with the events that occurred (BYTES, ROOM or both; a negative number is an error
    of ring.h).
    """

    def __init__(self, spin_us: float = 0) -> None:
        self.spin_us = spin_us
        self._patience = make_patience(spin_us)
        self._rings: list[Ring] = []
        self._calls: list[Callable[[int], object]] = []
        self._watches: Any = _ffi.new("struct ring_watch[]", 0)

    def __len__(self) -> int:
        return len(self._rings)

    def glance_at(self, poller_fd: int) -> None:
        """Stop polling as soon as an event is ready at the loop's poller."""
        self._patience.also_fd = poller_fd

    def add(self, ring: Ring, found: Callable[[int], object]) -> None:
        """Register a ring. Its wants are empty at first."""
        self._rings.append(ring)
        self._calls.append(found)
        self._renew()

    def remove(self, ring: Ring) -> None:
        index = self._rings.index(ring)
        del self._rings[index], self._calls[index]
        self._renew({index})

    def want(self, ring: Ring, wants: int) -> None:
        """Set the events to wait for on a ring: BYTES, ROOM, both or 0."""
        self._watches[self._rings.index(ring)].wants = wants

    def before_wait(self) -> bool:
        """Return whether the loop must not wait; otherwise announce that every ring sleeps."""
        return bool(_lib.ring_before_wait(self._watches, len(self._rings), self._patience))

    def after_wait(self) -> None:
        """Announce that all rings are awake, and notify the owners of ready ones."""
        watches, calls = self._watches, self._calls
        if not _lib.ring_after_wait(watches, len(calls), self._patience):
            return
        found = [(call, watch.found) for call, watch in zip(calls, watches, strict=True)]
        for call, what in found:
            if what and call in self._calls:  # an earlier call may have removed it
                call(what)

    def _renew(self, without: frozenset[int] | set[int] = frozenset()) -> None:
        wants = [watch.wants for i, watch in enumerate(self._watches) if i not in without]
        self._watches = _ffi.new("struct ring_watch[]", len(self._rings))
        for index, ring in enumerate(self._rings):
            self._watches[index].ring = ring._side
            self._watches[index].wants = wants[index] if index < len(wants) else 0
