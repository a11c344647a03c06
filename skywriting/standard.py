"""Reads the texts of the standard includes, and of the prelude."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from ciel.skywriting.errors import ScriptError

NAMES = ("environ", "grab", "java", "mapreduce", "stdinout", "sync")
PRELUDE = "prelude"
_FOLDER = Path(__file__).parent / "library"


def text_of(name: str) -> str:
    """Return the text of a standard include, or of the prelude; raises ScriptError for others."""
    if name != PRELUDE and name not in NAMES:  # so that it cannot be a path
        meant = get_close_matches(name, NAMES, 1)
        hint = f' (did you mean "{meant[0]}"?)' if meant else ""
        raise ScriptError(
            f'there is no standard include "{name:.80}"{hint}; there are {", ".join(NAMES)}. '
            "Another script is included by a URL that starts with http, or by a reference"
        )
    return (_FOLDER / f"{name}.sw").read_text(encoding="utf-8")
