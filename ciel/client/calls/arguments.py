"""The inputs of a task of calls, and the words for arguments that cannot be packed."""

from __future__ import annotations

import re

from ciel.core.refs import Reference
from ciel.python.packing import UnpackedError


class Inputs:
    """The references that a task takes, each once."""

    def __init__(self) -> None:
        self.refs: list[Reference] = []
        self.for_once: list[Reference] = []
        """Those that no other task will take."""
        self._numbers: dict[str, int] = {}

    def number(self, ref: Reference, *, is_for_once: bool = False) -> int:
        if is_for_once:
            self.for_once.append(ref)
        number = self._numbers.setdefault(ref.id, len(self.refs))
        if number == len(self.refs):
            self.refs.append(ref)
        return number


def in_words(error: UnpackedError, is_map: bool) -> UnpackedError:
    """Say which argument is at fault, where it says at which place of (args, kwargs); those of a
    map are in its rows.
    """
    if is_map:
        row = re.sub(
            r"^\[0\]\[0\]\[\d+\]\[(\d+)\]",
            lambda found: f"argument {int(found[1]) + 1} of a call of the map:",
            str(error),
        )
        return UnpackedError(row)
    text = re.sub(r"^\[0\]\[(\d+)\]", lambda found: f"argument {int(found[1]) + 1}", str(error))
    return UnpackedError(re.sub(r"^\[1\]\['(\w+)'\]", r"argument \1", text))
