"""The checks of remote memory: copies of volumes, room, locks, and the way to each server."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Any, Final

from ciel.cli.doctor.findings import Finding, fault, note, ok
from ciel.cli.output.tables import count_text, size_text

CHECK: Final = "memory"
FULL: Final = 0.95
CONNECT_S: Final = 2.0
_LEND: Final = "start another server: ciel-memory --offer SIZE"


def check_memory(
    found: dict[str, Any], connect: Callable[[str], object] | None = None
) -> list[Finding]:
    """Check the answer to the query `memory_stats`; return nothing without servers and volumes.

    `connect`: connects to an address, or raises OSError.
    """
    servers = [row for row in found["servers"] if row["is_connected"]]
    if not servers and not found["volumes"]:
        return []
    faults = [
        *(finding for row in found["volumes"] for finding in _volume(row)),
        *(finding for row in servers for finding in _server(row)),
        *(finding for row in servers for finding in _reached(row, connect or _connect)),
    ]
    offered = size_text(sum(row["offered_bytes"] for row in servers))
    volumes = count_text(len(found["volumes"]), "volume")
    what = f"{count_text(len(servers), 'server')} with {offered}, {volumes}"
    return [ok(CHECK, what), *faults]


def _volume(row: dict[str, Any]) -> Iterator[Finding]:
    name = f"volume {row['name']}"
    if row["why"]:
        yield fault(
            CHECK, f"{name}: {row['why']}",
            f"connect that server again; if its process has ended, the pages are lost: "
            f"ciel memory remove {row['name']}",
        )  # fmt: skip
        return
    if not row["incomplete"]:
        return
    lacking = f"{name} has {row['copies']} of {row['replicas']} copies of {row['incomplete']} MiB"
    if row["copying"]:
        yield note(CHECK, f"{lacking}; a server gets a copy of {row['copying']} MiB now")
    else:
        yield fault(CHECK, f"{lacking}, and no other server has room for a copy", _LEND)


def _server(row: dict[str, Any]) -> Iterator[Finding]:
    name, most = f"server {row['server']} ({row['address']})", row["offer_max_bytes"]
    offered = row["offered_bytes"]
    if row["reserved_bytes"] > FULL * offered:
        what = f"{name} is full: {size_text(row['reserved_bytes'])} of {size_text(offered)}"
        yield note(CHECK, what, f"{_LEND}; or remove a volume: ciel memory remove VOLUME")
    if offered < most - most % (1 << 20):
        yield note(
            CHECK, f"{name} offers {size_text(offered)} of {size_text(most)}: its host is short of "
            "memory", "run fewer programs there, or start that server with a smaller --offer",
        )  # fmt: skip
    if row["swap_bytes"] and row["locked_bytes"] < offered:
        what = f"the memory of {name} may be swapped out: it is not locked, and its host has swap"
        advice = "start it with --lock"
        if row["lockable_bytes"] < most:
            may = size_text(row["lockable_bytes"])
            advice = (
                f"start it with --lock, after raising its limit of {may} (ulimit -l; of a systemd "
                "unit: LimitMEMLOCK=infinity)"
            )
        yield note(CHECK, what, advice)


def _reached(row: dict[str, Any], connect: Callable[[str], object]) -> Iterator[Finding]:
    try:
        connect(row["address"])
    except OSError as error:
        yield fault(
            CHECK,
            f"this host cannot reach server {row['server']} at {row['address']}: {error}",
            "open its port in the firewall, or start it with another address: --advertise "
            "HOST:PORT",
        )  # fmt: skip


def _connect(address: str) -> None:
    """Connect and disconnect; raises OSError."""
    host, _, port = address.rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
