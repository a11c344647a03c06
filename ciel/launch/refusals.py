"""Why the system did not execute a program, in words for whoever named it.

An error number alone misleads: "No such file or directory" is also said of a script that is there,
when its interpreter is not.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat

_FIRST_LINE_MAX_BYTES = 256  # the kernel reads no more of it


def why_refused(program: str, number: int, *, cwd: str, path: str) -> str:
    """Explain the errno of an exec; looks at the file, in `cwd` or sought in `path` (a PATH)."""
    if "/" in program:
        file: str | None = os.path.join(cwd, program)
    else:
        file = shutil.which(program, path=path)
    if number == errno.ENOENT:
        return _missing(program, file)
    if number == errno.EACCES:
        return _forbidden(program, file)
    if number == errno.ENOEXEC:
        if file is not None and not _first_line(file):
            return "it is empty"
        return "it is neither a program for that machine nor a script that begins with '#!'"
    if number == errno.E2BIG:
        return "its arguments and environment are longer than the system takes"
    return os.strerror(number)


def _missing(program: str, file: str | None) -> str:
    if file is None:
        return "no program of that name is in its PATH; install it there, or give a path to it"
    if os.path.islink(file) and not os.path.exists(file):
        return f"it is a link to {os.readlink(file)!r}, which does not exist there"
    line = _first_line(file)
    if line is None:
        return "there is no such file"
    if line.startswith(b"#!"):
        interpreter = os.fsdecode(re.split(rb"[ \t]", line[2:].lstrip(b" \t"))[0])
        return f"the interpreter that its first line names, {interpreter!r}, does not exist there"
    return "the loader that it was linked for does not exist there; was it built for that system?"


def _forbidden(program: str, file: str | None) -> str:
    if file is None:
        return "what has that name in its PATH is not executable; chmod +x makes it so"
    try:
        status = os.stat(file)
    except OSError:
        return "a directory on the way to it may not be entered"
    if stat.S_ISDIR(status.st_mode):
        return "it is a directory"
    if not stat.S_ISREG(status.st_mode):
        return "it is no regular file"
    if not status.st_mode & 0o111:
        return "it is not executable; chmod +x makes it so"
    return "the worker's user may not execute it, or its file system allows no programs"


def _first_line(file: str) -> bytes | None:
    """Return how a regular file begins, as far as the kernel looks; None if it cannot be read."""
    try:
        fd = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return None
        return os.read(fd, _FIRST_LINE_MAX_BYTES).partition(b"\n")[0]
    finally:
        os.close(fd)
