"""Raises the limit of open files for daemons, but not for their programs.

A daemon has a descriptor for each peer, each input and each transfer, and never uses select(2).
Programs may use it, and it supports no descriptors from 1,024 on. So programs get the limit with
which the daemon was started. A process that only imports ciel keeps its limit.
"""

import contextlib
import errno
import resource

_started_with: int | None = None


def raise_open_files() -> None:
    """Raise the soft limit of this process to the hard limit."""
    global _started_with
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if _started_with is None:
        _started_with = soft
    with contextlib.suppress(OSError, ValueError):  # the hard limit is now above the system's
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def lower_open_files(pid: int) -> None:
    """Set the original limit of this process for a child, whose children inherit it."""
    if _started_with is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        with contextlib.suppress(ProcessLookupError):  # it has ended, which callers notice later
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (_started_with, hard))


def open_files_advice(error: Exception) -> str:
    """Return advice to append to the text of an error that is about open files, else nothing."""
    number = getattr(error, "errno", None) or getattr(error, "error_number", None)
    if number != errno.EMFILE:
        return ""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return f"; raise the limit of open files (ulimit -n, now {soft})"
