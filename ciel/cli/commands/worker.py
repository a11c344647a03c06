"""`ciel worker`: lists the workers."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import Any

from ciel.cli.outcome import Status
from ciel.cli.output.printing import print_json, print_text
from ciel.cli.output.tables import duration, screen_width, size_text, table
from ciel.cli.parsing.verbs import Verb, run_verb
from ciel.client.client import Client


def main(prog: str, words: Sequence[str]) -> int:
    """Run the verb."""
    return run_verb("ciel worker", "Looks at the workers.", VERBS, words)


def _list(client: Client, args: Namespace) -> int:
    workers = client.ask("workers")
    if args.json:
        print_json(workers)
    else:
        print_text(render_workers(workers, screen_width()))
    return Status.DONE


def render_workers(workers: Sequence[dict[str, Any]], width: int | None = None) -> str:
    """Lay out the master's answer to `workers`."""
    if not workers:
        return "no workers: nothing can run"
    rows = [
        (
            w["worker"], w["netloc"], w["slots"], w["running"], w["queued"], _memory(w),
            duration(w["silent_s"]) + (" (suspected)" if w["suspicion"] else ""),
        )
        for w in workers
    ]  # fmt: skip
    headings = ("WORKER", "ADDRESS", "SLOTS", "RUNNING", "QUEUED", "MEMORY", "HEARD")
    return table(headings, rows, width)


def _memory(worker: dict[str, Any]) -> str:
    """Return how much of a worker's memory its tasks have requested."""
    if not worker["memory_bytes"]:
        return "-"
    return f"{size_text(worker['memory_asked_bytes'])}/{size_text(worker['memory_bytes'])}"


def _add_nothing(parser: ArgumentParser) -> None:
    pass


VERBS = {"list": Verb("list the workers and their tasks", _add_nothing, _list)}
