"""Pins outlive a worker's process as its objects do: a file with an id on each line."""

from __future__ import annotations

import os
from collections.abc import Container
from pathlib import Path

from ciel.core.errors import InvalidIdError
from ciel.core.ids import ObjectId, check_id


class Pins:
    """Keeps `pinned` and a file alike. What is in the file and not in the store is forgotten.

    Raises OSError where the file cannot be written; then nothing has changed.
    """

    def __init__(
        self, path: Path, pinned: dict[ObjectId, None], stored: Container[ObjectId]
    ) -> None:
        self._path = path
        self._pinned = pinned
        for object_id in _read(path):
            if object_id in stored:
                pinned[object_id] = None

    @property
    def ids(self) -> list[ObjectId]:
        return list(self._pinned)

    def add(self, object_id: ObjectId) -> None:
        if object_id in self._pinned:
            return
        with open(self._path, "a", encoding="ascii", opener=_private) as file:
            file.write(f"{object_id}\n")
        self._pinned[object_id] = None

    def remove(self, object_id: ObjectId) -> bool:
        """Unpin it, if it is pinned; say whether it was."""
        if object_id not in self._pinned:
            return False
        left = [f"{other}\n" for other in self._pinned if other != object_id]
        new = self._path.with_name(f"{self._path.name}.new")
        with open(new, "w", encoding="ascii", opener=_private) as file:
            file.writelines(left)
        os.replace(new, self._path)
        del self._pinned[object_id]
        return True


def _read(path: Path) -> list[ObjectId]:
    """Read the ids of a file, whose last line may be torn."""
    try:
        text = path.read_text(encoding="ascii", errors="replace")
    except FileNotFoundError:
        return []
    found = []
    for line in text.split("\n")[:-1]:
        try:
            found.append(ObjectId(check_id(line)))
        except InvalidIdError:
            continue
    return found


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
