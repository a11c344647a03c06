"""What functions leave behind in the program that ran them: put right between two tasks, or else
the program serves no other.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Any

LOOK_EVERY_S = 1.0
"""Between two looks whether modules have changed."""


class Traces:
    """How the program was before its first task."""

    def __init__(self) -> None:
        self._files = (sys.stdout, sys.stderr)
        self._frames = sys.getrecursionlimit()
        self._threads = 1
        self.own_threads = 0

    def clear(self) -> str:
        """Put right what can be put right; return what cannot, in words for people."""
        if (sys.stdout, sys.stderr) != self._files:
            sys.stdout, sys.stderr = self._files
        try:
            for file in self._files:
                file.flush()
        except (OSError, ValueError):
            return "standard output closed"
        if (signals := sys.modules.get("signal")) is not None:  # else nobody has set a timer
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
    """See to it that no timer rings in another task, which its signal would kill."""
    for timer in (signals.ITIMER_REAL, signals.ITIMER_VIRTUAL, signals.ITIMER_PROF):
        if signals.getitimer(timer)[0]:
            signals.setitimer(timer, 0)


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


class Modules:
    """The modules that came from the places of callers: when their files change, all of them are
    loaded anew.
    """

    def __init__(self) -> None:
        self._places: tuple[str, ...] = ()
        self._added: list[str] = []  # of these, what was not in sys.path anyway
        self._known: dict[str, tuple[str, float]] = {}  # by name: file, time of its last change
        self._looked_s = 0.0

    def refresh(self, places: tuple[str, ...]) -> bool:
        """Have modules be found in some places; return whether those that are loaded are none of
        those that are there now, and were forgotten.
        """
        if places != self._places:
            self._forget()
            sys.path[:] = [place for place in sys.path if place not in self._added]
            self._added = [place for place in places if place not in sys.path]
            sys.path += self._added
            self._places = places
            return True
        now_s = time.monotonic()
        if now_s - self._looked_s < LOOK_EVERY_S:
            return False
        self._looked_s = now_s
        if any(_changed_at(file) != at for file, at in self._known.values()):
            self._forget()
            return True
        self.look()
        return False

    def look(self) -> None:
        """Note which modules there are: some were loaded."""
        prefixes = tuple([f"{place}/" for place in self._places])
        if prefixes:
            for name, module in list(sys.modules.items()):
                if name not in self._known and name != "__main__":
                    file: Any = getattr(module, "__file__", None)
                    if isinstance(file, str) and file.startswith(prefixes):
                        if "/site-packages/" not in file and name.partition(".")[0] != "ciel":
                            self._known[name] = (file, _changed_at(file))

    def _forget(self) -> None:
        self.look()
        for name in self._known:
            sys.modules.pop(name, None)
        self._known.clear()
        importlib = sys.modules.get("importlib")
        if importlib is not None:
            importlib.invalidate_caches()


def _changed_at(file: str) -> float:
    try:
        return os.stat(file).st_mtime
    except OSError:
        return 0.0
