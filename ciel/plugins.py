"""The only import by name: stores, executors and channels are found as entry points, and so are
ways for the stores of one host to find each other.

Groups are `ciel.stores`, `ciel.executors`, `ciel.channels` and `ciel.neighbours`; a third-party
package adds to them in its own metadata and needs no change here.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

GROUPS = ("ciel.stores", "ciel.executors", "ciel.channels", "ciel.neighbours")


class PluginError(Exception):
    """A plugin that is not installed, or cannot be loaded."""

    def __init__(self, group: str, name: str, reason: str) -> None:
        self.group = group
        self.name = name
        super().__init__(f"{group.removeprefix('ciel.').removesuffix('s')} {name!r}: {reason}")


def names(group: str) -> list[str]:
    """List what is installed in a group, sorted."""
    return sorted(point.name for point in entry_points(group=group))


def load(group: str, name: str) -> Any:
    """Import what is registered under a name; raises PluginError with what there is instead."""
    found = [point for point in entry_points(group=group) if point.name == name]
    if not found:
        raise PluginError(group, name, f"not installed (there is: {', '.join(names(group))})")
    try:
        return found[0].load()
    except (ImportError, AttributeError) as error:
        raise PluginError(group, name, f"cannot be loaded: {error}") from error
