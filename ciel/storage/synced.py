"""The store `synced`: a store of plain files that syncs each commit to the device."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ciel.storage.files import FileStore, open_disk


def open_synced(options: Mapping[str, str], directory: Path) -> FileStore:
    """Open the store in a directory; options: `capacity` (a size)."""
    return open_disk({**options, "sync": "yes"}, directory)
