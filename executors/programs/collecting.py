"""Runs a program, then packs the files that it has written into an archive (docs/adr/0081).

Usage: collecting.py [--move] COUNT PATTERN… PROGRAM ARGUMENT…. With `--move`, the packed files are
removed. The variable CIEL_COLLECTS names a text file with the path of the archive. This file uses
only the standard library: it imports nothing of ciel.
"""

from __future__ import annotations

import glob
import os
import resource
import signal
import stat
import sys
import tarfile
from collections.abc import Iterator

_HANDLED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
"""Signals that the packer ignores: the program handles them, and the packer ends after it."""
_NOT_STARTED = 127  # as in a shell
_NO_FILE = 66  # EX_NOINPUT of sysexits.h


def main() -> int:
    """Return the exit status of the program, or why its files could not be packed."""
    words = sys.argv[1:]
    moves = words[0] == "--move"
    count, *words = words[moves:]
    patterns, argv = words[: int(count)], words[int(count) :]
    with open(os.environ.pop("CIEL_COLLECTS"), encoding="utf-8") as file:
        archive = file.read().rstrip("\n")
    before = {name: _stamp(name) for pattern in patterns for name in _matches(pattern)}
    status = _run(argv)
    if status:
        return status
    names: list[str] = []
    for pattern in patterns:
        written = [name for name in _matches(pattern) if _stamp(name) != before.get(name)]
        if not written:
            return _fail(f"the program created no file {pattern!r}{_why_none(pattern, before)}")
        names += written
    try:
        _pack(archive, list(dict.fromkeys(names)), moves=moves)
    except OSError as error:
        return _fail(f"the files cannot be packed: {error}")
    return 0


def _run(argv: list[str]) -> int:
    """Run the program; return its exit status. If a signal ended it, end by the same signal."""
    for number in _HANDLED:
        signal.signal(number, signal.SIG_IGN)
    defaults = (*_HANDLED, signal.SIGPIPE, signal.SIGXFSZ)
    try:
        pid = os.posix_spawnp(argv[0], argv, os.environ, setsigdef=defaults)
    except OSError as error:
        print(f"{argv[0]} cannot be started: {error.strerror}", file=sys.stderr)
        return _NOT_STARTED
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -status not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return status


def _matches(pattern: str) -> Iterator[str]:
    for name in sorted(glob.glob(pattern, recursive=True)):
        if os.path.isfile(name):
            yield os.path.normpath(name)


def _stamp(name: str) -> tuple[int, ...]:
    """Return properties of a file that change when it is written."""
    state = os.stat(name)
    return (state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns)


def _why_none(pattern: str, before: dict[str, tuple[int, ...]]) -> str:
    if os.path.isdir(pattern):
        return f", but a directory: name its files, as in {os.path.join(pattern, '*')!r}"
    if before.keys() & set(_matches(pattern)):
        return "; the file of that name is older than the task, and unchanged"
    return ""


def _pack(archive: str, names: list[str], *, moves: bool) -> None:
    with tarfile.open(archive, "w", format=tarfile.GNU_FORMAT, dereference=True) as tar:
        for name in names:
            info = tar.gettarinfo(name)
            info.type, info.linkname = tarfile.REGTYPE, ""  # two names of a file are two files
            info.size = os.stat(name).st_size
            info.mode = stat.S_IMODE(info.mode)
            with open(name, "rb") as file:
                tar.addfile(info, file)
    for name in names if moves else ():
        os.unlink(name)


def _fail(why: str) -> int:
    print(f"ciel submit --collect: {why}", file=sys.stderr)
    return _NO_FILE


if __name__ == "__main__":
    sys.exit(main())
