"""Removes the state directories of masters that have ended, except the latest ones.

The latest ones stay, since a master that restarts at the same port reads its key from there. Only
directories of masters that listen on loopback are removed: the keys of other masters may have been
copied to other hosts.
"""

import fcntl
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from ciel.access import access_file
from ciel.access.errors import AccessError
from ciel.access.paths import (
    ACCESS_FILE_NAME,
    current_path,
    host_name,
    state_directory,
    up_lock_path,
)

ENDED_KEPT: Final = 10
KV_NAME: Final = "kv"
"""The subdirectory with the key-value base of `ciel up --kv`."""


def try_prune_ended(environ: Mapping[str, str]) -> None:
    """Call `prune_ended`, unless a `ciel up` on this host is starting a cluster."""
    path = up_lock_path(environ)
    with suppress(OSError), path.open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        prune_ended(environ)


def prune_ended(environ: Mapping[str, str]) -> None:
    """Remove the directories of this host's ended masters, except the latest ten.

    The directory of the latest `ciel up`, to which its link points, is not removed either, nor is
    a directory with a key-value base.
    """
    link = current_path(environ)
    current = link.readlink() if link.is_symlink() else None
    ended: list[tuple[float, Path]] = []
    for path in state_directory(environ).glob(f"localhost@{host_name()}_*/{ACCESS_FILE_NAME}"):
        try:
            is_kept = path == current or (path.parent / KV_NAME).exists()
            if not is_kept and not access_file.read(path).is_alive():
                ended.append((path.stat().st_mtime, path))
        except (AccessError, OSError):
            continue  # the file is not trusted, or another master is removing it
    for _, path in sorted(ended)[:-ENDED_KEPT]:
        shutil.rmtree(path.parent, ignore_errors=True)
