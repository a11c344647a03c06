"""Replaces standard streams that were closed at the start, or that cannot be written to."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import TextIO


def replace_closed() -> None:
    """Open /dev/null in place of a standard stream that was closed when the process started.

    So no other file gets its descriptor. A write to standard output then fails, as it should.
    """
    for name, number, flags in (("stdout", 1, os.O_RDONLY), ("stderr", 2, os.O_WRONLY)):
        if getattr(sys, name) is None:
            null_fd = os.open(os.devnull, flags)
            if null_fd != number:
                os.dup2(null_fd, number, inheritable=False)
                os.close(null_fd)
            setattr(sys, name, os.fdopen(number, "w"))


def discard(stream: TextIO | None) -> None:
    """Redirect a stream to /dev/null, so that its buffer is not written again at exit."""
    if stream is None:
        return
    with suppress(OSError, ValueError):
        null_fd = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null_fd, stream.fileno())
        os.close(null_fd)
