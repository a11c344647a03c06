"""The thread that has tasks share; it sleeps while there is nothing to share."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ciel.executors.programs.python.evaluation.sharing import Sharing

SHARE_AFTER_S = 0.01
"""So long a task runs before it shares, and so often it does."""


class Clock:
    """Looks on at one task at a time."""

    def __init__(self) -> None:
        self._wake = threading.Event()
        self._is_closed = threading.Event()
        self._watched: Sharing | None = None
        self._since_s = 0.0
        self._thread: threading.Thread | None = None

    @property
    def thread_count(self) -> int:
        """How many threads are ours."""
        return int(self._thread is not None)

    def begin(self) -> None:
        """A task begins."""
        self._since_s = time.monotonic()

    def watch(self, sharing: Sharing) -> None:
        """Have a task share, from when it has run for a while."""
        self._watched = sharing
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="ciel-sharing", daemon=True)
            self._thread.start()
        self._wake.set()

    def end(self) -> None:
        """The task is over."""
        self._watched = None

    def close(self) -> None:
        """No more tasks will come."""
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
            left_s = self._since_s + SHARE_AFTER_S - time.monotonic()
            if self._is_closed.wait(left_s if 0 < left_s < SHARE_AFTER_S else SHARE_AFTER_S):
                return
            if watched is self._watched and time.monotonic() >= self._since_s + SHARE_AFTER_S:
                self._share(watched)

    def _share(self, watched: Sharing) -> None:
        with watched.lock:
            if watched is self._watched and not watched.share():
                watched.is_armed = False
                self._watched = None
