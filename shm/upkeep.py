"""Manages memory that belongs to no object: allocates some in advance, moves memory of deleted
objects into huge pages, and frees memory that stays unused.
"""

from __future__ import annotations

import os
import threading
import time

from ciel.shm.huge import STEP_BYTES, make_huge
from ciel.storage.errors import StorageError
from ciel.storage.segments import Segments

PREFAULT_BYTES = 256 << 20
SEGMENT_BYTES = 64 << 20
PREFAULT_SHARE = 8
"""At most the capacity divided by this is allocated in advance, so that a small store has room."""
IDLE_S = 30.0
"""Time after which unused memory is freed."""
_NICENESS = 5  # programs have priority


class Upkeep:
    """Maintains the memory of a store in a thread, which starts when it is first needed."""

    def __init__(
        self,
        segments: Segments,
        ahead_bytes: int,
        idle_s: float = IDLE_S,
        *,
        is_huge: bool = False,
    ) -> None:
        """`ahead_bytes`: how much to allocate now. `is_huge`: files always get huge pages here."""
        self._segments = segments
        self._ahead_bytes = ahead_bytes
        self._is_huge = is_huge
        self._idle_s = idle_s
        self._lock = threading.Lock()
        self._wanted = threading.Event()
        self._is_closed = False
        self._thread: threading.Thread | None = None
        segments.when_kept = self._wake
        if ahead_bytes:
            self._wake()

    def close(self) -> None:
        """End the thread. The store frees the memory that the thread has allocated."""
        with self._lock:
            self._is_closed = True
        self._wanted.set()
        if self._thread is not None:
            self._thread.join()

    def _wake(self) -> None:
        with self._lock:
            if self._thread is None and not self._is_closed:
                self._thread = threading.Thread(target=self._run, name="ciel-shm", daemon=True)
                self._thread.start()
        self._wanted.set()

    def _run(self) -> None:
        try:
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
            self._touch_ahead()
            while not self._is_closed:
                while not (self._is_closed or self._is_huge):
                    if not self._segments.settle(make_huge, STEP_BYTES):
                        break
                self._wanted.wait(self._idle_s if self._segments else None)
                self._wanted.clear()
                if time.monotonic() - self._segments.used_s >= self._idle_s:
                    self._segments.drop()
        except (OSError, StorageError):
            pass  # the store is being closed, or its directory is gone

    def _touch_ahead(self) -> None:
        made_bytes = 0
        while made_bytes < self._ahead_bytes and not self._is_closed:
            size_bytes = min(SEGMENT_BYTES, self._ahead_bytes - made_bytes)
            if not self._segments.make(size_bytes):
                break
            made_bytes += size_bytes


def prefault_bytes(capacity_bytes: int) -> int:
    """Return how much memory to allocate in advance for a store of that capacity."""
    return min(PREFAULT_BYTES, capacity_bytes // PREFAULT_SHARE)
