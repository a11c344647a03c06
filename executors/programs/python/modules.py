"""Reloads the user's modules when their files have changed."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

CHECK_EVERY_S = 1.0
"""The shortest time between two checks whether files have changed."""


class UserModules:
    """The modules from the directories of the client.

    When the file of one module changes, all are unloaded.
    """

    def __init__(self) -> None:
        self._directories: tuple[str, ...] = ()
        self._added: list[str] = []  # the directories that were not in sys.path before
        self._known: dict[str, tuple[str, float]] = {}  # by name: file, time of its last change
        self._checked_s = 0.0

    def refresh(self, directories: tuple[str, ...]) -> bool:
        """Add directories to sys.path, in place of those added before.

        Return whether modules were unloaded, because their files or the directories have changed.
        """
        if directories != self._directories:
            self._unload()
            sys.path[:] = [each for each in sys.path if each not in self._added]
            self._added = [each for each in directories if each not in sys.path]
            sys.path += self._added
            self._directories = directories
            return True
        now_s = time.monotonic()
        if now_s - self._checked_s < CHECK_EVERY_S:
            return False
        self._checked_s = now_s
        if any(_changed_at(file) != at for file, at in self._known.values()):
            self._unload()
            return True
        self.note()
        return False

    def note(self) -> None:
        """Note which modules are loaded now."""
        prefixes = tuple([f"{directory}/" for directory in self._directories])
        if prefixes:
            for name, module in list(sys.modules.items()):
                if name not in self._known and name != "__main__":
                    file: Any = getattr(module, "__file__", None)
                    if isinstance(file, str) and file.startswith(prefixes):
                        if "/site-packages/" not in file and name.partition(".")[0] != "ciel":
                            self._known[name] = (file, _changed_at(file))

    def _unload(self) -> None:
        self.note()
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
