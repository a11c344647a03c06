"""Measures loads of large files into shmfs, with and without a limit of disk jobs (CIB-41).

As in section 4.4 of the dissertation, n processes start at once, and each loads a file of s bytes
into shared memory: `shmld --io LIMIT FILE`. The result of a run is n * s / t. Before each run, the
benchmark drops the files from the kernel's cache, and creates a new image.

The files are on a modelled rotating disk that the kernel has mounted (`rotating.py`), four times as
fast as the disk that it models, and on the disk of the directory for temporary files. With
MINUTES=10, the benchmark starts no run after ten minutes, and the same command continues later. It
rewrites docs/measured/large-loads.md from all results.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import product
from operator import gt
from statistics import geometric_mean, mean

from benchmarks.disks.rotating import NoModelledDiskError, rotating_disk
from benchmarks.plots import line_chart, table, write_down, write_figures
from benchmarks.results import Results
from benchmarks.storage.disk_jobs import MIB, files, forget
from ciel.testing.shm_tools import fresh_image

LOADS = {32: (1, 2, 4, 8, 16), 128: (1, 2, 4, 8, 16, 32, 48), 1024: (1, 2, 4, 8)}
"""Numbers of loads at once, for each size in MiB; at most 8 GiB together."""
LIMITS = {"off": "no limit", "1": "one at a time", "2": "two at a time"}
DISKS = {
    "modelled": "A modelled rotating disk, through the kernel",
    "real": "The disk of the machine that measured",
}
RUNS = 3
SCALE = 4.0  # at more, two cores are not always faster than the model
SPARE_MIB = 64  # for the metadata of the disk's file system
TOLERANCE = 0.05  # smaller differences than this are called none
MOST = 0.75  # in fewer configurations, the difference is called chance
LOAD_TIMEOUT_S = 600


@dataclass(frozen=True)
class Cell:
    """A configuration, and its name in the results."""

    disk: str
    size_mib: int
    count: int
    limit: str

    def __str__(self) -> str:
        return f"{self.disk} {self.size_mib} MiB x {self.count}, limit {self.limit}"


Rates = dict[Cell, float]
"""Bytes per second of the disk that is modelled, not of the faster model."""


def cells(disk: str) -> dict[str, Cell]:
    """Return the configurations of a disk by their names."""
    sizes = ((size, count) for size, counts in LOADS.items() for count in counts)
    found = [Cell(disk, size, count, limit) for size, count in sizes for limit in LIMITS]
    return {str(cell): cell for cell in found}


def throughput(paths: list[str], size_bytes: int, limit: str) -> float:
    """Load all files at once into a new image; return the bytes per second."""
    for path in paths:
        forget(path)
    blocks = len(paths) * (size_bytes // MIB)
    with fresh_image(f"--blocks={blocks}") as image:
        started_s = time.monotonic()
        loads = [image.start("shmld", "--io", limit, path) for path in paths]
        complaints = [load.communicate(timeout=LOAD_TIMEOUT_S)[1] for load in loads]
        elapsed_s = time.monotonic() - started_s
    if any(load.returncode for load in loads):
        raise RuntimeError(b"".join(complaints).decode())
    return len(paths) * size_bytes / elapsed_s


@contextmanager
def loaded_files(disk: str) -> Iterator[tuple[dict[int, list[str]], float]]:
    """Create the files of each size on a disk; yield their paths, and the scale of the disk.

    The scale is how many times faster it is than the disk that it models. Raises
    NoModelledDiskError.
    """
    with ExitStack() as undo:
        place, scale, content = None, 1.0, os.urandom
        if disk == "modelled":
            need_mib = sum(size * max(counts) for size, counts in LOADS.items())
            size_bytes = (need_mib * 9 // 8 + SPARE_MIB) * MIB
            place = undo.enter_context(rotating_disk(size_bytes, SCALE)).files
            scale = SCALE
            content = bytes  # zeros, which the model keeps in little memory
        yield (
            {
                size: undo.enter_context(files(max(counts), size * MIB, place, content))
                for size, counts in LOADS.items()
            },
            scale,
        )


def load(disk: str, results: Results, runs: int) -> None:
    """Measure a disk until each configuration has so many runs. Raises NoModelledDiskError."""
    known = cells(disk)
    if not results.lacks(known, runs):
        return
    with loaded_files(disk) as (paths, scale):
        for name in results.missing(known, runs):
            cell = known[name]
            limit = "0" if cell.limit == "off" else cell.limit
            chosen = paths[cell.size_mib][: cell.count]
            rate = throughput(chosen, cell.size_mib * MIB, limit) / scale
            results.add(name, round(rate))
            print(f"{name}: {rate / 1e6:,.0f} MB/s", file=sys.stderr)


def medians(results: Results) -> Rates:
    """Return the median of each configuration that was measured with every limit."""
    rates = {cell: results.median(name) for disk in DISKS for name, cell in cells(disk).items()}
    return {
        cell: rate
        for cell, rate in rates.items()
        if rate is not None and all(rates[replace(cell, limit=limit)] for limit in LIMITS)
    }


def _table(disk: str, rates: Rates) -> str:
    """Return the rates of one disk as a Markdown table, in MB/s."""
    rows = []
    for size_mib, counts in LOADS.items():
        for count in counts:
            row = [Cell(disk, size_mib, count, limit) for limit in LIMITS]
            if row[0] in rates:
                figures = [f"{rates[cell] / 1e6:,.0f}" for cell in row]
                rows.append([f"{size_mib:,} MiB", str(count), *figures])
    return table(["size of a load", "loads at once", *LIMITS.values()], rows)


def _charts(disk: str, rates: Rates) -> dict[str, str]:
    """Draw a chart for each size that was measured on a disk."""
    charts = {}
    for size_mib in sorted({cell.size_mib for cell in rates if cell.disk == disk}):
        points = [cell for cell in rates if (cell.disk, cell.size_mib) == (disk, size_mib)]
        series = {
            name: [(cell.count, rates[cell] / 1e6) for cell in points if cell.limit == limit]
            for limit, name in LIMITS.items()
        }
        charts[f"large-loads-{disk}-{size_mib}"] = line_chart(
            f"{DISKS[disk]}: loads of {size_mib:,} MiB",
            "loads at once",
            "MB/s",
            series,
            by_doubling=True,
        )
    return charts


def verdict(ratio: float, share: float) -> str:
    """Say whether a limit wins: by its ratio to no limit, and in most configurations."""
    if ratio > 1 + TOLERANCE and share >= MOST:
        return "wins"
    return "loses" if ratio < 1 - TOLERANCE and share <= 1 - MOST else "makes no difference"


def compared(disk: str, rates: Rates) -> dict[str, float]:
    """Return how limits compare on a disk; empty if it was not measured.

    Ratios are geometric means over all sizes and all numbers of loads above one. `faster_in` is the
    share of these configurations in which a limit is faster than no limit.
    """
    alone = [rate for cell, rate in rates.items() if cell.disk == disk and cell.count == 1]
    off = {c: rates[c] for c in rates if c.disk == disk and c.count > 1 and c.limit == "off"}
    if not alone or not off:
        return {}
    found = {limit: [rates[replace(cell, limit=limit)] for cell in off] for limit in LIMITS}
    means = {limit: geometric_mean(values) for limit, values in found.items()}
    return {
        "alone_mb_per_s": geometric_mean(alone) / 1e6,
        "off_to_alone": means["off"] / geometric_mean(alone),
        **{f"{limit}_mb_per_s": rate / 1e6 for limit, rate in means.items()},
        **{f"{limit}_worst_mb_per_s": min(values) / 1e6 for limit, values in found.items()},
        **{f"{limit}_to_off": means[limit] / means["off"] for limit in ("1", "2")},
        **{f"{limit}_faster_in": mean(map(gt, found[limit], found["off"])) for limit in ("1", "2")},
    }


def show(rates: Rates, found: dict[str, dict[str, float]], about: str) -> None:
    """Write the page."""
    words: dict[str, str] = {}
    for disk, ratios in found.items():
        write_down("large-loads", disk, about + _table(disk, rates), _charts(disk, rates))
        for name, value in ratios.items():
            form = ",.0f" if name.endswith("mb_per_s") else ".0%" if "_in" in name else ".2f"
            words[f"{disk}_{name}"] = format(value, form)
        for limit in ("1", "2"):
            words[f"{disk}_{limit}_verdict"] = verdict(
                ratios[f"{limit}_to_off"], ratios[f"{limit}_faster_in"]
            )
    if len(found) == len(DISKS):
        write_figures("large-loads", words)


def measure() -> dict[str, float]:
    """Measure the missing runs, write the page, and return the ratios of the limits."""
    results = Results("large-loads")
    for run, disk in product(range(RUNS), DISKS):
        try:
            load(disk, results, run + 1)
        except NoModelledDiskError as error:
            print(f"large_loads: no modelled disk: {error}", file=sys.stderr)
    rates = medians(results)
    found = {disk: ratios for disk in DISKS if (ratios := compared(disk, rates))}
    show(rates, found, results.about())
    return {f"{disk}_{name}": x for disk, ratios in found.items() for name, x in ratios.items()}


if __name__ == "__main__":
    for name, value in measure().items():
        print(f"{name:26} {value:8.2f}")
