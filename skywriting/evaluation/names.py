"""Names that a script finds without binding them: built-ins of the original, and those that came
later, which give way to whatever a script binds.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from ciel.skywriting.builtins import original as builtins
from ciel.skywriting.errors import ScriptError, Source
from ciel.skywriting.evaluation.code import Code, Unit
from ciel.skywriting.evaluation.values import RUN, Closure, Frame
from ciel.skywriting.standard import PRELUDE, text_of
from ciel.skywriting.syntax.grammar import parse
from ciel.skywriting.syntax.hints import hint_on_name
from ciel.skywriting.syntax.resolver import resolve

_MAY_LACK: dict[str, Frame] = {"sort": {"key": None}}
"""Parameters of functions of the prelude that may be left out, and their values then: captured, so
that an argument takes their place.
"""


@cache
def prelude_unit() -> Unit:
    """Return those that are written in Skywriting themselves, so that they can be left in their
    middle as any function of a script.
    """
    script = parse(Source(f"<{PRELUDE}>", text_of(PRELUDE)))
    resolve(script)
    return Unit(script, {"std": PRELUDE})


@cache
def _prelude() -> dict[str, Closure]:
    unit = prelude_unit()
    named = [code for code in unit.codes if code.name]
    return {code.name: Closure(code, _MAY_LACK.get(code.name, {})) for code in named}


@cache
def table(version: int) -> dict[str, Any]:
    """Return all names that need no binding, for scripts of a version."""
    newer = builtins.VERSION_2 if version > 1 else {}
    return {**_prelude(), **builtins.MODERN, **builtins.ORIGINAL, **newer}


def lookup(name: str, frame: Frame, code: Code, offset: int) -> Any:
    """Return what a name that a code reads stands for and is no variable; raises ScriptError."""
    known = table(code.unit.version)
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
    """Whether a name counts as bound for what §8.4 forbids: modern ones do not."""
    return name in frame or name in builtins.ORIGINAL
