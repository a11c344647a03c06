"""The results of checks."""

from __future__ import annotations

from typing import Final, NamedTuple

OK: Final = "ok"
NOTE: Final = "note"
FAULT: Final = "fault"


class Finding(NamedTuple):
    """The result of one check. `advice` says what to do; every fault has one."""

    check: str
    state: str
    found: str
    advice: str = ""


def settings_fault(error: Exception) -> Finding:
    """Return the finding for settings that are not valid; several checks find the same fault."""
    return fault("settings", str(error), "correct it; docs/commands.md lists all settings")


def ok(check: str, found: str) -> Finding:
    """Return a finding without a fault."""
    return Finding(check, OK, found)


def note(check: str, found: str, advice: str = "") -> Finding:
    """Return a finding for information, which needs no repair."""
    return Finding(check, NOTE, found, advice)


def fault(check: str, found: str, advice: str) -> Finding:
    """Return a finding that must be repaired."""
    return Finding(check, FAULT, found, advice)
