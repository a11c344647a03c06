"""Writes output files, each of which gets its name only when it is complete."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from ciel.cli.outcome import UsageError


@contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a file to write to, which replaces `path` when the context ends without an error.

    An OSError names `path`.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("wb") as file:
            yield file
        partial.replace(path)
    except OSError as error:
        if error.filename in (None, str(partial)):
            error.filename = str(path)
        raise
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def output_file(path: Path) -> Iterator[IO[bytes]]:
    """Open the file that a user names for the output.

    Writes directly to a device, a pipe or a link; replaces any other file when it is complete.
    """
    if path.is_symlink() or (path.exists() and not path.is_file()):
        with path.open("wb") as file:
            yield file
    else:
        with whole_file(path) as file:
            yield file


def make_directory(out: Path) -> None:
    """Make the directory that `--out` names, unless it exists; raises UsageError."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = "it is not a directory" if isinstance(error, FileExistsError) else error.strerror
        raise UsageError(f"--out {out}: {reason}") from None
