"""The limit of open files: a daemon's is raised as far as it may be, that of its programs is not.

A daemon holds a descriptor for each peer, each input and each transfer, and never asks select(2)
about them. A program may, and that call knows none from 1,024 on; so programs get the limit that
we were started with. Nothing is raised in a process that only uses ciel.
"""

import contextlib
import errno
import resource

_started_with: int | None = None


def raise_open_files() -> None:
    """Raise the limit of this process to the hard one."""
    global _started_with
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if _started_with is None:
        _started_with = soft
    with contextlib.suppress(OSError, ValueError):  # the system allows less by now
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def lower_open_files(pid: int) -> None:
    """Give a child of ours the limit that we were started with, for it to hand on."""
    if _started_with is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        with contextlib.suppress(ProcessLookupError):  # it has ended, which is noticed elsewhere
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (_started_with, hard))


def open_files_advice(error: Exception) -> str:
    """Say what to raise, if that is what an error is about; to be put behind its text."""
    number = getattr(error, "errno", None) or getattr(error, "error_number", None)
    if number != errno.EMFILE:
        return ""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return f"; raise the limit of open files (ulimit -n, now {soft})"
