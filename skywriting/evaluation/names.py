"""Looks up the built-in functions and values, whose names a script uses without binding them."""

from __future__ import annotations

from typing import Any

from ciel.skywriting.builtins.original import ORIGINAL
from ciel.skywriting.errors import ScriptError
from ciel.skywriting.evaluation.code import Code, Frame
from ciel.skywriting.evaluation.values import RUN
from ciel.skywriting.syntax.hints import hint_on_name


def lookup(name: str, frame: Frame, code: Code, offset: int) -> Any:
    """Return the value of a name that is not in the frame; raises ScriptError."""
    known = code.unit.names
    try:
        return known[name]
    except KeyError:
        pass
    source = code.unit.source
    if name in code.parameters:
        hint = f"{code.label} was called without an argument for it"
    else:
        bound = [each for each in frame if each != RUN]
        hint = hint_on_name(name, [*bound, *known, "true", "false"], source.text, offset)
    message = f'Tried to read identifier "{name}", not found{f" ({hint})" if hint else ""}'
    error = ScriptError(message)
    error.place = (source, offset)
    raise error


def is_bound(name: str, frame: Frame) -> bool:
    """Return whether a name counts as bound in the sense of §8.4: names of `modern` do not."""
    return name in frame or name in ORIGINAL
