"""`ciel browse`: opens the cluster's pages in a browser."""

from __future__ import annotations

import os
import time
import webbrowser
from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import quote, urlsplit

from ciel.access.keys import Role
from ciel.access.settings import MasterLocation
from ciel.access.tickets import make_ticket
from ciel.cli.connection import require_master
from ciel.cli.outcome import Status
from ciel.cli.output.printing import print_json, print_text
from ciel.cli.parsing.options import add_cluster_options, make_parser

_LOGIN_PATH: Final = "/control/browse/enter"
_EPILOG: Final = """\
The link works once, within a minute, and only on the master's host. It gives the browser a cookie,
with which it can read the pages for 12 hours and change nothing. From another computer, forward the
master's port first: ssh -L PORT:127.0.0.1:PORT HOST.
"""


def main(prog: str, words: Sequence[str]) -> int:
    """Print a link to the pages; open it in a browser if there is a display."""
    parser = make_parser("ciel browse", "Open the cluster's pages in the browser.", _EPILOG)
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
    """Return a link that lets one browser read the pages, once.

    The link contains no key, only a ticket. The key of the role `read` signs the ticket if the
    found key can derive it; otherwise the found key signs it.
    """
    key = found.key.derive(Role.READ) or found.key
    ticket = make_ticket(key, "GET", urlsplit(found.url).netloc, _LOGIN_PATH, now_s)
    return f"{found.url}{_LOGIN_PATH}?ticket={quote(ticket.partition(' ')[2], safe='')}"


def can_show(environ: Mapping[str, str]) -> bool:
    """Return whether a browser would open a separate window.

    A text browser would take over this terminal. It is opened only if the variable `BROWSER`
    names it.
    """
    return any(environ.get(name) for name in ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY"))
