"""The form of a command, and what commands share."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from fnmatch import translate
from typing import Any, Final, NamedTuple

from ciel.state.batches import KEY_MAX_BYTES, RESERVED
from ciel.state.errors import BaseFullError, KindError, KvError, LimitError
from ciel.state.server.errors import CommandError
from ciel.state.server.resp import KNOWN, Failure
from ciel.state.server.view import RowsView

ANY: Final = KNOWN.arguments
"""The largest number of arguments, for commands that have no limit of their own."""
INT_MIN: Final = -(1 << 63)
INT_MAX: Final = (1 << 63) - 1
SLICE_STEPS: Final = 1_000
"""How many rows a slice visits, which takes some 2 ms; a large row counts as several."""


def failure_of(error: KvError) -> Failure:
    """Return an error as a reply."""
    match error:
        case CommandError():
            return Failure(error.code, str(error))
        case KindError():
            return Failure("WRONGTYPE", "Operation against a key holding the wrong kind of value")
        case BaseFullError():
            return Failure("OOM", str(error))
        case LimitError():
            return Failure("LIMIT", str(error))
    return Failure("ERR", str(error))


Function = Callable[[RowsView, list[bytes]], Any]
"""Carries out a command; the arguments are those after the name. Returns the reply, or `Slices`."""
Slices = Generator[None, None, Any]
"""Carries out a command step by step: other commands may be carried out after each `next`. It
returns the reply, and must be closed if nobody needs that any more.
"""


class Command(NamedTuple):
    """A command on rows, with `least` to `most` arguments."""

    function: Function
    least: int
    most: int
    is_write: bool = False


def integer(text: bytes) -> int:
    """Return a number; raises CommandError."""
    digits = text[1:] if text[:1] == b"-" else text
    if digits.isdigit() and len(text) <= 20 and INT_MIN <= (number := int(text)) <= INT_MAX:
        return number
    raise CommandError("value is not an integer or out of range")


def decimal(text: bytes) -> float:
    """Return a number; raises CommandError."""
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if number != number:
        raise CommandError("value is not a valid float")
    return number


def checked_key(key: bytes) -> bytes:
    """Return a key that may be written; raises CommandError."""
    if not 0 < len(key) <= KEY_MAX_BYTES or key.startswith(RESERVED):
        raise CommandError(f"a key has 1 to {KEY_MAX_BYTES} bytes, and does not start with 0xFF")
    return key


def steps_of(row: bytes) -> int:
    """Return for how many steps of a slice a row counts."""
    return 1 + len(row) // 4096


def first_slice(slices: Slices) -> Any:
    """Carry out the first slice; return the rest, or the reply if that was all."""
    try:
        next(slices)
    except StopIteration as end:
        return end.value
    return slices


def pattern(glob: bytes) -> re.Pattern[str]:
    """Return a pattern of Redis for keys, which are matched as Latin-1."""
    text, parts = glob.decode("latin-1"), []
    at = 0
    while at < len(text):
        sign = text[at]
        if sign == "\\" and at + 1 < len(text):
            at += 1
            parts.append(f"[{text[at]}]" if text[at] in "*?[" else text[at])
        elif text.startswith("[^", at):
            at += 1
            parts.append("[!")
        else:
            parts.append(sign)
        at += 1
    return re.compile(translate("".join(parts)), re.DOTALL)


def syntax_error() -> CommandError:
    """Return the error for options that a command does not have."""
    return CommandError("syntax error")
