"""The registration of a process as a core of an image.

A core's objects are named `<core>.<incarnation>:<id>`. An incarnation is one life of a core: the
time from the first to the last process that has the core open. When an incarnation has ended, the
next process that finds out removes its names. `by_locks` serves the processes of one kernel, and
`by_heartbeats` the processes of several kernels.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection

from ciel.storage.errors import StoreSpecError

Forget = Callable[[str], object]
"""Removes the names of an incarnation that has ended."""
OF_A_CORE = re.compile(r"(\d+\.[0-9a-f]{8})[:~]")
"""The incarnation to which a file of an image belongs, by its name."""


class CoreRegistration(ABC):
    """This process as a core: its number, and the name of its incarnation."""

    core: int
    name: str

    @abstractmethod
    def count(self, more: int) -> None:
        """Record that objects were added or removed."""

    @property
    @abstractmethod
    def object_count(self) -> int:
        """How many objects the processes of the core have recorded."""

    @abstractmethod
    def others(self) -> list[str]:
        """Return all incarnations except this one."""

    @abstractmethod
    def sweep(self) -> None:
        """Remove the names of incarnations that have ended. Never waits for a heartbeat."""

    @abstractmethod
    def close(self) -> None:
        """Unregister; the last process of the core removes the core's names."""


def chosen(core: int | None, core_count: int, taken: Collection[int]) -> int:
    """Return the number of a core: the given one, or the first free one. Raises StoreSpecError."""
    if core is None:
        core = next((number for number in range(core_count) if number not in taken), core_count)
    if not core < core_count:
        text = f"the image has cores={core_count}, numbered from 0"
        raise StoreSpecError(f"core={core}", f"{text}; give its first worker more cores")
    return core
