"""Shows the activity of memory servers and volumes: `ciel memory stats`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from ciel.cli.outcome import Status
from ciel.cli.output.printing import print_json
from ciel.cli.output.tables import screen_width, table
from ciel.cli.output.tables import size_text as size
from ciel.cli.output.watching import EVERY_S, Redrawn, pause
from ciel.client.client import Client
from ciel.memory.page_server import PAGE_BYTES

ABOUT = """\
Servers report once a second. OFFERED: what volumes may reserve now, and what --offer says if that
is more. USED: pages with content. LOCKED: memory that cannot be swapped out. Since the start of the
server: READ and WRITTEN, pages and bytes, WRITTEN also as a backup; COPIED, pages sent to a server
that gets a further copy; REFUSED, requests that failed or were for another server; CONNECTIONS.
Of a volume: COPIES, the smallest number of copies of a page; LACKING, extents (1MiB) with fewer
copies than wanted; COPYING, extents of which a server gets a copy now. With --json, bytes are
numbers; with --watch, too, one line for each second.
"""


def stats(client: Client, args: Namespace) -> int:
    """Print the figures, once or until the command is interrupted."""
    screen = Redrawn()
    while True:
        found = client.ask("memory_stats")
        if args.json:
            print_json(found)
        else:
            screen.show(render(found, screen_width()))
        if not args.watch:
            return Status.DONE
        pause(client, EVERY_S)


def add_watch(parser: ArgumentParser) -> None:
    """Add the option `--watch`."""
    parser.add_argument(
        "--watch", action="store_true", help="show them again each second, until interrupted"
    )


def render(found: dict[str, Any], width: int | None = None) -> str:
    """Lay out the master's answer to `memory_stats`."""
    servers = [
        [
            row["server"], state_of_server(row), _offered(row), size(row["reserved_bytes"]),
            size(row["used_bytes"]), size(row["locked_bytes"]), _pages(row["pages_read"]),
            _pages(row["pages_written"]), _pages(row["pages_synced"]), row["requests"],
            row["refused"], row["connections"],
        ]
        for row in found["servers"]
    ]  # fmt: skip
    volumes = [
        [
            row["name"], size(row["size_bytes"]), f"{row['copies']} of {row['replicas']}",
            row["incomplete"], row["copying"], state_of_volume(row),
        ]
        for row in found["volumes"]
    ]  # fmt: skip
    of_servers = (
        "SERVER", "STATE", "OFFERED", "RESERVED", "USED", "LOCKED", "READ", "WRITTEN", "COPIED",
        "REQUESTS", "REFUSED", "CONNECTIONS",
    )  # fmt: skip
    of_volumes = ("VOLUME", "SIZE", "COPIES", "LACKING", "COPYING", "STATE")
    return f"{table(of_servers, servers, width)}\n{table(of_volumes, volumes, width)}"


def state_of_server(row: dict[str, Any]) -> str:
    """Return whether a server serves, for a table."""
    if not row["is_connected"]:
        return "gone"
    return "draining" if row["is_draining"] else "connected"


def state_of_volume(row: dict[str, Any]) -> str:
    """Return whether a volume can be read and written, for a table."""
    if row["why"]:
        return str(row["why"])
    return "available" if row["available"] == row["extents"] else "moving"


def _offered(row: dict[str, Any]) -> str:
    now, most = row["offered_bytes"], row["offer_max_bytes"]
    return f"{size(now)} of {size(most)}" if now < most - most % (1 << 20) else size(now)


def _pages(count: int) -> str:
    return f"{count} ({size(count * PAGE_BYTES)})" if count else "0"
