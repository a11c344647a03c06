"""Writes output files, each of which gets its name only when it is complete."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

_CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a file to write to, which replaces `path` when the context ends without an error.

    An OSError names `path`. Until then the file has a random name beside `path`: in a directory
    that others may write to, no one can prepare a link under that name.
    """
    partial = path.with_name(f".ciel-{secrets.token_hex(8)}.partial")
    try:
        with open(os.open(partial, _CREATE, 0o666), "wb") as file:
            yield file
        partial.replace(path)
    except OSError as error:
        if error.filename in (None, str(partial)):
            error.filename = str(path)
        raise
    finally:
        partial.unlink(missing_ok=True)
