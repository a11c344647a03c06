"""`ciel status`: the cluster at a glance."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from typing import Any

from ciel.cli.options import add_cluster_options, connect, make_parser
from ciel.cli.outcome import Status
from ciel.cli.printing import duration, print_json, print_text, table


def main(prog: str, words: Sequence[str]) -> int:
    """Ask the master and print what it says."""
    parser = make_parser("ciel status", "Show the cluster, its workers and jobs.")
    add_cluster_options(parser)
    args = parser.parse_args(words)
    with closing(connect(args, "ciel status")) as client:
        status = client.ask("status")
        origin = client.location.origin
    if args.json:
        print_json(status)
    else:
        print_text(render(status, origin, time.time()))
    return Status.DONE


def render(status: dict[str, Any], origin: str, now_s: float) -> str:
    """Lay out the answer to `status`; `now_s` is wall-clock time."""
    up = duration(now_s - status["started_at_s"])
    lines = [
        f"cluster {status['cluster_id']} at {status['url']}, from {origin}",
        f"ciel {status['version']}, up for {up}",
        f"jobs: {_tally(status['jobs'])}",
        f"tasks: {_tally(status['tasks'])}",
        "",
    ]
    workers = status["workers"]
    if not workers:
        return "\n".join([*lines, "no workers: nothing can run"])
    rows = [
        (w["worker"], w["netloc"], w["slots"], w["running"], w["queued"], duration(w["silent_s"]))
        for w in workers
    ]
    headings = ("WORKER", "ADDRESS", "SLOTS", "RUNNING", "QUEUED", "HEARD")
    return "\n".join([*lines, table(headings, rows)])


def _tally(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {state}" for state, count in counts.items() if count) or "none"
