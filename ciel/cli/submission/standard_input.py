"""Uploads the standard input of `ciel submit` for a single program.

Arrays read standard input only with `--each-line -` or `--pipe` (`elements`). With any other array
the command prints a note if standard input has content.
"""

from __future__ import annotations

import array
import fcntl
import os
import stat
import sys
import tempfile
import termios
import threading
from typing import IO, Final

from ciel.cli.outcome import say
from ciel.client.client import Client
from ciel.core.refs import Reference

_STDIN = 0
_MEMORY_MAX_BYTES: Final = 8 << 20  # more is written to a temporary file
_CHUNK_BYTES = 1 << 20
_PATIENCE_S: Final = 2.0
"""How long the command reads standard input before it prints what it waits for."""


def upload(client: Client, program: str) -> Reference | None:
    """Upload standard input, from its current position to its end.

    It must be a file, a pipe or a socket. Return None if it is a terminal, `/dev/null`, or closed.
    Raises OSError, UploadError.
    """
    kind = _kind()
    if kind == stat.S_IFREG:
        with open(_STDIN, "rb", closefd=False) as file:
            return client.upload_opened(file, "standard input")
    if kind not in (stat.S_IFIFO, stat.S_IFSOCK):
        return None
    with tempfile.SpooledTemporaryFile(_MEMORY_MAX_BYTES) as spool:
        _copy(spool, program)
        spool.seek(0)
        return client.upload_opened(spool, "standard input")


def warn_if_unread() -> None:
    """Print a note if standard input has content that no program of an array reads."""
    if _kind() in (stat.S_IFREG, stat.S_IFIFO, stat.S_IFSOCK) and _available_bytes():
        say(
            "the runs of an array do not read standard input: --each-line - starts one run for "
            "each line of it, --pipe gives each run a piece (</dev/null silences this note)"
        )


def _copy(spool: IO[bytes], program: str) -> None:
    waits = threading.Timer(
        _PATIENCE_S,
        say,
        [
            f"waiting for the end of standard input, which {program} will read "
            "(use </dev/null if it reads none)"
        ],
    )
    waits.daemon = True
    waits.start()
    try:
        while chunk := os.read(_STDIN, _CHUNK_BYTES):
            spool.write(chunk)
    except OSError as error:
        error.filename = error.filename or "standard input"
        raise
    finally:
        waits.cancel()


def _kind() -> int:
    """Return the file type of standard input, as in `stat`; 0 if it is closed."""
    if sys.stdin is None:  # its descriptor may belong to another file
        return 0
    try:
        return stat.S_IFMT(os.fstat(_STDIN).st_mode)
    except OSError:
        return 0


def _available_bytes() -> int:
    """Return how much can be read at once without waiting."""
    found = array.array("i", [0])
    try:
        if _kind() == stat.S_IFREG:
            return os.fstat(_STDIN).st_size - os.lseek(_STDIN, 0, os.SEEK_CUR)
        fcntl.ioctl(_STDIN, termios.FIONREAD, found)
    except OSError:
        return 0
    return found[0]
