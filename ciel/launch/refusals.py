"""Explains to the author of a task why the system could not execute a program.

The error number alone is misleading: the system also reports "No such file or directory" for an
existing script whose interpreter is missing.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat

_FIRST_LINE_MAX_BYTES = 256  # the kernel reads no more of a script's first line


def why_refused(program: str, number: int, *, cwd: str, path: str) -> str:
    """Explain why exec failed with error `number`.

    The file is looked up in `cwd` if the name has a slash, otherwise in `path`, the value of PATH.
    """
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
        return "its arguments and environment are longer than the system allows"
    return os.strerror(number)


def _missing(program: str, file: str | None) -> str:
    if file is None:
        return (
            "its PATH contains no program of that name; install the program there, or use its path"
        )
    if os.path.islink(file) and not os.path.exists(file):
        return f"it is a link to {os.readlink(file)!r}, which does not exist there"
    line = _first_line(file)
    if line is None:
        return "there is no such file"
    if line.startswith(b"#!"):
        interpreter = os.fsdecode(re.split(rb"[ \t]", line[2:].lstrip(b" \t"))[0])
        return f"the interpreter that its first line names, {interpreter!r}, does not exist there"
    return "its dynamic loader does not exist there; was it built for another system?"


def _forbidden(program: str, file: str | None) -> str:
    if file is None:
        return "the file of that name in its PATH is not executable; chmod +x makes it so"
    try:
        status = os.stat(file)
    except OSError:
        return "the worker's user may not enter a directory of its path"
    if stat.S_ISDIR(status.st_mode):
        return "it is a directory"
    if not stat.S_ISREG(status.st_mode):
        return "it is not a regular file"
    if not status.st_mode & 0o111:
        return "it is not executable; chmod +x makes it so"
    return "the worker's user may not execute it, or its file system is mounted noexec"


def _first_line(file: str) -> bytes | None:
    """Return the first line of a regular file, as the kernel reads it; None if unreadable."""
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
