"""Runs operations that the engine does in slices to their end at once."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TypeVar

from ciel.core.removal import Deletions

T = TypeVar("T")


def at_once(operation: Generator[None, None, T]) -> T:
    """Run an operation to its end, however many steps it takes; return what it returns."""
    while True:
        try:
            next(operation)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]  # what the generator returns


def deleted(operation: Iterator[Deletions]) -> Deletions:
    """Run an operation to its end; return all that is to be deleted by it."""
    found: Deletions = {}
    for deletions in operation:
        for place, names in deletions.items():
            found.setdefault(place, []).extend(names)
    return found
