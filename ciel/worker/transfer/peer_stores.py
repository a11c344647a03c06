"""The stores of other workers on this host, as the worker sees them. What stands behind is found by
name (`ciel.neighbours`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from twisted.internet.defer import Deferred

from ciel.storage.sharing import Found


class PeerStores(Protocol):
    """Asks them."""

    def ask(self, netloc: str, object_id: str) -> Deferred[Found]:
        """Ask the store of the worker at an address for an object; fails with a `StorageError`."""
        ...

    def figures(self) -> dict[str, int]:
        """Return what there is to count."""
        ...

    def close(self) -> None: ...


@dataclass(slots=True)
class FetchCounts:
    """How inputs came here."""

    discovered: int = 0
    """By looking into memory that is shared; nobody was asked."""
    asked: int = 0
    """Neighbours that were asked for an object; each is one hop."""
    linked: int = 0
    """Of these, those whose file became ours by a link; likewise by a copy, file to file."""
    copied: int = 0
    copied_bytes: int = 0
    link_failed: int = 0
    """Those from whom nothing came; another way was tried."""
    http: int = 0
    """Objects that came over HTTP, and the bytes of all that began to."""
    http_bytes: int = 0
