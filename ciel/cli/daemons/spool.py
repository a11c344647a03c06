"""The work directory of a worker: objects, scratch directories, logs, and files of failed tasks."""

from __future__ import annotations

import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from ciel.storage import leases
from ciel.storage.trees import remove_tree
from ciel.worker.host import host_identity

_OWNER = "owner"  # the file that a worker locks
_KEPT = "kept"
_PORT = "port"  # the file with the last port of a worker
_TEMPORARY_PREFIX = "ciel-worker-"
_LEFT_MAX = 10  # temporary work directories of ended workers, with files of failed tasks


class Spool:
    """Owns one work directory: `path` if a user names it, else a new temporary directory.

    `identity` names the directory uniquely among all hosts while this worker has it locked; else
    it is "".
    """

    def __init__(self, path: str | None) -> None:
        self.is_temporary = path is None
        # Absolute, since programs run in other directories.
        self.path = Path(path or tempfile.mkdtemp(prefix=_TEMPORARY_PREFIX)).absolute()
        self.identity = ""
        self._owner_fd: int | None = None
        self._is_ours = self.is_temporary  # else it may be another worker's

    @property
    def kept(self) -> Path:
        """The directory with the files of failed tasks."""
        return self.path / _KEPT

    @property
    def store(self) -> Path:
        return self.path / "store"

    def open(self) -> None:
        """Create the directory, and lock it: two workers would overwrite each other's pins.

        If the file system has no locks or no space, the directory stays unlocked. Raises
        StoreSpecError, OSError.
        """
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self.is_temporary:
            _prune_left(self.path.parent)
        place_fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._owner_fd = leases.own(
                _OWNER, parent_fd=place_fd, subject=str(self.path), what="this spool",
                instead="directory",
            )  # fmt: skip
        except OSError:
            self._is_ours = True
            return  # the file system has no locks, or is full
        finally:
            os.close(place_fd)
        self._is_ours = True
        place = self.path.stat()  # no other process has it while this one lives
        self.identity = f"{host_identity()}:{place.st_dev}:{place.st_ino}"

    def last_port(self) -> int:
        """Return the port of the last worker with this directory; 0 if it is not known."""
        try:
            text = (self.path / _PORT).read_text("ascii", errors="replace").strip()
        except OSError:
            return 0
        return int(text) if text.isdecimal() and len(text) <= 5 and int(text) < 1 << 16 else 0

    def note_port(self, port: int) -> None:
        """Note the port of this worker for the next one with this directory."""
        with suppress(OSError):  # a full disk: then the next worker has another port
            (self.path / _PORT).write_text(f"{port}\n")

    def close(self) -> None:
        """Release the lock."""
        if self._owner_fd is not None:
            os.close(self._owner_fd)
            self._owner_fd = None

    def remove(self) -> bool:
        """Remove everything except the files of failed tasks; return whether no such files exist.
        A directory that another worker uses stays unchanged.
        """
        if not self._is_ours:
            return True
        (self.path / _OWNER).unlink(missing_ok=True)
        for entry in self.path.iterdir() if self.path.exists() else ():
            if entry.name != _KEPT:
                remove_tree(entry)
        try:
            self.path.rmdir()
        except OSError:
            return False
        return True

    def logs_directory(self, log: str | None) -> Path:
        """Return the directory for the logs of jobs.

        It is in the work directory; or, if the worker has a log file, beside that file. No other
        worker uses it.
        """
        if log is None:
            return self.path / "jobs"
        path = Path(log).resolve()
        return path.with_name(f"{path.stem}-jobs")


def _prune_left(directory: Path) -> None:
    """Remove temporary work directories of ended workers, except the latest ones."""
    left: list[tuple[float, Path]] = []
    for path in directory.glob(f"{_TEMPORARY_PREFIX}*"):
        with suppress(OSError):  # it belongs to another user, or is being removed
            state = path.lstat()
            is_ours = stat.S_ISDIR(state.st_mode) and state.st_uid == os.geteuid()
            if is_ours and os.listdir(path) == [
                _KEPT
            ]:  # the directory of a running worker contains more
                left.append((state.st_mtime, path))
    for _, path in sorted(left)[:-_LEFT_MAX]:
        with suppress(OSError):
            remove_tree(path)
