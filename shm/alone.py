"""A block store without a worker: its daemon, and the stores that the daemon serves.

The directory is a store on a disk. When a client loads an object, the daemon copies it from there
into memory. It keeps these copies, and the objects that clients commit, in memory until it ends.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ciel.shm.daemon import Daemon
from ciel.shm.layout import SHMD_DIRECTORY, SOCKET, member_of_store
from ciel.shm.store import open_shm
from ciel.shm.work import wait_in_queue
from ciel.storage.files import open_disk


class BlockStore:
    """Serves a directory from its construction until `close` (entry point `ciel.neighbours`).

    `capacity`: the memory to use, as a size; "": half of the free memory. The constructor raises
    StorageError, AlreadyServedError or OSError.
    """

    def __init__(self, reactor: Any, directory: Path, *, capacity: str, group: str) -> None:
        self.directory = Path(os.path.realpath(directory))
        self.socket = self.directory / SHMD_DIRECTORY / SOCKET
        with ExitStack() as opened:
            behind = opened.enter_context(open_disk({}, self.directory))
            options = {"capacity": capacity} if capacity else {}
            store = opened.enter_context(open_shm(options, self.directory))
            daemon = Daemon(
                reactor,
                store,
                self.directory,
                group=group,
                member=member_of_store(str(self.directory)),
                behind=behind,
                disk_turn=wait_in_queue,
            )
            opened.callback(daemon.close)
            self.figures = daemon.figures
            self._opened = opened.pop_all()

    def close(self) -> None:
        """Stop serving, and free the memory; a second call does nothing."""
        self._opened.close()
