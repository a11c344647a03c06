"""Compares coarse and fine locks of shmfs (CIB-24).

Coarse locks are the four locks of the dissertation; fine locks are 4 and 64 locks instead of each
of three of them. 1 to 8 processes do the same at the same time.

Each process is bound to a core, since the kernel would otherwise place a woken process on the core
of its waker; then nothing would be contended. The benchmark rewrites the plot and the tables of
docs/measured/locks.md.

Expected cost: a free lock takes one swap to acquire and one to release, 20 ns together; more locks
make a single process no faster. With two processes, a coarse lock blocks the second process while
it is held, which is nearly all of the 0.5 us of a create, and wake-ups come on top.
"""

from __future__ import annotations

import json
import os
import statistics
from itertools import product

from benchmarks.plots import line_chart, table, write_down
from benchmarks.storage.shmfs import rates

REPEATS = {1: 5, 2: 9, 4: 3, 8: 3}
"""Runs for each number of processes. Two processes need most runs: they need both cores, and other
programs use these at times.
"""
SHARDS = (1, 4, 64)
KINDS = ("create", "lookup", "mixed", "unlink", "bare")
# two inputs, each looked up when the task is placed and when the input is opened
LOOKUPS_OF_A_TASK = 4
TASKS_PER_S = 46_000
"""The measured rate of the engine on two cores of this kind (README)."""

Figures = dict[tuple[int, int, str], float]


def measured() -> tuple[Figures, Figures]:
    """Return calls per second, and how many of 1,000 calls had to wait, as medians."""
    runs: dict[tuple[int, int], list[list[float]]] = {}
    for number, processes, shards in product(range(max(REPEATS.values())), REPEATS, SHARDS):
        if number < REPEATS[processes]:
            runs.setdefault((processes, shards), []).append(rates("locks", processes, shards))
    speed: Figures = {}
    waits: Figures = {}
    for (processes, shards), rows in runs.items():
        for column, kind in enumerate(KINDS):
            key = (processes, shards, kind)
            speed[key] = statistics.median(row[column] for row in rows)
            waits[key] = statistics.median(row[len(KINDS) + column] for row in rows)
    return speed, waits


def share_of_engine(speed: Figures) -> float:
    """Return the fraction of the capacity of coarse locks that a busy engine uses.

    The capacity was measured with two processes. A task needs a create, some lookups and an unlink.
    """
    create, lookup, unlink = (speed[2, 1, kind] for kind in ("create", "lookup", "unlink"))
    return TASKS_PER_S * (1 / create + LOOKUPS_OF_A_TASK / lookup + 1 / unlink)


def _table(figures: Figures, form: str, unit: float) -> str:
    head = ["processes", "locks of a kind", "create + commit", "lookup", "mixed", "unlink",
            "nothing shared"]  # fmt: skip
    rows = [
        [str(processes), str(shards),
         *(format(figures[processes, shards, kind] / unit, form) for kind in KINDS)]
        for processes, shards in product(REPEATS, SHARDS)
    ]  # fmt: skip
    return table(head, rows)


def _show(speed: Figures, waits: Figures, load: float) -> None:
    series = {
        f"{kind}, {shards} of a kind": [(n, speed[n, shards, kind] / 1e6) for n in REPEATS]
        for kind in ("create", "mixed")
        for shards in SHARDS
    }
    cores = len(os.sched_getaffinity(0))
    chart = line_chart(
        f"shmfs on {cores} cores", "processes", "million calls per second", series, by_doubling=True
    )
    about = f"{cores} cores; load average before: {load:.1f}.\n\n"
    write_down("locks", "rates", about + _table(speed, ".2f", 1e6), {"locks": chart})
    write_down("locks", "waits", _table(waits, ".2f", 1), {})


def measure() -> dict[str, float]:
    """Measure, write the page, and return the ratios of fine to coarse locks."""
    load = os.getloadavg()[0]
    speed, waits = measured()
    _show(speed, waits, load)
    found = {
        f"{kind}_fine_to_coarse_{processes}": speed[processes, 64, kind] / speed[processes, 1, kind]
        for kind, processes in product(KINDS, REPEATS)
    }
    found["coarse_create_2_to_1"] = speed[2, 1, "create"] / speed[1, 1, "create"]
    found["fine_create_2_to_1"] = speed[2, 64, "create"] / speed[1, 64, "create"]
    found["coarse_create_2_per_s"] = speed[2, 1, "create"]
    found["engine_share"] = share_of_engine(speed)
    return found


if __name__ == "__main__":
    print(json.dumps(measure(), indent=2))
