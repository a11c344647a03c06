"""`python -m benchmarks.chaos`: runs rows, each in a separate process, and prints their table.

A row that misses its target does not fail the command. `--record` writes the results of full size
into docs/measured/reliability.json and docs/reliability.md.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.chaos import (  # noqa: F401  # each of these modules adds its rows
    clients,
    existing,
    hostile,
    journals,
    masters,
    networks,
    objects,
    programs,
    stores,
    workers,
)
from benchmarks.chaos.rows import ROWS, Result
from benchmarks.chaos.running import measure_here, run_row
from benchmarks.chaos.table import PAGE, record, recorded, table, write_page


def in_order() -> list[str]:
    """Return the names of all rows, sorted by their letter in the catalogue and their number."""
    letters = "WOMH"
    return sorted(ROWS, key=lambda name: (letters.index(name[0]), int(name[1:])))


def main(arguments: list[str]) -> int:
    """Run the named rows; return an exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chaos", description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW", help="rows to run (default: all)")
    parser.add_argument("--scale", type=float, default=1.0, help="run smaller rows for a trial")
    parser.add_argument("--list", action="store_true", help="list the rows")
    parser.add_argument("--record", action="store_true", help="write the results into the pages")
    parser.add_argument("--page", action="store_true", help="write the page from the last record")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    rows = {name: ROWS[name] for name in in_order()}
    if unknown := [name for name in chosen.rows if name not in rows]:
        parser.error(f"no such row: {', '.join(unknown)}; there are {', '.join(rows)}")
    if not 0 < chosen.scale <= 1:
        parser.error("--scale must be more than 0, and at most 1")
    if chosen.record and chosen.scale != 1:
        parser.error("--record needs the full size")
    if chosen.list:
        for row in rows.values():
            print(f"{row.name:4} {row.failure}: {row.targets}")
        return 0
    if chosen.page:
        PAGE.write_text(write_page(PAGE.read_text(), recorded(), rows))
        return 0
    if chosen.inside:
        measure_here(rows[chosen.rows[0]], chosen.scale, chosen.inside)
        return 0
    results: list[Result] = []
    for name in chosen.rows or rows:
        print(f"running {name}: {rows[name].failure}", file=sys.stderr, flush=True)
        results.append(run_row(rows[name], chosen.scale))
        print(f"- {results[-1].verdict}, {results[-1].took_s:.0f} s", file=sys.stderr, flush=True)
        if chosen.record:
            record(results[-1:], rows)
    print(table(results, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
