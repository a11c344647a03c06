"""Numbers the inputs of a task of calls, and words errors about arguments that cannot be packed."""

from __future__ import annotations

import re

from ciel.core.refs import Reference
from ciel.python.packing import UnpackedError


class Inputs:
    """The objects that a task reads, each once."""

    def __init__(self) -> None:
        self.refs: list[Reference] = []
        self.for_once: list[Reference] = []
        """Objects that no other task reads."""
        self._numbers: dict[str, int] = {}
        self._whole: set[str] = set()

    @property
    def in_parts(self) -> list[Reference]:
        """The inputs of which the task reads only parts."""
        return [ref for ref in self.refs if ref.id not in self._whole]

    def number(self, ref: Reference, *, is_for_once: bool = False, in_parts: bool = False) -> int:
        """Return the number of an input; add it if it is new."""
        if is_for_once:
            self.for_once.append(ref)
        if not in_parts:
            self._whole.add(ref.id)
        number = self._numbers.setdefault(ref.id, len(self.refs))
        if number == len(self.refs):
            self.refs.append(ref)
        return number


def describe(error: UnpackedError, *, is_map: bool) -> UnpackedError:
    """Return an error that names the argument which cannot be packed.

    `error` names a position in the packed value: (args, kwargs), or the rows of a map.
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
