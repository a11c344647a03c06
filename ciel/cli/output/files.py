"""Opens the files and directories that users name for output."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from ciel.cli.outcome import UsageError
from ciel.client.data.files import whole_file


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
