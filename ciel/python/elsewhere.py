"""Objects on other hosts, of which a task reads parts (POOL-5)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Part = tuple[int, int]
"""A part of an object: its offset and size in bytes."""

Fetch = Callable[[Sequence[tuple[Any, Sequence[Part]]]], Sequence[memoryview]]
"""Fetches parts of objects, all at the same time. Each object is given by its reference. Returns
each object in private memory, in which other parts are zero.
"""


class ObjectElsewhere:
    """The result of a call, in an object of another host.

    `value` fetches the object as a whole, and returns the result.
    """

    def __init__(self, ref: Any, size_bytes: int, fetch: Fetch, value: Callable[[], Any]) -> None:
        self.ref = ref
        self.size_bytes = size_bytes
        self.fetch = fetch
        self.value = value


def fetch_parts(wanted: Sequence[tuple[ObjectElsewhere, Sequence[Part]]]) -> Sequence[memoryview]:
    """Fetch parts of several objects; see `Fetch`."""
    if not wanted:
        return []
    return wanted[0][0].fetch([(source.ref, parts) for source, parts in wanted])
