"""Adds details to a program's failure.

These are how the program ended, the first 4 KiB of its standard output, and the worker that retains
all of the output.
"""

from __future__ import annotations

import base64
import os
import signal
import stat
from typing import Any, Final

from ciel.core.refs import details_text
from ciel.execution.executor import ProgramExit

INCLUDED_BYTES: Final = 4096
"""A failure includes this much of standard output, and as much of standard error."""


def ending(program_exit: ProgramExit) -> dict[str, str]:
    """Return how a program ended, as fields of its failure."""
    if program_exit.signal_number is None:
        return {"exit_status": str(program_exit.status)}
    try:
        return {"signal": signal.Signals(program_exit.signal_number).name}
    except ValueError:
        return {"signal": f"SIG{program_exit.signal_number}"}


def printed(path: str | None, netloc: str, kept: str) -> dict[str, str]:
    """Return fields for the standard output of a program, in a file; none if it is empty.

    `kept`: the name under which the worker at `netloc` retains all of it.
    """
    try:
        if path is None or not stat.S_ISREG(os.lstat(path).st_mode):
            return {}
        with open(path, "rb") as file:
            content, size_bytes = file.read(INCLUDED_BYTES), os.fstat(file.fileno()).st_size
    except OSError:  # the program may have removed it
        return {}
    if not content:
        return {}
    printed = {"stdout": base64.b64encode(content).decode(), "stdout_bytes": str(size_bytes)}
    if len(content) < size_bytes:
        printed["stdout_at"] = f"{netloc} {kept}"
    return printed


def details_with(details: Any, more: str, facts: dict[str, str]) -> Any:
    """Return the details of a failure with another line of text, and with more fields."""
    text = f"{details_text(details)}\n{more}"
    if not facts and not isinstance(details, dict):
        return text
    known = details if isinstance(details, dict) else {}
    return {**known, **facts, "text": text}
