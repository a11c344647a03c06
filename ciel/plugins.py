"""Finds and imports plugins by their entry points. No other module imports modules by name.

The groups are `ciel.stores`, `ciel.executors`, `ciel.channels`, and `ciel.neighbours` (how stores
on one host find each other). A third-party package registers entry points in its own metadata, and
needs no change here.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

GROUPS = ("ciel.stores", "ciel.executors", "ciel.channels", "ciel.neighbours")


class PluginError(Exception):
    """A plugin is not installed, or cannot be loaded."""

    def __init__(self, group: str, name: str, reason: str) -> None:
        self.group = group
        self.name = name
        super().__init__(f"{group.removeprefix('ciel.').removesuffix('s')} {name!r}: {reason}")


def names(group: str) -> list[str]:
    """Return the sorted names of the installed plugins of a group."""
    return sorted(point.name for point in entry_points(group=group))


def load(group: str, name: str) -> Any:
    """Import the plugin of this name; raises PluginError, which lists the installed ones."""
    found = [point for point in entry_points(group=group) if point.name == name]
    if not found:
        raise PluginError(group, name, f"not installed (there is: {', '.join(names(group))})")
    try:
        return found[0].load()
    except (ImportError, AttributeError) as error:
        raise PluginError(group, name, f"cannot be loaded: {error}") from error
