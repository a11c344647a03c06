"""Stores the pins of a worker in a file, so that they outlive its process as its objects do."""

from __future__ import annotations

import os
from collections.abc import Container
from pathlib import Path

from ciel.core.errors import InvalidIdError
from ciel.core.ids import ObjectId, check_id
from ciel.worker.state.uploads import Uploads


class Pins:
    """Pins objects in the worker's state and in a file, with an id on each line.

    Ids in the file that are not `stored` are ignored.

    Methods raise OSError if the file cannot be written; then nothing has changed.
    """

    def __init__(self, path: Path, uploads: Uploads, stored: Container[ObjectId]) -> None:
        self._path = path
        self._uploads = uploads
        for object_id in _read(path):
            if object_id in stored:
                uploads.pin(object_id)

    @property
    def ids(self) -> list[ObjectId]:
        return list(self._uploads.pinned)

    def add(self, object_id: ObjectId) -> None:
        if object_id in self._uploads.pinned:
            return
        with open(self._path, "a", encoding="ascii", opener=_private) as file:
            file.write(f"{object_id}\n")
        self._uploads.pin(object_id)

    def remove(self, object_id: ObjectId) -> bool:
        """Unpin an object; return whether it was pinned."""
        if object_id not in self._uploads.pinned:
            return False
        left = [f"{other}\n" for other in self.ids if other != object_id]
        new = self._path.with_name(f"{self._path.name}.new")
        with open(new, "w", encoding="ascii", opener=_private) as file:
            file.writelines(left)
        os.replace(new, self._path)
        self._uploads.unpin(object_id)
        return True


def _read(path: Path) -> list[ObjectId]:
    """Read the ids in a file. Its last line may be incomplete."""
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
