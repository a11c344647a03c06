"""Runs all slices of an operation at once, which the engine runs in one tick each."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TypeVar

from ciel.core.graph.removal import Deletions

T = TypeVar("T")


def at_once(operation: Generator[None, None, T]) -> T:
    """Run an operation to its end; return its result."""
    while True:
        try:
            next(operation)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]  # what the generator returns


def deleted(operation: Iterator[Deletions]) -> Deletions:
    """Run an operation to its end; return all deletions that it requests."""
    found: Deletions = {}
    for deletions in operation:
        for place, names in deletions.items():
            found.setdefault(place, []).extend(names)
    return found
