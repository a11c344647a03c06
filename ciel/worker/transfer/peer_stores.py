"""The interface to the stores of other workers on this host.

Its implementation is an entry point (`ciel.neighbours`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from twisted.internet.defer import Deferred

from ciel.storage.sharing import PeerObject


class PeerStores(Protocol):
    """Requests objects from peer stores."""

    def ask(self, netloc: str, object_id: str) -> Deferred[PeerObject]:
        """Request an object from the store of the worker at `netloc`.

        Fails with a `StorageError`.
        """
        ...

    def figures(self) -> dict[str, int]:
        """Return counters."""
        ...

    def close(self) -> None: ...


@dataclass(slots=True)
class FetchCounts:
    """Counts fetches by method."""

    discovered: int = 0
    """Objects found in shared memory, without a request."""
    asked: int = 0
    """Requests to peer stores, of one hop each."""
    linked: int = 0
    """Requests after which this worker's store has linked the peer's file."""
    copied: int = 0
    """Requests after which this worker's store has copied the peer's file."""
    copied_bytes: int = 0
    link_failed: int = 0
    """Requests that failed, so that the fetcher tried another plan."""
    http: int = 0
    """Objects fetched by HTTP."""
    http_bytes: int = 0
    parts: int = 0
    """Parts of objects that attempts have read by HTTP, and their bytes."""
    part_bytes: int = 0
    """Bytes received by HTTP, also of incomplete objects."""
