"""Keeps the results of long benchmarks in a file, so that an interrupted benchmark goes on.

The file, beside the pages in docs/measured, has the results of all runs of each configuration. A
benchmark skips recorded runs, and rewrites its page from the file. To measure again, remove it.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Iterable, Iterator
from itertools import product

from benchmarks import plots

LOAD = "load average before"
"""The name of the loads of the machine, one for each time that the benchmark was started."""


class Results:
    """The results of a benchmark. `minutes`: how long it may start further runs."""

    def __init__(self, name: str, minutes: float | None = None) -> None:
        self._path = plots.DOCS / f"{name}.json"
        self._runs: dict[str, list[float]] = {}
        if self._path.exists():
            self._runs = json.loads(self._path.read_text())
        self._load: float | None = round(os.getloadavg()[0], 1)  # until it is in the file
        limit = os.environ.get("MINUTES", "inf") if minutes is None else minutes
        self._until_s = time.monotonic() + 60 * float(limit)

    def lacks(self, configurations: Iterable[str], runs: int) -> bool:
        """Return whether a configuration has fewer runs, and the time is not over."""
        return next(self.missing(configurations, runs), None) is not None

    def missing(self, configurations: Iterable[str], runs: int) -> Iterator[str]:
        """Yield each configuration that has fewer runs, run by run, until the time is over.

        The caller adds a result before it asks for the next configuration.
        """
        for run, configuration in product(range(runs), [*configurations]):
            if self.count(configuration) <= run and time.monotonic() < self._until_s:
                yield configuration

    def add(self, configuration: str, result: float) -> None:
        """Add the result of a run, and write the file."""
        if self._load is not None:
            self._runs.setdefault(LOAD, []).append(self._load)
            self._load = None
        self._runs.setdefault(configuration, []).append(result)
        lines = ",\n".join(f"{json.dumps(k)}: {v}" for k, v in sorted(self._runs.items()))
        fresh = self._path.with_suffix(".new")
        fresh.write_text(f"{{\n{lines}\n}}\n")
        fresh.replace(self._path)

    def count(self, configuration: str) -> int:
        """Return how many results a configuration has."""
        return len(self._runs.get(configuration, ()))

    def median(self, configuration: str) -> float | None:
        """Return the median of a configuration's results; None if it has none."""
        found = self._runs.get(configuration)
        return statistics.median(found) if found else None

    def about(self) -> str:
        """Return a sentence about the machine and the runs, for the top of a table."""
        loads = ", ".join(str(load) for load in self._runs.get(LOAD, ()))
        counts = sorted({len(runs) for name, runs in self._runs.items() if name != LOAD})
        text = f"{len(os.sched_getaffinity(0))} cores"
        text += f"; load average before: {loads}" if loads else ""
        return f"{text}; runs of each configuration: {counts[0]} to {counts[-1]}.\n\n"
