"""`ciel master`: restarts the master."""

from __future__ import annotations

import json
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from threading import Event
from typing import Any, Final

from ciel.access.settings import MasterLocation
from ciel.cli.connection import require_master
from ciel.cli.daemon_requests import ask_daemon
from ciel.cli.outcome import Status, UsageError, say
from ciel.cli.output.printing import print_json
from ciel.cli.parsing.options import add_cluster_options, make_parser, seconds
from ciel.cli.parsing.verbs import show_verbs
from ciel.client.data.worker_http import is_remote, text_of
from ciel.client.errors import WaitTimeoutError

POLL_S: Final = 0.1
BACK_WITHIN_S: Final = 60.0
"""The default time limit; a master reads 300,000 records of its journal per second."""

VERBS: Final = {"restart": "restart the master, and continue all jobs"}
_EPILOG: Final = """\
The master ends and starts again with the same options, from its journal: jobs, programs and waiting
clients continue. A new version of the software is used from then on.
"""


def main(prog: str, words: Sequence[str]) -> int:
    """Run the subcommand."""
    if words[:1] != ["restart"]:
        return show_verbs("ciel master", "Restarts the master.", VERBS, words)
    parser = make_parser("ciel master restart", f"{VERBS['restart'].capitalize()}.", _EPILOG)
    _add_restart(parser)
    return _restart(parser.parse_args(words[1:]))


def _add_restart(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--timeout",
        type=seconds,
        metavar="TIME",
        default=BACK_WITHIN_S,
        help="how long the new master may take to read the journal (default 60 s)",
    )
    add_cluster_options(parser)


def _restart(args: Namespace) -> int:
    found = require_master(args)
    netloc = found.url.partition("://")[2]
    started_s = time.monotonic()
    try:
        before = json.loads(ask_daemon(found, netloc, "GET", "/api/v1/status"))
        ask_daemon(found, netloc, "POST", "/control/restart")
    except Exception as error:
        if not is_remote(error):
            raise
        raise UsageError(f"the master at {found.url} was not restarted: {text_of(error)}") from None
    status = _await_other(found, netloc, before["started_at_s"], args.timeout)
    elapsed_s = round(time.monotonic() - started_s, 3)
    if args.json:
        print_json({"url": found.url, "version": status["version"], "elapsed_s": elapsed_s})
    else:
        say(f"the master at {found.url} was restarted, with version {status['version']}")
    return Status.DONE


def _await_other(
    found: MasterLocation, netloc: str, started_at_s: float, timeout_s: float
) -> dict[str, Any]:
    """Wait until another master answers; return its status.

    No connection could report that it is there, so this asks again and again.
    """
    until_s, pause = time.monotonic() + timeout_s, Event()
    while (left_s := until_s - time.monotonic()) > 0:
        try:
            answer = ask_daemon(found, netloc, "GET", "/api/v1/status", timeout_s=left_s)
            status: dict[str, Any] = json.loads(answer)
            if status["started_at_s"] != started_at_s:
                return status
        except Exception as error:
            if not is_remote(error):
                raise
        pause.wait(POLL_S)
    raise WaitTimeoutError("the restarted master; its log says what it does", timeout_s)
