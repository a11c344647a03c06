"""Describes memory servers and volumes for people and for Prometheus; changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ciel.memory.page_server import EXTENT_BYTES
from ciel.memory.volumes import Server, ServerId, Volume, Volumes
from ciel.net.exposition import Family

Figures = Mapping[str, int]
"""The latest report of a memory server: numbers by name."""

_NOW: Final = {
    "used_bytes": "Bytes of pages that the server keeps.",
    "locked_bytes": "Bytes of the server that cannot be swapped out.",
}
_EVER: Final = {
    "pages_read": "Pages that clients have read.",
    "pages_written": "Pages that the server has stored, for clients or as a backup.",
    "pages_forwarded": "Pages that the server has sent to backups, since clients wrote them.",
    "pages_synced": "Pages that the server has sent to servers that get a further copy.",
    "requests": "Requests of clients and of other servers.",
    "refused": "Requests that the server could not carry out, or that were for another server.",
    "connections": "Connections that the server has accepted.",
}
_HOST: Final = ("lockable_bytes", "offer_max_bytes", "stalled_us_per_s", "swap_bytes")
REPORTED: Final = (*_NOW, *_EVER, *_HOST)
"""The names of figures that `ciel memory stats` shows."""


def server_row(server: Server, figures: Figures) -> dict[str, Any]:
    """Return a row of `ciel memory stats`; figures that are not known are 0."""
    return {
        **server_facts(server),
        **{name: figures.get(name, 0) for name in REPORTED},
    }


def server_facts(server: Server) -> dict[str, Any]:
    """Return a row of `ciel memory list`."""
    return {
        "server": server.id, "address": server.address, "is_connected": server.is_connected,
        "is_draining": server.is_draining, "offered_bytes": server.extents_max * EXTENT_BYTES,
        "reserved_bytes": len(server.held) * EXTENT_BYTES,
    }  # fmt: skip


def volume_row(volume: Volume) -> dict[str, Any]:
    """Return how many extents of a volume lack copies, and how many get one at this time."""
    return {
        "incomplete": sum(len(extent.in_sync) < volume.replicas for extent in volume.extents),
        "copying": sum(bool(extent.joining) for extent in volume.extents),
    }


def summary(volumes: Volumes) -> dict[str, int]:
    """Return the numbers that `ciel status` shows; none without memory servers and volumes."""
    if not volumes.servers and not volumes.volumes:
        return {}
    servers = [server for server in volumes.servers.values() if server.is_connected]
    rows = [volume_row(volume) for volume in volumes.volumes.values()]
    return {
        "servers": len(servers),
        "offered_bytes": sum(server.extents_max for server in servers) * EXTENT_BYTES,
        "reserved_bytes": sum(len(server.held) for server in servers) * EXTENT_BYTES,
        "volumes": len(rows),
        "incomplete_volumes": sum(row["incomplete"] > 0 for row in rows),
    }


def families(volumes: Volumes, reports: Mapping[ServerId, Figures]) -> list[Family]:
    """Return the metrics; none without memory servers and volumes."""
    if not volumes.servers and not volumes.volumes:
        return []
    return [*_of_servers(volumes, reports), *_of_volumes(volumes)]


def _of_servers(volumes: Volumes, reports: Mapping[ServerId, Figures]) -> list[Family]:
    servers = [server for server in volumes.servers.values() if server.is_connected]
    offered = [({"server": s.id}, s.extents_max * EXTENT_BYTES) for s in servers]
    reserved = [({"server": s.id}, len(s.held) * EXTENT_BYTES) for s in servers]

    def reported(name: str) -> list[tuple[dict[str, str], float]]:
        return [({"server": s.id}, reports.get(s.id, {}).get(name, 0)) for s in servers]

    return [
        Family("ciel_memory_offered_bytes", "gauge", "Bytes that the server offers.", offered),
        Family("ciel_memory_reserved_bytes", "gauge", "Bytes that volumes reserve.", reserved),
        *[Family(f"ciel_memory_{n}", "gauge", text, reported(n)) for n, text in _NOW.items()],
        *[
            Family(f"ciel_memory_{name}_total", "counter", text, reported(name))
            for name, text in _EVER.items()
        ],
    ]


def _of_volumes(volumes: Volumes) -> list[Family]:
    rows = [({"volume": v.name}, volume_row(v), v) for v in volumes.volumes.values()]
    sizes = [(at, len(volume.extents) * EXTENT_BYTES) for at, _, volume in rows]
    return [
        Family("ciel_volume_bytes", "gauge", "Size of the volume.", sizes),
        Family(
            "ciel_volume_replicas", "gauge", "Copies that the volume should have.",
            [(at, volume.replicas) for at, _, volume in rows],
        ),
        Family(
            "ciel_volume_copies", "gauge", "The smallest number of copies of an extent.",
            [(at, min(len(e.in_sync) for e in volume.extents)) for at, _, volume in rows],
        ),
        Family(
            "ciel_volume_incomplete_extents", "gauge", "Extents with fewer copies than wanted.",
            [(at, row["incomplete"]) for at, row, _ in rows],
        ),
        Family(
            "ciel_volume_copying_extents", "gauge", "Extents of which a server gets a copy.",
            [(at, row["copying"]) for at, row, _ in rows],
        ),
    ]  # fmt: skip
