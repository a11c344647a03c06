"""Measures the optimisations of the dissertation, alone and in all combinations (CIB-50).

Appendix D, point 7: five workloads run on clusters of two workers with each combination of a store,
a channel for control messages, the locks of the store's image, a limit of disk jobs, and a policy
that places tasks. Only the store `scc` has an image with locks, and only the store `disk` reads and
writes a disk, so the benchmark combines locks and limits with these stores alone.

A run is one `ciel run` of a package of examples/, and its result is the time until the command
ends. With MINUTES=10, the benchmark starts no run after ten minutes, and the same command continues
later. It rewrites docs/measured/combinations.md from all results.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import geometric_mean, mean
from typing import Any

from benchmarks.plots import bar_chart, table, write_down, write_figures
from benchmarks.results import Results
from ciel.testing.homes import HandCluster, Home

EXAMPLES = Path(__file__).parents[2] / "examples"
SDK = Path(__file__).parents[2] / "executors" / "sdk" / "c"
POWERCAP = Path("/sys/class/powercap")
RUNS = 3
SPINS, SPIN_MS = 200, 5
WORKERS = 2
RUN_TIMEOUT_S = 120.0
TOLERANCE = 0.05  # smaller differences than this are called none
MOST = 0.75  # in fewer pairs of variants, the difference is called chance
STORES = {
    "disk": "disk",
    "shm": "shm:capacity=512MiB",
    "scc": "scc:capacity=512MiB,cores=2,instance=combinations-{pid}",
}
WORKLOADS: dict[str, dict[str, str]] = {
    "grep": {"WORD": "yield"},
    "kmeans": {"K": "3", "PARTS": "8"},
    "binomial": {"STEPS": "2000", "CHUNK": "100"},
    "smithwaterman": {"TILE": "30"},
    "timespin": {"TASKS": str(SPINS), "MS": str(SPIN_MS)},
}
"""The examples, and the variables of their scripts."""
PROGRAMS = {
    "binomial": ("binomial.c", str(SDK / "ciel.c"), "-ljansson", "-lm"),
    "timespin": ("timespin.c",),
}
"""The sources and libraries of the programs that an example needs."""


@dataclass(frozen=True)
class Variant:
    """A combination of optimisations; by default, none of them."""

    store: str = "disk"
    channel: str = "socket"
    locks: str = "-"
    io: str = "off"
    placement: str = "random"
    workers: int = WORKERS

    def __str__(self) -> str:
        """Return what a reader needs to know of it."""
        locks = "" if self.locks == "-" else f" {self.locks}"
        io = "" if self.io == "-" else f", io {self.io}"
        alone = "" if self.workers == WORKERS else f", {self.workers} worker"
        return f"{self.store}{locks}, {self.channel}{io}, {self.placement}{alone}"


NETWORK = Variant()
"""The variant without optimisations, whose parts communicate by network and disk."""
FULL = Variant("scc", "mpb", "fine", "-", "locality")
"""All optimisations."""
FULL_ON_DISK = Variant("disk", "mpb", "-", "adaptive", "locality")
SCC = replace(NETWORK, store="scc", locks="coarse", io="-")
ALONE = {
    "store shm": replace(NETWORK, store="shm", io="-"),
    "store scc, coarse locks": SCC,
    "store scc, fine locks": replace(SCC, locks="fine"),
    "rings": replace(NETWORK, channel="ring"),
    "message-passing buffers": replace(NETWORK, channel="mpb"),
    "one disk job at a time": replace(NETWORK, io="1"),
    "adaptive number of disk jobs": replace(NETWORK, io="adaptive"),
    "placement by locality": replace(NETWORK, placement="locality"),
}
TOGETHER = {
    "all": FULL,
    "all, without the store in memory": FULL_ON_DISK,
    "all, without the message-passing buffers": replace(FULL, channel="socket"),
    "all, without the fine locks": replace(FULL, locks="coarse"),
    "all, without placement by locality": replace(FULL, placement="random"),
    "all on disk, without the limit of disk jobs": replace(FULL_ON_DISK, io="off"),
}
EFFECTS: dict[str, tuple[Mapping[str, str], Mapping[str, Any]]] = {
    "store shm": ({"store": "disk", "io": "off"}, {"store": "shm", "io": "-"}),
    "store scc": (
        {"store": "disk", "io": "off", "locks": "-"},
        {"store": "scc", "io": "-", "locks": "coarse"},
    ),
    "fine locks": ({"locks": "coarse"}, {"locks": "fine"}),
    "rings": ({"channel": "socket"}, {"channel": "ring"}),
    "message-passing buffers": ({"channel": "socket"}, {"channel": "mpb"}),
    "one disk job at a time": ({"io": "off"}, {"io": "1"}),
    "adaptive number of disk jobs": ({"io": "off"}, {"io": "adaptive"}),
    "placement by locality": ({"placement": "random"}, {"placement": "locality"}),
}
"""Each optimisation: the fields of a variant without it, and with it."""


def clusters() -> list[Variant]:
    """Return a variant for each cluster to start; jobs choose the placement, not clusters."""
    channels = ("socket", "ring", "mpb")
    found = [Variant("disk", channel, "-", io)
             for channel, io in product(channels, ("off", "1", "adaptive"))]  # fmt: skip
    found += [Variant("shm", channel, "-", "-") for channel in channels]
    found += [Variant("scc", channel, locks, "-")
              for channel, locks in product(channels, ("coarse", "fine"))]  # fmt: skip
    return found


def variants() -> list[Variant]:
    """Return all combinations."""
    return [replace(each, placement=p) for each in clusters() for p in ("random", "locality")]


def energy_j(powercap: Path = POWERCAP) -> float | None:
    """Return the counters of all processor packages in joules; None if none is readable."""
    try:
        counters = [int(path.read_text()) for path in powercap.glob("intel-rapl:?/energy_uj")]
    except OSError:
        return None
    return sum(counters) / 1e6 if counters else None


class Workloads:
    """Packages of the examples in a directory, each written before its first run."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._values: dict[str, str] = {}

    def _package(self, name: str, placement: str) -> str:
        """Return a package that is an example's with its variables, files and a placement."""
        package: dict[str, Any] = json.loads((EXAMPLES / name / f"{name}.pack").read_text())
        for entry in package["package"].values():
            entry["filename"] = str(EXAMPLES / name / entry["filename"])
        if name in PROGRAMS:
            package["package"][name]["filename"] = self._compile(name)
        package["start"]["args"]["start_env"] = WORKLOADS[name]
        package["options"] = {"scheduler": placement}
        return json.dumps(package)

    def _compile(self, name: str) -> str:
        program = str(self._directory / name)
        subprocess.run(
            ["cc", "-O2", "-D_GNU_SOURCE", f"-I{SDK}", "-o", program, *PROGRAMS[name]],
            cwd=EXAMPLES / name,
            check=True,
        )
        return program

    def run(self, home: Home, name: str, placement: str) -> float:
        """Run a workload on the cluster of a home; return the time that it takes.

        Raises RuntimeError if the workload fails, or if its value differs from the first value.
        """
        package = self._directory / f"{name}-{placement}.pack"
        if not package.exists():
            package.write_text(self._package(name, placement))
        started_s = time.monotonic()
        done = home.run("ciel", "run", "--quiet", str(package), timeout_s=RUN_TIMEOUT_S)
        elapsed_s = time.monotonic() - started_s
        if done.returncode:
            raise RuntimeError(f"{name} failed: {done.stderr}")
        expected = self._values.setdefault(name, done.stdout)
        if done.stdout != expected:
            raise RuntimeError(f"{name}: the value is {done.stdout}, and was {expected} before")
        return elapsed_s


@contextmanager
def cluster(variant: Variant) -> Iterator[Home]:
    """Start a cluster, and run two small tasks on it; yield the home of its commands."""
    with tempfile.TemporaryDirectory(prefix="ciel-bench-") as directory:
        home = Home(Path(directory))
        store = STORES[variant.store].format(pid=os.getpid())
        if variant.locks == "coarse":
            store += ",shards=1"
        options = ["--store", store, *([] if variant.io == "-" else ["--io", variant.io])]
        running = HandCluster.start(
            home, variant.workers, *options, of_all=("--channel", variant.channel)
        )
        try:
            home.run("ciel", "submit", "--", "true")
            yield home
        finally:
            running.stop()
        home.expect_nothing_left()


def key(variant: Variant, workload: str) -> str:
    """Return the name of a configuration in the results."""
    return f"{variant}: {workload}"


def run_all(results: Results) -> None:
    """Run all combinations, some of them also with one worker, as often as they lack results."""
    plans = {each: [replace(each, placement="random"), replace(each, placement="locality")]
             for each in clusters()}  # fmt: skip
    for each in (NETWORK, FULL):
        alone = replace(each, workers=1)
        plans[alone] = [alone]
    with tempfile.TemporaryDirectory(prefix="ciel-bench-") as directory:
        workloads = Workloads(Path(directory))
        for run, (started, planned) in product(range(RUNS), plans.items()):
            wanted = {key(v, name): (v, name) for v, name in product(planned, WORKLOADS)}
            if not results.lacks(wanted, run + 1):
                continue
            with cluster(started) as home:
                for configuration in results.missing(wanted, run + 1):
                    variant, name = wanted[configuration]
                    before_j = energy_j()
                    elapsed_s = workloads.run(home, name, variant.placement)
                    after_j = energy_j()
                    results.add(configuration, round(elapsed_s, 4))
                    if before_j is not None and after_j is not None and after_j > before_j:
                        results.add(f"{configuration} in joules", round(after_j - before_j, 3))
                    print(f"{configuration}: {elapsed_s:.2f} s", file=sys.stderr)


Times = dict[tuple[Variant, str], float]
"""Seconds of each workload with each variant."""


def medians(results: Results, suffix: str = "") -> Times:
    """Return the median results of the variants of which every workload was measured."""
    every = [*variants(), *(replace(each, workers=1) for each in (NETWORK, FULL))]
    found: Times = {}
    for variant in every:
        row = {name: results.median(key(variant, name) + suffix) for name in WORKLOADS}
        found |= {
            (variant, name): value
            for name, value in row.items()
            if value is not None and None not in row.values()
        }
    return found


def effects(times: Times, name: str, workload: str) -> list[float]:
    """Return the times with an optimisation, each divided by the time without it.

    There is one for each pair of variants that differ in this optimisation alone.
    """
    without, given = EFFECTS[name]
    return [
        times[replace(variant, **given), workload] / times[variant, workload]
        for variant in variants()
        if all(getattr(variant, field) == value for field, value in without.items())
    ]


def verdict(ratios: Sequence[float]) -> str:
    """Say whether an optimisation pays: on average, and in most pairs of variants."""
    average = geometric_mean(ratios)
    if average < 1 - TOLERANCE and mean(ratio < 1 for ratio in ratios) >= MOST:
        return "pays"
    if average > 1 + TOLERANCE and mean(ratio > 1 for ratio in ratios) >= MOST:
        return "costs"
    return ""


def total_s(times: Times, variant: Variant) -> float:
    """Return the time of all workloads."""
    return sum(times[variant, name] for name in WORKLOADS)


def _all(times: Times) -> tuple[str, str]:
    """Return the table and the chart of all combinations, the fastest first."""
    order = sorted({v for v, _ in times if v.workers == WORKERS}, key=lambda v: total_s(times, v))
    rows = [
        [str(v), *(f"{times[v, name]:.2f}" for name in WORKLOADS), f"{total_s(times, v):.2f}"]
        for v in order
    ]
    bars = {str(v): {name: times[v, name] for name in WORKLOADS} for v in order}
    chart = bar_chart("Five workloads with each combination", "seconds", bars)
    return table(["combination", *WORKLOADS, "all, in seconds"], rows), chart


def _against_network(times: Times) -> str:
    """Return a table of chosen combinations, relative to the variant without optimisations."""
    rows = [["none, in seconds", *(f"{times[NETWORK, n]:.2f}" for n in WORKLOADS),
             f"{total_s(times, NETWORK):.2f}"]]  # fmt: skip
    for name, variant in {**ALONE, **TOGETHER}.items():
        ratios = [times[variant, w] / times[NETWORK, w] for w in WORKLOADS]
        ratios.append(total_s(times, variant) / total_s(times, NETWORK))
        rows.append([name, *(f"{ratio:.2f}" for ratio in ratios)])
    return table(["optimisations", *WORKLOADS, "all"], rows)


def _effects(times: Times) -> str:
    rows = []
    for name in EFFECTS:
        found = [effects(times, name, workload) for workload in WORKLOADS]
        cells = [f"{geometric_mean(each):.2f} {verdict(each)}".strip() for each in found]
        rows.append([name, *cells])
    return table(["optimisation", *WORKLOADS], rows)


def speed_up(times: Times, variant: Variant, workload: str) -> float:
    """Return how many times faster two workers are than one."""
    return times[replace(variant, workers=1), workload] / times[variant, workload]


def overhead(times: Times, variant: Variant) -> float:
    """Return what timespin takes beyond its spinning, relative to its spinning."""
    spinning_s = SPINS * SPIN_MS / 1e3 / variant.workers
    return times[variant, "timespin"] / spinning_s - 1


def _speed_ups(times: Times) -> str:
    rows = [
        [name, *(f"{speed_up(times, variant, w):.2f}" for w in WORKLOADS),
         f"{overhead(times, variant):.0%}"]
        for name, variant in {"no optimisation": NETWORK, "all": FULL}.items()
    ]  # fmt: skip
    return table(["speed-up", *WORKLOADS, "relative overhead of timespin"], rows)


def _energy(joules: Times) -> str:
    """Return a table of the runs for each kilojoule, or a sentence if no energy was measured."""
    if not joules:
        return (
            "Work per joule is left out: the machine that measured has no readable RAPL counters "
            "(`/sys/class/powercap`)."
        )
    rows = [[str(v), *(f"{1e3 / joules[v, name]:.1f}" for name in WORKLOADS)]
            for v in dict.fromkeys(v for v, _ in joules)]  # fmt: skip
    return table(["runs per kilojoule", *WORKLOADS], rows)


def in_prose(times: Times) -> dict[str, str]:
    """Return the figures in the text of the page."""
    two = {v for v, _ in times if v.workers == WORKERS}
    fastest = min(two, key=lambda variant: total_s(times, variant))
    named: dict[str, list[str]] = {"pays": [], "": [], "costs": []}
    for name in EFFECTS:
        ratios = [ratio for w in WORKLOADS for ratio in effects(times, name, w)]
        named[verdict(ratios)].append(f"{name} ({geometric_mean(ratios):.2f})")
    return {
        "paying": ", ".join(named["pays"]) or "none",
        "indifferent": ", ".join(named[""]) or "none",
        "costing": ", ".join(named["costs"]) or "none",
        "network_s": f"{total_s(times, NETWORK):.1f}",
        "full_to_network": f"{total_s(times, FULL) / total_s(times, NETWORK):.2f}",
        "fastest": str(fastest),
        "fastest_to_network": f"{total_s(times, fastest) / total_s(times, NETWORK):.2f}",
        "network_overhead": f"{overhead(times, NETWORK):.0%}",
        "full_overhead": f"{overhead(times, FULL):.0%}",
    }


def measure() -> dict[str, float]:
    """Measure the missing runs, write the page, and return the ratios of total times."""
    results = Results("combinations")
    run_all(results)
    times = medians(results)
    needed = {*variants(), *(replace(each, workers=1) for each in (NETWORK, FULL))}
    if missing := len(needed - {variant for variant, _ in times}):
        print(f"combinations: {missing} of {len(needed)} have no results", file=sys.stderr)
        return {}
    every, chart = _all(times)
    write_down("combinations", "all", results.about() + every, {"combinations": chart})
    write_down("combinations", "relative", _against_network(times), {})
    write_down("combinations", "effects", _effects(times), {})
    write_down("combinations", "speed-up", _speed_ups(times), {})
    write_down("combinations", "energy", _energy(medians(results, " in joules")), {})
    write_figures("combinations", in_prose(times))
    network_s = total_s(times, NETWORK)
    return {
        "network_s": network_s,
        "full_to_network": total_s(times, FULL) / network_s,
        **{
            f"{name.replace(', ', '_').replace(' ', '_')}_alone": total_s(times, variant)
            / network_s
            for name, variant in ALONE.items()
        },
    }


if __name__ == "__main__":
    for name, value in measure().items():
        print(f"{name:40} {value:8.2f}")
