"""Writes dumps of a daemon: on SIGUSR1, when its event loop is blocked, and when it fails.

A dump (docs/hanging.md) contains the stacks of all threads, the state, the pending timers, and the
latest messages of the control connections. It has ids, arguments and paths of users, so only its
owner can read it.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from twisted.logger import Logger

from ciel import __version__
from ciel.net.flight_recorder import RECORD_TITLE, FlightRecorder

log = Logger()

STALL_S: Final = 1.0
PAUSE_BETWEEN_S: Final = 300.0
"""The shortest time between two dumps of a blocked event loop."""
FILES_MAX: Final = 5
TIMERS_MAX: Final = 200


class Diagnosis:
    """Writes dumps of one daemon into `directory`. `state` returns its state as a JSON value."""

    def __init__(
        self,
        name: str,
        reactor: Any,
        directory: Path,
        recorder: FlightRecorder,
        state: Callable[[], Any],
    ) -> None:
        self._name = name
        self._reactor = reactor
        self._directory = directory
        self._recorder = recorder
        self._state = state
        self._over = threading.Event()
        self._stalled_at_s = -PAUSE_BETWEEN_S

    def start(self) -> None:
        """Handle SIGUSR1, and watch the loop in a thread."""
        signal.signal(signal.SIGUSR1, self._on_signal)
        threading.Thread(target=self._watch, name="ciel-watch", daemon=True).start()

    def stop(self) -> None:
        self._over.set()

    def dump(self, reason: str) -> Path | None:
        """Write a dump; return its path, or None if that failed, which is logged."""
        stamp = time.strftime("%Y-%m-%dT%H-%M-%S")
        path = self._directory / f"{self._name}-{os.getpid()}-{stamp}-{time.monotonic_ns()}.dump"
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(fd, "w", encoding="utf-8", errors="backslashreplace") as file:
                file.writelines(f"{line}\n" for line in self._lines(reason))
            self._remove_old()
        except OSError as error:
            log.error("cannot write a dump to {path}: {error}", path=path, error=error.strerror)
            return None
        log.warn("wrote a dump to {path}: {reason}", reason=reason, path=path)
        return path

    def _on_signal(self, number: int, frame: object) -> None:
        self.dump("it received SIGUSR1")

    def _watch(self) -> None:
        """Write a dump if the event loop has not waited for a second."""
        while not self._over.wait(STALL_S):
            now_s = time.monotonic()
            busy_s = now_s - self._reactor.woke_s
            if busy_s > STALL_S and now_s - self._stalled_at_s > PAUSE_BETWEEN_S:
                self._stalled_at_s = now_s
                self.dump(f"its event loop was blocked for {busy_s:.1f} s")

    def _lines(self, reason: str) -> Iterator[str]:
        yield f"{self._name} of ciel {__version__}, process {os.getpid()}, {platform.platform()}"
        yield f"written at {time.time():.6f}: {reason}"
        yield "\n--- stacks ---"
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        for ident, frame in sys._current_frames().items():
            yield f"thread {names.get(ident, '?')}"
            yield "".join(traceback.format_stack(frame)).rstrip()
        yield "\n--- state ---"
        try:
            yield json.dumps(self._state(), indent=1, default=str)
        except Exception:  # the dump may be due to a broken state
            yield traceback.format_exc()
        yield "\n--- timers ---"
        with suppress(Exception):  # another thread may read them while they change
            for call in sorted(self._reactor.getDelayedCalls(), key=lambda c: c.getTime())[
                :TIMERS_MAX
            ]:
                yield f"in {call.getTime() - self._reactor.seconds():.3f} s: {call.func}"
        yield "\n--- the latest messages, < received, > sent ---"
        yield from self._recorder.lines()
        yield f"\n--- {RECORD_TITLE} ---"
        yield from self._recorder.encoded_lines()

    def _remove_old(self) -> None:
        dumps = sorted(self._directory.glob(f"{self._name}-*.dump"), key=os.path.getmtime)
        for path in dumps[:-FILES_MAX]:
            path.unlink(missing_ok=True)
