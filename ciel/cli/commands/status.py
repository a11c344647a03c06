"""`ciel status`: shows the cluster, its jobs, tasks and workers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from typing import Any

from ciel.cli.connection import connect
from ciel.cli.outcome import Status
from ciel.cli.output.printing import print_json, print_text
from ciel.cli.output.tables import duration, screen_width
from ciel.cli.output.workers import render_workers
from ciel.cli.parsing.options import add_cluster_options, make_parser


def main(prog: str, words: Sequence[str]) -> int:
    """Query the master, and print its status."""
    parser = make_parser("ciel status", "Show the cluster, its workers and jobs.")
    add_cluster_options(parser)
    args = parser.parse_args(words)
    with closing(connect(args, "ciel status")) as client:
        status = client.ask("status")
        origin = client.location.origin
    del status["now_s"], status["epoch_s"]  # of the master's monotonic clock
    status["up_s"] = round(time.time() - status.pop("started_at_s"), 3)
    if args.json:
        print_json(status)
    else:
        print_text(render(status, origin, screen_width()))
    return Status.DONE


def render(status: dict[str, Any], origin: str, width: int | None = None) -> str:
    """Lay out the master's answer to `status`."""
    return "\n".join(
        [
            f"cluster {status['cluster_id']} at {status['url']}, from {origin}",
            f"ciel {status['version']}, up for {duration(status['up_s'])}",
            f"jobs: {_tally(status['jobs'])}",
            f"tasks: {_tally(status['tasks'])}",
            "",
            render_workers(status["workers"], width),
        ]
    )


def _tally(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {state}" for state, count in counts.items() if count) or "none"
