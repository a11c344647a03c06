"""ciel: a universal execution engine.

`ciel.Client` and `ciel.LocalCluster` are what a Python program needs to submit programs as tasks;
they are loaded when first named, so that a room below the client never loads it.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ciel.client import Client as Client
    from ciel.client import LocalCluster as LocalCluster

__version__ = "0.1.0"
__all__ = ["Client", "LocalCluster", "__version__"]


def __getattr__(name: str) -> Any:
    if name in ("Client", "LocalCluster"):
        from ciel import client

        return getattr(client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
