"""Manages the files of a local cluster: its run directory, and directories removed at its end.

A run directory, `$XDG_STATE_HOME/ciel/runs/<time>`, contains the logs and the scratch directories
of failed tasks. The last ten run directories are kept. A `Sweeper` removes all other directories of
the cluster at its end, even if this process is killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from ciel.access.paths import state_directory
from ciel.storage.trees import remove_tree

RUNS_KEPT: Final = 10

# Reads paths to remove, one on each line, until this process closes the pipe or ends. Then it waits
# at most 5 s for the end of the launcher, which kills all processes that could still write. After
# that it removes directories with a lease (`ciel.storage.leases`), unless another process holds the
# lease.
_SWEEP = """
launcher=$1; shift
newline='
'
leased=
while IFS= read -r path; do
    case $path in
        leased:*) leased=$leased${path#leased:}$newline ;;
        *) set -- "$@" "$path" ;;
    esac
done
take() {
    [ -d "$1" ] && [ ! -L "$1" ] && [ -O "$1" ] && (
        flock -n 9 && [ "$1" -ef /proc/self/fd/9 ] &&
            mv -- "$1" "$1.$$" && rm -rf -- "$1.$$"
    ) 9<"$1"
}
tries=50
while rm -rf -- "$@"; [ -d "/proc/$launcher" ] && [ "$tries" -gt 0 ]; do
    tries=$((tries - 1)); sleep 0.1
done
rm -rf -- "$@"
for path; do  # a process that was killed while it removed a directory had renamed it
    case $path in /dev/shm/*) rm -rf -- "$path".* ;; esac
done
printf %s "$leased" | while IFS= read -r path; do
    case $path in
        *'*') for left in "${path%?}"*; do take "$left"; done ;;
        *) take "$path" ;;
    esac
done
for left in "/dev/shm/ciel-full.$(id -u)" "/dev/shm/ciel-full.$(id -u)".[0-9]; do take "$left"; done
for path; do  # the last user of an arena unmounts it; while there are others, it is busy
    arena=${path%/*}
    case $arena in */ciel-arena-*) [ -d "$arena" ] && umount "$arena" && rmdir "$arena" ;; esac
done
"""


class RunDirectory:
    """A new run directory. A lock protects it from being pruned while this process runs."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        runs = state_directory(environ) / "runs"
        runs.mkdir(mode=0o700, parents=True, exist_ok=True)
        _prune(runs, RUNS_KEPT - 1)
        self.path = _make(runs)
        self._fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(self._fd, fcntl.LOCK_SH | fcntl.LOCK_NB)

    def release(self) -> None:
        """Release the lock, so that the directory may be pruned."""
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
    """Remove the oldest run directories that are not locked, until `kept` are left."""
    for path in sorted(runs.iterdir())[:-kept]:
        with contextlib.suppress(OSError):  # it is locked, or another process prunes it
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove_tree(path)
            finally:
                os.close(fd)


class Sweeper:
    """A shell script that removes directories when this process has ended, even if it was killed.

    It runs in another session, which a terminal does not interrupt.
    """

    def __init__(self, launcher_pid: int) -> None:
        read_fd, write_fd = os.pipe()
        # No other process has the writing end, so the kernel closes it when this process ends.
        self._pipe = open(write_fd, "wb", buffering=0)  # noqa: SIM115  # kept open
        null = ("/dev/null", os.O_RDWR, 0)
        try:
            self._pid = os.posix_spawn(
                "/bin/sh",
                ["sh", "-c", _SWEEP, "ciel-sweeper", str(launcher_pid)],
                {"PATH": os.defpath},
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, read_fd, 0),
                    (os.POSIX_SPAWN_OPEN, 1, *null),
                    (os.POSIX_SPAWN_OPEN, 2, *null),
                ],
                setsid=True,
            )
        except BaseException:
            self._pipe.close()
            raise
        finally:
            os.close(read_fd)

    def add(self, paths: Iterable[Path]) -> None:
        """Also remove these directories at the end; they need not exist yet."""
        for path in paths:
            self._pipe.write(os.fsencode(path) + b"\n")

    def add_leased(self, paths: Iterable[str]) -> None:
        """Also remove these directories at the end, unless another process holds their leases.

        A `*` at the end of a path matches the rest of a name.
        """
        self.add(Path(f"leased:{path}") for path in paths)

    def let_go(self) -> None:
        """Close the pipe of this copy in a forked child."""
        self._pipe.close()

    def finish(self) -> None:
        """Remove the directories now, and wait for that; the launcher must have ended."""
        self._pipe.close()
        with contextlib.suppress(ChildProcessError):  # other code in this process has reaped it
            os.waitpid(self._pid, 0)
