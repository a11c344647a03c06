"""All names that scripts can use without binding them, and their values.

Some of these functions are in Python, the others in the prelude, which is a script.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from ciel.skywriting.builtins.modern import MODERN
from ciel.skywriting.builtins.original import ORIGINAL, VERSION_2
from ciel.skywriting.errors import Source
from ciel.skywriting.evaluation.code import Frame, Language, Unit
from ciel.skywriting.evaluation.statements import compile_block
from ciel.skywriting.evaluation.values import Closure
from ciel.skywriting.standard import PRELUDE, text_of
from ciel.skywriting.syntax.grammar import parse
from ciel.skywriting.syntax.resolver import resolve

_OPTIONAL: dict[str, Frame] = {"sort": {"key": None}}
"""The optional parameters of functions in the prelude, with their defaults. A default is a captured
variable, which an argument replaces.
"""


@cache
def prelude_unit() -> Unit:
    """Return the prelude. Its functions can stop and be resumed, as functions of any script can."""
    script = parse(Source(f"<{PRELUDE}>", text_of(PRELUDE)))
    resolve(script)
    return Unit(script, {"std": PRELUDE}, LANGUAGE)


@cache
def _prelude() -> dict[str, Closure]:
    unit = prelude_unit()
    named = [code for code in unit.codes if code.name]
    return {code.name: Closure(code, _OPTIONAL.get(code.name, {})) for code in named}


@cache
def names(version: int) -> dict[str, Any]:
    """Return all names that need no binding in scripts of a version, with their values. A script
    may bind the names of `modern`.
    """
    newer = VERSION_2 if version > 1 else {}
    return {**_prelude(), **MODERN, **ORIGINAL, **newer}


LANGUAGE = Language(compile_block, names)
