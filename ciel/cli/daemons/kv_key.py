"""Tells the tasks of a worker where the key-value base is, and which key opens it."""

from __future__ import annotations

import os
from pathlib import Path

from ciel.access.keys import Key, Role
from ciel.execution.environment import KV_KEY_FILE, KV_URL


def kv_environment(url: str, directory: Path, key: Key) -> dict[str, str]:
    """Return the variables for tasks; write the key of the role `kv` to a file in a directory.

    A worker that has only the key of its role opens bases with that.
    """
    if not url:
        return {}
    path = directory / "kv-key"
    path.unlink(missing_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(fd, "w") as file:
        file.write((key.derive(Role.KV) or key).text() + "\n")
    return {KV_URL: url, KV_KEY_FILE: str(path)}
