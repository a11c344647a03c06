"""Where a cluster of our own leaves things: its run directory, and what must go when it does.

A run directory, `$XDG_STATE_HOME/ciel/runs/<time>`, keeps logs and the scratch directories of
failed tasks; the last ten stay. All else lies in directories that are removed at the end, by us or,
when we are killed, by a `Sweeper`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from ciel.access.places import state_directory

RUNS_KEPT: Final = 10

# Waits for the end of its standard input, which is ours; then for the launcher (at most 5 s), which
# by then is killing all that could still write. Its arguments are the launcher and the directories.
_SWEEP = """
launcher=$1; shift
read -r _
tries=50
while rm -rf -- "$@"; [ -d "/proc/$launcher" ] && [ "$tries" -gt 0 ]; do
    tries=$((tries - 1)); sleep 0.1
done
rm -rf -- "$@"
for path; do  # an arena goes with the last who has something there; else it is busy
    arena=${path%/*}
    case $arena in */ciel-arena-*) [ -d "$arena" ] && umount "$arena" && rmdir "$arena" ;; esac
done
"""


class RunDirectory:
    """A new run directory. It is locked while we live, so that nobody prunes it."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        runs = state_directory(environ) / "runs"
        runs.mkdir(mode=0o700, parents=True, exist_ok=True)
        _prune(runs, RUNS_KEPT - 1)
        self.path = _make(runs)
        self._fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(self._fd, fcntl.LOCK_SH | fcntl.LOCK_NB)

    def release(self) -> None:
        """Let it be pruned when its time has come."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _make(runs: Path) -> Path:
    while True:
        now_ns = time.time_ns()
        moment = time.strftime("%Y-%m-%dT%H-%M-%S", time.localtime(now_ns // 10**9))
        path = runs / f"{moment}.{now_ns % 10**9 // 1000:06}"
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
            return path


def _prune(runs: Path, kept: int) -> None:
    """Remove the oldest runs that are over, until `kept` are left."""
    for path in sorted(runs.iterdir())[:-kept]:
        with contextlib.suppress(OSError):  # in use, or pruned by another at this moment
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path)
            finally:
                os.close(fd)


class Sweeper:
    """A small shell that removes directories when this process is gone, even if it is killed.

    It has a session of its own, and ends when we do.
    """

    def __init__(self, launcher_pid: int, paths: Iterable[Path]) -> None:
        read_fd, self._write_fd = os.pipe()  # only we hold the writing end
        null = ("/dev/null", os.O_RDWR, 0)
        try:
            self._pid = os.posix_spawn(
                "/bin/sh",
                ["sh", "-c", _SWEEP, "ciel-sweeper", str(launcher_pid), *map(str, paths)],
                {"PATH": os.defpath},
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, read_fd, 0),
                    (os.POSIX_SPAWN_OPEN, 1, *null),
                    (os.POSIX_SPAWN_OPEN, 2, *null),
                ],
                setsid=True,
            )
        except BaseException:
            os.close(self._write_fd)
            raise
        finally:
            os.close(read_fd)

    def finish(self) -> None:
        """Have it sweep now, and wait until it has; the launcher must be gone."""
        os.close(self._write_fd)
        with contextlib.suppress(ChildProcessError):  # somebody else in this process reaped it
            os.waitpid(self._pid, 0)
