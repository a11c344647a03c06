"""`ciel status` shows the cluster, its jobs and workers; `ciel browse` opens its web pages."""

from __future__ import annotations

import os
import time
import webbrowser
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, Final
from urllib.parse import quote, urlsplit

from ciel.access.keys import Role
from ciel.access.settings import MasterLocation
from ciel.access.tickets import make_ticket
from ciel.cli.connection import connect, require_master
from ciel.cli.outcome import Status
from ciel.cli.output.printing import print_json, print_text
from ciel.cli.output.tables import count_text, duration, screen_width, size_text
from ciel.cli.output.workers import render_workers
from ciel.cli.parsing.options import add_cluster_options, make_parser

_LOGIN_PATH: Final = "/control/browse/enter"
_NO_WORKERS: Final = "no workers: nothing can run"
_EPILOG: Final = """\
The link works once, within a minute, and only on the master's host. It gives the browser a cookie,
with which it can read the web pages for 12 hours and change nothing. From another computer, forward
the master's port first: ssh -L PORT:127.0.0.1:PORT HOST.
"""


def main(prog: str, words: Sequence[str]) -> int:
    """Run `ciel status` or `ciel browse`."""
    return _status(words) if prog == "status" else _browse(words)


# --- status ---------------------------------------------------------------------------------------


def _status(words: Sequence[str]) -> int:
    """Query the master, and print its status."""
    parser = make_parser("ciel status", "Show the cluster, its workers and jobs.")
    parser.add_argument(
        "--transports",
        action="store_true",
        help="show how messages and objects reach each worker, and why",
    )
    add_cluster_options(parser)
    args = parser.parse_args(words)
    with closing(connect(args, "ciel status")) as client:
        status = client.ask("status")
        if args.transports:
            status["transports"] = client.ask("transports")
        origin = client.location.origin
    del status["now_s"], status["epoch_s"]  # of the master's monotonic clock
    status["up_s"] = round(time.time() - status.pop("started_at_s"), 3)
    if args.json:
        print_json(status)
    elif args.transports:
        print_text("\n".join(render_transports(status["transports"])) or _NO_WORKERS)
    else:
        print_text(render(status, origin, screen_width()))
    return Status.DONE


def render(status: dict[str, Any], origin: str, width: int | None = None) -> str:
    """Lay out the master's reply to the query `status`."""
    return "\n".join(
        [
            f"cluster {status['cluster_id']} at {status['url']}, address from {origin}",
            f"ciel {status['version']}, up for {duration(status['up_s'])}",
            *(f"standby: {url} may take over" for url in status.get("masters", ())[1:]),
            f"jobs: {_tally(status['jobs'])}",
            f"tasks: {_tally(status['tasks'])}",
            *_memory(status.get("memory")),
            "",
            render_workers(status["workers"], width),
        ]
    )


def render_transports(workers: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines about each worker; workers from which objects come alike share a line."""
    for worker in workers:
        control = worker["control"]
        yield f"{worker['worker']} at {worker['netloc']}"
        yield f"  messages: {control['way'] or 'none'}, because {control['reason']}"
        sources: dict[tuple[str, str], list[str]] = {}
        for item in worker["objects"]:
            sources.setdefault((item["way"], item["reason"]), []).append(item["from"])
        for (way, reason), names in sources.items():
            yield f"  objects from {', '.join(names)}: {way}, because {reason}"


def _memory(found: dict[str, int] | None) -> Iterator[str]:
    """Yield the lines about memory servers and volumes, if there are some."""
    if found is None:
        return
    servers, volumes, lacking = found["servers"], found["volumes"], found["incomplete_volumes"]
    yield (
        f"memory: {count_text(servers, 'server')} with {size_text(found['offered_bytes'])}, "
        f"{count_text(volumes, 'volume')} with {size_text(found['reserved_bytes'])}"
    )
    if lacking:
        yield f"memory: {count_text(lacking, 'volume')} without all copies, see ciel memory stats"


def _tally(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {state}" for state, count in counts.items() if count) or "none"


# --- browse ---------------------------------------------------------------------------------------


def _browse(words: Sequence[str]) -> int:
    """Print a link to the web pages; open it in a browser if there is a display."""
    parser = make_parser("ciel browse", "Open the cluster's web pages in the browser.", _EPILOG)
    parser.add_argument("--no-open", action="store_true", help="only print the link")
    add_cluster_options(parser)
    args = parser.parse_args(words)
    link = make_link(require_master(args), time.time())
    is_opened = not args.no_open and can_show(os.environ) and webbrowser.open(link)
    if args.json:
        print_json({"url": link, "opened": is_opened})
    else:
        print_text(link)
    return Status.DONE


def make_link(found: MasterLocation, now_s: float) -> str:
    """Return a link that lets one browser read the web pages, once.

    The link contains no key, only a ticket. The key of the role `read` signs the ticket if the
    found key can derive it; otherwise the found key signs it.
    """
    key = found.key.derive(Role.READ) or found.key
    ticket = make_ticket(key, "GET", urlsplit(found.url).netloc, _LOGIN_PATH, now_s)
    return f"{found.url}{_LOGIN_PATH}?ticket={quote(ticket.partition(' ')[2], safe='')}"


def can_show(environ: Mapping[str, str]) -> bool:
    """Return whether a browser may be opened: there is a display, or `BROWSER` names a browser.

    Without both, a text browser could take over this terminal.
    """
    return any(environ.get(name) for name in ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY"))
