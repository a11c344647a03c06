"""A thread that makes a long task share its work; it sleeps while there is nothing to share."""

from __future__ import annotations

import threading
import time
from contextlib import AbstractContextManager
from typing import Any, Protocol

SHARE_AFTER_S = 0.01
"""A task first shares after this running time, then at this interval."""


class Shareable(Protocol):
    """A task that can share work with other programs."""

    is_armed: bool

    @property
    def lock(self) -> AbstractContextManager[Any]:
        """Guards the state that the timer's thread and the task's thread change."""

    def share(self) -> bool:
        """Share work; return whether there may be more later. The caller holds the lock."""


class ShareTimer:
    """Watches one task at a time."""

    def __init__(self) -> None:
        self._wake = threading.Event()
        self._is_closed = threading.Event()
        self._watched: Shareable | None = None
        self._since_s = 0.0
        self._thread: threading.Thread | None = None

    @property
    def thread_count(self) -> int:
        """The number of its threads."""
        return int(self._thread is not None)

    def begin_task(self) -> None:
        """Note that a task starts now."""
        self._since_s = time.monotonic()

    def watch(self, shareable: Shareable) -> None:
        """Call `share` of a task regularly, once the task has run for `SHARE_AFTER_S`."""
        self._watched = shareable
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="ciel-sharing", daemon=True)
            self._thread.start()
        self._wake.set()

    def end_task(self) -> None:
        """Stop watching: the task has ended."""
        self._watched = None

    def close(self) -> None:
        """End the thread."""
        self._is_closed.set()
        self._wake.set()

    def _run(self) -> None:
        while True:
            self._wake.wait()
            if self._is_closed.is_set():
                return
            watched = self._watched
            if watched is None:
                self._wake.clear()
                if self._watched is not None:
                    self._wake.set()
                continue
            rest_s = self._since_s + SHARE_AFTER_S - time.monotonic()
            if self._is_closed.wait(rest_s if 0 < rest_s < SHARE_AFTER_S else SHARE_AFTER_S):
                return
            if watched is self._watched and time.monotonic() >= self._since_s + SHARE_AFTER_S:
                self._share(watched)

    def _share(self, watched: Shareable) -> None:
        with watched.lock:
            if watched is self._watched and not watched.share():
                watched.is_armed = False
                self._watched = None
