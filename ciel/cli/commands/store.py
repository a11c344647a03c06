"""`ciel store`: shows the contents and the activity of the workers' stores."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import Any

from ciel.cli.outcome import Status
from ciel.cli.output.printing import print_json, print_text
from ciel.cli.output.tables import screen_width, size_text, table
from ciel.cli.parsing.verbs import Verb, run_verb
from ciel.client.client import Client

_STATS = """\
One row for each worker and level of its store, about a second old. OPEN: open readers and writers.
Objects since the start of the worker: EVICTED from memory to disk; DROPPED, deleted because another
copy exists; LOADED back into memory; SPILLED, written to disk because memory was full. WAITED:
writers that found the level full. COPIED: bytes copied for programs that could not read the file of
the store. JOBS: disk jobs that wait. With --json, bytes are numbers.
"""


def main(prog: str, words: Sequence[str]) -> int:
    """Run the subcommand."""
    return run_verb("ciel store", "Shows the workers' stores.", VERBS, words)


def _stats(client: Client, args: Namespace) -> int:
    rows = client.ask("stores")
    if args.json:
        print_json(rows)
    else:
        print_text(render_stats(rows, screen_width()))
    return Status.DONE


def render_stats(rows: Sequence[dict[str, Any]], width: int | None = None) -> str:
    """Lay out the master's reply to the query `stores`."""
    if not rows:
        return "no worker has reported its store yet"
    cells = [
        (
            row["worker"], row["name"],
            "" if row["capacity_bytes"] is None else size_text(row["capacity_bytes"]),
            size_text(row["used_bytes"] + row["reserved_bytes"]), row["objects"],
            f"{row['readers']}+{row['writers']}",
            f"{row['evicted']} ({size_text(row['evicted_bytes'])})" if row["evicted"] else 0,
            row["dropped"], row["promoted"], row["spilled"], row["waited"],
            size_text(row["copied_bytes"]), row["disk_waiting"],
        )
        for row in rows
    ]  # fmt: skip
    headings = (
        "WORKER", "LEVEL", "CAPACITY", "USED", "COMMITTED", "OPEN", "EVICTED", "DROPPED", "LOADED",
        "SPILLED", "WAITED", "COPIED", "JOBS",
    )  # fmt: skip
    return table(headings, cells, width)


def _add_nothing(parser: ArgumentParser) -> None:
    pass


VERBS = {
    "stats": Verb(
        "show the contents and the activity of the workers' stores", _add_nothing, _stats, _STATS
    )
}
