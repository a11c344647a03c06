"""Keeps the files of failed attempts for people, each up to a maximum size."""

from __future__ import annotations

import os
import shutil
import stat

from ciel.execution.kept import KeptAttempts
from ciel.storage.trees import remove_tree
from ciel.worker.attempts.scratch import Scratch
from ciel.worker.limits.growth import STDERR_LEFT_BYTES, STDERR_MAX_BYTES

STDOUT_MAX_BYTES = 64 << 20
_COPY_BYTES = 1 << 20


def keep_files(kept: KeptAttempts, name: str, scratch: Scratch, partial: str | None) -> str:
    """Move an attempt's directory, standard error and the start of its partial output to `kept`.

    Returns a sentence for the fault that says where they are, or why not. Takes long if the files
    are large; raises OSError.
    """
    place = kept.path / name
    try:
        scratch.keep(place)
        for printed in ("stderr", "stdout"):
            _shorten(f"{place}/{printed}")
        if partial is not None:
            _take_output(partial, f"{place}/stdout")
    except OSError:
        remove_tree(place)
        kept.make_room()
        raise
    why_not = kept.admit(name)
    return (
        f"its files were not retained: {why_not}" if why_not else f"its files are kept in {place}"
    )


def _shorten(path: str) -> None:
    """Replace a long standard error by its end. A copy of the sparse file would fill its holes."""
    try:
        size_bytes = os.lstat(path).st_size
    except FileNotFoundError:
        return
    if size_bytes <= STDERR_MAX_BYTES:
        return
    with open(path, "rb") as whole, open(f"{path}.end", "wb") as end:
        left_out = whole.seek(size_bytes - STDERR_LEFT_BYTES)
        end.write(b"(%d bytes omitted)\n" % left_out)
        shutil.copyfileobj(whole, end, _COPY_BYTES)
    os.replace(f"{path}.end", path)


def _take_output(source: str, target: str) -> None:
    """Link an output, which takes no time and no space; copy the beginning of a long one."""
    try:
        status = os.lstat(source)
    except OSError:
        return  # the program has removed it
    if not stat.S_ISREG(status.st_mode):
        return
    if status.st_size <= STDOUT_MAX_BYTES:
        try:
            os.link(source, target, follow_symlinks=False)
            return
        except OSError:
            pass  # on another file system
    else:
        target += ".beginning"
    with open(source, "rb") as whole, open(target, "wb") as copy:
        left_bytes = STDOUT_MAX_BYTES
        while left_bytes and (chunk := whole.read(min(left_bytes, _COPY_BYTES))):
            copy.write(chunk)
            left_bytes -= len(chunk)
