"""Reads the standard output of failed programs.

A failure contains the first 4 KiB of the output, and names the worker that retains the rest.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, NamedTuple

from ciel.client.data.logs import read_kept
from ciel.client.errors import OutputGoneError
from ciel.core.refs import Failure

if TYPE_CHECKING:
    from ciel.client.jobs.client import JobClient

_NO_PROGRAM_REASONS = ("DEPENDENCY_FAILED", "CANCELLED")


class ProgramOutput(NamedTuple):
    """The part of a program's output that could be read.

    `missing`: why the rest is missing; empty if nothing is.
    """

    content: bytes = b""
    missing: str = ""


def output_of(client: JobClient, failure: Failure) -> ProgramOutput:
    """Return the standard output of a program that failed."""
    details = _details(failure)
    if "stdout" not in details or failure.reason in _NO_PROGRAM_REASONS:
        return ProgramOutput()
    try:
        content = base64.b64decode(details["stdout"], validate=True)
        size_bytes = int(details["stdout_bytes"])
    except (KeyError, TypeError, ValueError):
        return ProgramOutput()
    netloc, _, name = details.get("stdout_at", "").partition(" ")
    if not name:
        return ProgramOutput(content)
    reason = "only its beginning was retained"
    try:
        content = b"".join(read_kept(netloc, name, client.location.key))
    except OutputGoneError as error:
        reason = str(error)
    missing_bytes = size_bytes - len(content)
    missing = f"{missing_bytes} bytes of its output are missing: {reason}"
    return ProgramOutput(content, missing if missing_bytes > 0 else "")


def exit_of(failure: Failure) -> tuple[str, str]:
    """Return the exit status of a failed task's program, and the name of the signal that ended it.

    Both are empty if they are unknown, or if no program failed: the task was cancelled, or one of
    its inputs failed.
    """
    if failure.reason in _NO_PROGRAM_REASONS:
        return "", ""
    details = _details(failure)
    return details.get("exit_status", ""), details.get("signal", "")


def _details(failure: Failure) -> dict[str, str]:
    return failure.details if isinstance(failure.details, dict) else {}
