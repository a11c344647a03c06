"""`ciel worker`: lists the workers, and drains one."""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from ciel.cli.outcome import Status, say
from ciel.cli.output.printing import print_json, print_text
from ciel.cli.output.tables import screen_width
from ciel.cli.output.workers import render_workers
from ciel.cli.parsing.options import seconds
from ciel.cli.parsing.verbs import Verb, run_verb
from ciel.client.client import Client
from ciel.client.errors import WaitTimeoutError

POLL_S: Final = 0.1


def main(prog: str, words: Sequence[str]) -> int:
    """Run the subcommand."""
    return run_verb("ciel worker", "Lists the workers, and drains one.", VERBS, words)


def _list(client: Client, args: Namespace) -> int:
    workers = client.ask("workers")
    if args.json:
        print_json(workers)
    else:
        print_text(render_workers(workers, screen_width()))
    return Status.DONE


def _drain(client: Client, args: Namespace) -> int:
    """Drain a worker, and wait until it has left."""
    started_s = time.monotonic()
    found = client.change("drain", {"worker": args.worker, "timeout_s": args.timeout})
    worker = found["worker"]
    while (row := _find(client, worker)) is not None:
        drain = row["draining"]
        if drain is None:  # the master was killed before the worker knew it
            client.change("drain", {"worker": worker, "timeout_s": args.timeout})
        elif drain["stuck"] and not drain["tasks"]:
            say(
                f"worker {worker} cannot leave yet: {drain['stuck']} objects fit on no other "
                f"worker ({drain['why']}). Start another worker, or free space: the objects then "
                "move, and the worker leaves"
            )
            return Status.FAILED
        _pause(client)
    if args.json:
        elapsed_s = round(time.monotonic() - started_s, 3)
        print_json({"worker": worker, "netloc": found["netloc"], "elapsed_s": elapsed_s})
    else:
        say(f"worker {worker} has left")
    return Status.DONE


def _pause(client: Client) -> None:
    """Wait for the next query: the master sends no message when a worker leaves."""
    with suppress(WaitTimeoutError):
        client.wait_until(lambda: False, POLL_S, "the next query")


def _find(client: Client, worker: str) -> dict[str, Any] | None:
    rows = [row for row in client.ask("workers") if row["worker"] == worker]
    return rows[0] if rows else None


def _add_nothing(parser: ArgumentParser) -> None:
    pass


def _add_drain(parser: ArgumentParser) -> None:
    parser.add_argument("worker", metavar="ID", help="the worker's id or address")
    parser.add_argument(
        "--timeout",
        type=seconds,
        metavar="TIME",
        help="after this time, cancel the tasks that still run there; they run again on other "
        "workers (default: wait for their ends)",
    )


VERBS = {
    "list": Verb("list the workers and their tasks", _add_nothing, _list),
    "drain": Verb(
        "let a worker leave without loss",
        _add_drain,
        _drain,
        "The worker gets no new tasks. When its tasks have ended, and other workers have its "
        "objects, its process ends. The command waits for that; if the command is interrupted, the "
        "worker leaves nevertheless.",
    ),
}
