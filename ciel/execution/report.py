"""Composes error messages for failed programs.

A message contains the command, how it ended, and the end of its standard error.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence

from ciel.core.graph.failures import size_text
from ciel.storage.errors import NoSpaceError

STDERR_TAIL_BYTES = 4096
STDERR_TAIL_LINES = 40
COMMAND_MAX_LENGTH = 500
# Output of programs must not send control sequences to the reader's terminal.
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def logged_name(name: str, task_id: str) -> str:
    """Return the prefix of a task's lines in its job's log."""
    return visible(name or task_id[:12])


def command_text(argv: Sequence[str]) -> str:
    """Format a command line as a shell command of limited length, with invalid UTF-8 escaped."""
    text = unicode_text(shlex.join(argv))
    return text if len(text) <= COMMAND_MAX_LENGTH else text[: COMMAND_MAX_LENGTH - 3] + "..."


def unicode_text(text: str) -> str:
    """Convert a text of the operating system to valid Unicode; other bytes are escaped."""
    if text.isascii():
        return text
    return os.fsencode(text).decode(errors="backslashreplace")


def visible(text: str) -> str:
    """Escape all characters of a line that are not printable, such as terminal controls."""
    if text.isprintable():
        return text
    return "".join([c if c.isprintable() else repr(c)[1:-1] for c in text])


def visible_text(text: str) -> str:
    """Apply `visible` to each line of a text; tabs stay."""
    return re.sub(r"[^\n\t]+", lambda part: visible(part[0]), text)


def tail_text(tail: bytes, whole_size_bytes: int) -> str:
    """Return the last whole lines of standard error, after a note of how many bytes are omitted."""
    lines = tail.splitlines(keepends=True)
    if whole_size_bytes > len(tail):
        lines = lines[1:] or lines
    shown = b"".join(lines[-STDERR_TAIL_LINES:])
    left_out = whole_size_bytes - len(shown)
    before = f"({left_out} bytes omitted)\n" if left_out else ""
    return f"{before}{_text(shown)}"


def printed_text(said: bytes) -> str:
    """Decode a program's output; replace control characters and remove colours."""
    return _CONTROLS.sub("\ufffd", _COLOURS.sub("", said.decode("utf-8", "replace")))


def _text(said: bytes) -> str:
    return printed_text(said).rstrip("\n")


def device_text(path: str) -> str:
    """Describe the device of a path: its mount point, its size, and its free space."""
    try:
        place = os.path.realpath(path)
        while not os.path.ismount(place):
            place = os.path.dirname(place)
        device = os.statvfs(place)
    except OSError:
        return f"the device of {path}"
    size, left = (size_text(n * device.f_frsize) for n in (device.f_blocks, device.f_bavail))
    lacking = ", no more files" if device.f_files and not device.f_favail else ""
    return f"the device at {place} ({size} in all, {left} free{lacking})"


def no_room_text(worker: str, argv: Sequence[str], error: NoSpaceError) -> str:
    """Compose the message for an output for which the store has no space."""
    whose = command_text(argv) if argv else "it"
    wanted, available = size_text(error.wanted_bytes), size_text(error.available_bytes)
    where = f" on {device_text(error.place)}" if error.place else ""
    return (
        f"{whose} wrote more than the store of worker {worker} has room for: "
        f"{error.lacking or f'wanted {wanted}, {available} available'}{where}; "
        "give the worker a larger store, or end jobs whose results it retains"
    )


def full_device_text(
    worker: str, argv: Sequence[str], device: str = "", written_bytes: int | None = None
) -> str:
    """Compose the message for an output that may be incomplete because its device was full.

    `device`: the `device_text` of the store.
    """
    whose = command_text(argv) if argv else "it"
    written = "" if written_bytes is None else f" and has {size_text(written_bytes)}"
    store = f"the store of worker {worker}"
    where = f"{device}, which holds {store}," if device else f"the device of {store}"
    return (
        f"{where} was full while {whose} wrote an output, which may be incomplete{written}; free "
        "space there, or give the worker another store"
    )


def with_stderr(text: str, stderr_tail: str) -> str:
    """Append the end of a program's standard error to a message."""
    if not stderr_tail:
        return text
    lines = [f"  {line}" for line in stderr_tail.splitlines()]
    return "\n".join([text, "the end of its standard error:", *lines])


def failure_text(
    what: str, worker: str, argv: Sequence[str], stderr_tail: str, why: str = ""
) -> str:
    """Compose the message for a failed program; `why`: a cause outside of the program."""
    text = f"{command_text(argv)} {what} on worker {worker}" + (why and f": {why}")
    return with_stderr(text, stderr_tail)
