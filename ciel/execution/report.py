"""What people read when a program failed: its command, how it ended, and the end of what it
complained.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

STDERR_TAIL_BYTES = 4096
COMMAND_MAX_LENGTH = 500


def command_text(argv: Sequence[str]) -> str:
    """Return a command line as one would type it, cut to a sane length."""
    text = shlex.join(argv)
    return text if len(text) <= COMMAND_MAX_LENGTH else text[: COMMAND_MAX_LENGTH - 3] + "..."


def tail_text(tail: bytes, whole_size_bytes: int) -> str:
    """Return the end of standard error as text, from a whole line on; say what was left out."""
    if whole_size_bytes <= len(tail):
        return tail.decode("utf-8", "replace").rstrip("\n")
    _, _, lines = tail.partition(b"\n")
    shown = lines or tail
    left_out = whole_size_bytes - len(shown)
    text = shown.decode("utf-8", "replace").rstrip("\n")
    return f"({left_out} bytes before)\n{text}"


def failure_text(what: str, worker: str, argv: Sequence[str], stderr_tail: str) -> str:
    """Compose the message for a program that failed."""
    lines = [f"{command_text(argv)} {what} on worker {worker}"]
    if stderr_tail:
        lines += ["its standard error ends:", *[f"  {line}" for line in stderr_tail.splitlines()]]
    return "\n".join(lines)
