"""Manages the files of a local cluster: its run directory, and directories removed at its end.

A run directory, `$XDG_STATE_HOME/ciel/runs/<time>`, contains the logs and the scratch directories
of failed tasks. The last ten run directories are kept. A `Sweeper` removes all other directories of
the cluster at its end, even if this process is killed. The directory of a resumable cluster also
contains its journal, and a link to the work directories of its workers, until `forget` removes
them. Work directories are where files survive a restart of the host, on a large disk, and at a
short path: in $TMPDIR, or else in /var/tmp.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from ciel.access.access_file import wait_for_end
from ciel.access.paths import state_directory
from ciel.journal.directory import lock_directory
from ciel.journal.errors import JournalInUseError
from ciel.storage.trees import remove_tree

RUNS_KEPT: Final = 10
_LASTING: Final = "/var/tmp"
"""Its files outlive a restart of the host; those in /tmp often do not."""
_WORK: Final = "work"

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
    case ${1##*/} in ciel-*) ;; *) return ;; esac
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
    rm -rf -- "$path".*
done
printf %s "$leased" | while IFS= read -r path; do
    case $path in
        *'*') for left in "${path%?}"*; do take "$left"; done ;;
        *) take "$path" ;;
    esac
done
for left in "/dev/shm/ciel-full.$(id -u)" "/dev/shm/ciel-full.$(id -u)".[0-9]; do take "$left"; done
for path; do  # the last user of a mount point unmounts it; while there are others, it is busy
    mount=${path%/*}
    case $mount in /dev/shm/ciel-*) [ -d "$mount" ] && umount "$mount" && rmdir "$mount" ;; esac
done
"""


def journal_directory(directory: Path) -> Path:
    """Return the journal of the resumable cluster in `directory`."""
    return directory / "journal"


def open_work(directory: Path, environ: Mapping[str, str]) -> Path:
    """Return the directory for the work directories of the resumable cluster in `directory`.

    Create it if it does not exist, or if something else has taken its place.
    """
    link = directory / _WORK
    if (found := _linked(link)) is not None:
        return found
    path = Path(tempfile.mkdtemp(prefix="ciel-work-", dir=environ.get("TMPDIR") or _LASTING))
    link.unlink(missing_ok=True)
    link.symlink_to(path)
    return path


def _linked(link: Path) -> Path | None:
    """Return the directory of this user that a link points to; None if there is none.

    Anybody may create files in /var/tmp.
    """
    try:
        path = link.readlink()
        state = path.lstat()
    except OSError:
        return None
    return path if stat.S_ISDIR(state.st_mode) and state.st_uid == os.geteuid() else None


def can_resume(directory: Path) -> bool:
    """Return whether a resumable cluster in `directory` has left work to continue."""
    return journal_directory(directory).exists()


def await_release(directory: Path, timeout_s: float) -> None:
    """Wait until no master uses the journal there: after a crash the master ends a moment later
    than the process that has started it. Raises JournalError if it does not end in time.
    """
    try:
        fd = lock_directory(journal_directory(directory))
    except JournalInUseError as error:
        if not error.owner.isdecimal() or not wait_for_end(int(error.owner), timeout_s):
            raise
        fd = lock_directory(journal_directory(directory))
    os.close(fd)


def forget(directory: Path) -> None:
    """Remove what the resumable cluster in `directory` has left; raises OSError."""
    link = directory / _WORK
    if (work := _linked(link)) is not None:
        remove_tree(work)
    link.unlink(missing_ok=True)
    if can_resume(directory):
        remove_tree(journal_directory(directory))


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
        """Also remove these directories at the end; they need not exist yet.

        No other process may use them, or names that start with one of theirs and a dot.
        """
        for path in paths:
            self._pipe.write(os.fsencode(path) + b"\n")

    def add_leased(self, paths: Iterable[str]) -> None:
        """Also remove these directories at the end, unless another process holds their leases.

        The last part of each path starts with `ciel-`; a `*` at its end matches the rest of a name.
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
