"""What `ciel doctor` finds."""

from __future__ import annotations

from typing import Final, NamedTuple

OK: Final = "ok"
NOTE: Final = "note"
FAULT: Final = "fault"


class Finding(NamedTuple):
    """What came of one check. `advice` says what to do; it is there for every fault."""

    check: str
    state: str
    found: str
    advice: str = ""


def settings_fault(error: Exception) -> Finding:
    """What is set has no meaning. Whoever finds that says it in the same words."""
    return fault("settings", str(error), "mend that; docs/commands.md tells what may be set")


def ok(check: str, found: str) -> Finding:
    """All is well."""
    return Finding(check, OK, found)


def note(check: str, found: str, advice: str = "") -> Finding:
    """It works, but somebody may want to know."""
    return Finding(check, NOTE, found, advice)


def fault(check: str, found: str, advice: str) -> Finding:
    """It must be mended."""
    return Finding(check, FAULT, found, advice)
