"""Undoes what the functions of a task leave behind in the program, such as timers.

A program with a leak that cannot be undone (a thread, a child process) runs no other task.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Any


class Leaks:
    """The state of the program before its first task; `clear` restores it after each task."""

    def __init__(self) -> None:
        self._files = (sys.stdout, sys.stderr)
        self._frames = sys.getrecursionlimit()
        self.own_threads = 0

    def clear(self) -> str:
        """Undo what can be undone; return a description of what cannot, for the log."""
        if (sys.stdout, sys.stderr) != self._files:
            sys.stdout, sys.stderr = self._files
        try:
            for file in self._files:
                file.flush()
        except (OSError, ValueError):
            return "standard output closed"
        if (signals := sys.modules.get("signal")) is not None:  # otherwise no timer is set
            _stop_timers(signals)
        if sys.getrecursionlimit() != self._frames:
            sys.setrecursionlimit(self._frames)
        if threading.active_count() > 1 + self.own_threads:
            main = threading.main_thread()
            left = [t for t in threading.enumerate() if not t.daemon and t is not main]
            if left:
                return f"threads running ({', '.join([t.name for t in left])})"
        return "processes running" if _has_children() else ""


def _stop_timers(signals: Any) -> None:
    """Stop interval timers: their signals would kill another task."""
    for timer in (signals.ITIMER_REAL, signals.ITIMER_VIRTUAL, signals.ITIMER_PROF):
        if signals.getitimer(timer)[0]:
            signals.setitimer(timer, 0)


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True
