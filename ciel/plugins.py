"""Finds and imports plugins by their entry points. No other module imports modules by name.

Plugins are entry points in the groups `ciel.stores`, `ciel.executors`, `ciel.channels`,
`ciel.neighbours`, `ciel.places`, `ciel.kv`, `ciel.routes` and `ciel.launchers`. A third-party
package declares them in its own metadata.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

GROUPS = (
    "ciel.stores", "ciel.executors", "ciel.channels", "ciel.neighbours",
    "ciel.places", "ciel.kv", "ciel.routes", "ciel.launchers",
)  # fmt: skip


class PluginError(Exception):
    """A plugin is not installed, or cannot be loaded."""

    def __init__(self, group: str, name: str, reason: str) -> None:
        self.group = group
        self.name = name
        super().__init__(f"{group.removeprefix('ciel.').removesuffix('s')} {name!r}: {reason}")


def names(group: str) -> list[str]:
    """List the names of the installed plugins of a group, sorted."""
    return sorted(point.name for point in entry_points(group=group))


def load(group: str, name: str) -> Any:
    """Load the plugin of a name; raises PluginError, which lists the installed plugins."""
    found = [point for point in entry_points(group=group) if point.name == name]
    if not found:
        raise PluginError(group, name, f"not installed (there is: {', '.join(names(group))})")
    try:
        return found[0].load()
    except (ImportError, AttributeError) as error:
        raise PluginError(group, name, f"cannot be loaded: {error}") from error
