"""Benchmarks run, at toy size, and give the figures that the table of figures wants of them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from math import isfinite
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from benchmarks import plots
from benchmarks.__main__ import FIGURES
from benchmarks.disks import large_loads
from benchmarks.engine import (
    combinations,
    control,
    finer,
    launcher,
    master,
    programs,
    released,
    shmd_messages,
    transports,
)
from benchmarks.storage import disk_jobs, fuse, io_bound, locks, mpb

MEASURED = plots.DOCS


class Toy(NamedTuple):
    """A benchmark, what makes it small, and the pages that it rewrites."""

    module: ModuleType
    arguments: dict[str, int]
    sizes: Sequence[tuple[ModuleType, str, Any]] = ()
    pages: tuple[str, ...] = ()
    lacking: tuple[str, ...] = ()
    """Recorded results that are measured again; the toy uses all others."""


SPIN = {"TASKS": "3", "MS": "1"}
TOYS = {
    "combinations": Toy(
        combinations,
        {},
        [
            (combinations, "RUNS", 1),
            (combinations, "WORKLOADS", combinations.WORKLOADS | {"timespin": SPIN}),
        ],
        ("combinations",),
        ("disk, socket, io 1, random: timespin", "scc fine, mpb, locality: timespin"),
    ),
    "control": Toy(control, {"count": 500}),
    "fuse": Toy(fuse, {"pairs": 1}),
    "launcher": Toy(launcher, {"pairs": 1, "launches": 50}),
    "mpb": Toy(mpb, {"rounds": 1}),
    "shmd_messages": Toy(shmd_messages, {"requests": 20, "rounds": 1}),
    "programs": Toy(programs, {"runs": 20, "pairs": 1}),
    "released": Toy(released, {"tasks": 500, "jobs": 50}),
    "disk_jobs": Toy(
        disk_jobs,
        {},
        [
            (disk_jobs, "LOADS", (1, 2)),
            (disk_jobs, "modelled", partial(disk_jobs.modelled, requests=2, runs=1)),
        ],
        ("disk-jobs",),
    ),
    "large_loads": Toy(
        large_loads,
        {},
        [(large_loads, "LOADS", {1: (1, 2)}), (large_loads, "RUNS", 1)],
        ("large-loads",),
    ),
    "transports": Toy(
        transports,
        {},
        [
            (transports, "ROUNDS", 1),
            (transports, "FETCHES", 1),
            (transports, "SIZES_BYTES", (1 << 10, 1 << 12)),
        ],
        ("transports",),
    ),
    "io_bound": Toy(
        io_bound,
        {},
        [(io_bound, "ROUNDS", 1), (io_bound, "REQUESTS", 2), (io_bound, "LOOPS", 10)],
        ("io-bound",),
    ),
    "locks": Toy(locks, {}, [(locks, "REPEATS", {1: 1, 2: 1})], ("locks",)),
    "master": Toy(
        master,
        {},
        [
            (finer, "TASKS", 200),
            (finer, "event_us", partial(finer.event_us, count=200)),
            (finer, "two_processes", partial(finer.two_processes, pairs=1)),
            (finer, "threads_and_locks", partial(finer.threads_and_locks, batches=2, pairs=1)),
            (master, "NO_OPS", 200),
            (master, "RUN_S", 0.05),
            (master, "SLOTS", (2,)),
            (master, "idle_busy", partial(master.idle_busy, seconds=0.1)),
        ],
        ("master",),
    ),
}


@pytest.mark.requirement("CIB-24", "CIB-41", "CIB-42", "CIB-50", "CIB-53", "CIB-55")
@pytest.mark.parametrize(
    "name",
    [
        name if toy.pages else pytest.param(name, marks=pytest.mark.slow)
        for name, toy in TOYS.items()
    ],
)
def test_a_benchmark_of_toy_size_gives_its_figures_and_writes_its_pages(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy = TOYS[name]
    for module, size, value in toy.sizes:
        monkeypatch.setattr(module, size, value)
    monkeypatch.setattr(plots, "DOCS", tmp_path)
    for page in toy.pages:
        shutil.copy(MEASURED / f"{page}.md", tmp_path)
        if toy.lacking:
            results = json.loads((MEASURED / f"{page}.json").read_text())
            assert results.keys() >= set(toy.lacking)
            results = {name: runs for name, runs in results.items() if name not in toy.lacking}
            (tmp_path / f"{page}.json").write_text(json.dumps(results))
    measured = toy.module.measure(**toy.arguments)
    found = measured if isinstance(measured, dict) else asdict(measured)
    assert {figure.key for figure in FIGURES if figure.benchmark == name} <= found.keys()
    assert all(isfinite(value) for value in found.values() if isinstance(value, float))
    for page in toy.pages:
        text, after = [(where / f"{page}.md").read_text() for where in (MEASURED, tmp_path)]
        assert after != text
        assert marks(after) == marks(text)


def marks(page: str) -> list[str]:
    """Return the lines of a page between which a benchmark writes."""
    return [line for line in page.splitlines() if line.startswith("<!-- ")]
