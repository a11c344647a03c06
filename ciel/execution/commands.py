"""Reads the command line of a task from its payload, for displays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ciel.core.errors import CielError
from ciel.core.refs import REFERENCE_TYPES
from ciel.wire.descriptors import read_arguments
from ciel.wire.errors import WireError


def command_line(payload: str | None) -> list[str] | None:
    """Return the command line in a task's payload, with ids of objects in place of their files.

    Return None if the task's executor takes no command, or if the payload is missing.
    """
    arguments = _arguments(payload)
    args = arguments.get("args")
    line = args.get("command_line") if isinstance(args, dict) else None
    if line is None:
        line = arguments.get("command")
    words = line if isinstance(line, list) else [] if line is None else [line]
    return [word.id if isinstance(word, REFERENCE_TYPES) else str(word) for word in words] or None


def can_be_followed(payload: str | None) -> bool:
    """Whether a program's output can be read while the program writes it."""
    args = _arguments(payload).get("args")
    return isinstance(args, dict) and args.get("stream_output") is True


def _arguments(payload: str | None) -> dict[str, Any]:
    """Return the arguments in a payload, or an empty dictionary if it has none."""
    if payload is None:
        return {}
    try:
        return read_arguments(payload.encode())
    except (WireError, CielError):
        return {}


def with_command(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row about a task with its command line in place of its payload."""
    shown = dict(row)
    shown["command_line"] = command_line(shown.pop("payload", None))
    return shown
