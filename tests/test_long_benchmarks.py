"""Checks benchmarks that take minutes: the parts that decide, and the disk that they model."""

from __future__ import annotations

import mmap
import os
import re
from contextlib import ExitStack
from dataclasses import replace
from itertools import product
from math import prod
from pathlib import Path

import pytest

from benchmarks import plots
from benchmarks.disks import large_loads
from benchmarks.disks.rotating import NoModelledDiskError, rotating_disk
from benchmarks.engine import combinations
from benchmarks.engine.combinations import Variant
from benchmarks.results import Results
from benchmarks.storage import disk_jobs

EXTENTS_MAX = 2
"""Pieces into which the file system may divide a file of some MiB."""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the directory of the pages during the test."""
    monkeypatch.setattr(plots, "DOCS", tmp_path)
    return tmp_path


def test_an_interrupted_benchmark_continues_with_the_runs_that_it_lacks(place: Path) -> None:
    first = Results("speeds")
    for configuration in first.missing(["a", "b"], 2):
        if first.count("a") == 2:
            break
        first.add(configuration, 1.0)
    again = Results("speeds")
    assert again.lacks(["a", "b"], 2)
    assert [*again.missing(["a", "b"], 2)] == ["b"]
    again.add("b", 3.0)
    assert not again.lacks(["a", "b"], 2)
    assert [again.median(name) for name in ("a", "b", "c")] == [1.0, 2.0, None]
    assert re.search(r"load average before: [\d.]+, [\d.]+; .*: 2 to 2\.", again.about())


def test_a_benchmark_starts_no_run_when_its_time_is_over(place: Path) -> None:
    results = Results("speeds", minutes=0)
    assert not results.lacks(["a"], 1)
    assert [*results.missing(["a"], 1)] == []


@pytest.mark.requirement("CIB-41")
def test_a_modelled_disk_seeks_once_for_each_file_or_once_for_each_alternating_read() -> None:
    reads, size = 16, 64 << 10  # the kernel divides larger reads, and may mix the parts
    try:
        with rotating_disk(64 << 20, 100) as disk, ExitStack() as undo:
            paths = undo.enter_context(disk_jobs.files(2, reads * size, disk.files, bytes))
            fds = [os.open(path, os.O_RDONLY | os.O_DIRECT) for path in paths]
            for fd in fds:
                undo.callback(os.close, fd)
            buffer = undo.enter_context(mmap.mmap(-1, size))  # a page's alignment, for O_DIRECT
            seeks = []
            for turns in (
                [(fd, number) for fd in fds for number in range(reads)],
                [(fd, number) for number in range(reads) for fd in fds],
            ):
                before = disk.seek_count()
                for fd, number in turns:
                    assert os.preadv(fd, [buffer], number * size) == size
                seeks.append(disk.seek_count() - before)
    except NoModelledDiskError as error:
        pytest.skip(str(error))
    one_by_one, alternating = seeks
    assert one_by_one <= 2 * EXTENTS_MAX
    assert alternating == 2 * reads


def test_a_limit_wins_only_if_it_is_faster_in_most_configurations() -> None:
    crowded = {"off": [10.0, 10.0, 10.0, 10.0], "1": [99.0, 9.0, 9.0, 9.0], "2": [20.0] * 4}
    rates = {
        large_loads.Cell("real", 32, 1 << number, limit): rate * 1e6
        for limit, found in crowded.items()
        for number, rate in enumerate([10.0, *found])
    }
    found = large_loads.compared("real", rates)
    assert found["1_to_off"] > 1.5
    verdicts = [
        large_loads.verdict(found[f"{limit}_to_off"], found[f"{limit}_faster_in"])
        for limit in ("1", "2")
    ]
    assert verdicts == ["makes no difference", "wins"]
    assert large_loads.verdict(0.6, 0.0) == "loses"
    assert large_loads.compared("modelled", rates) == {}


@pytest.mark.requirement("CIB-50")
def test_every_optimisation_is_combined_with_all_others_that_it_can_change() -> None:
    every = set(combinations.variants())
    assert {*combinations.ALONE.values(), *combinations.TOGETHER.values()} <= every
    assert combinations.NETWORK in every
    for field, stores in (
        ("channel", {"disk", "shm", "scc"}),
        ("placement", {"disk", "shm", "scc"}),
        ("locks", {"scc"}),
        ("io", {"disk"}),
    ):
        values = {getattr(v, field) for v in every if v.store in stores}
        assert len(values) >= 2
        for variant, value in product(every, values):
            assert (replace(variant, **{field: value}) in every) == (variant.store in stores)


@pytest.mark.requirement("CIB-50")
def test_the_effect_of_an_optimisation_is_taken_from_all_pairs_that_differ_in_it() -> None:
    seconds = {"store": {"scc": 1.0, "shm": 2.0}, "channel": {"mpb": 0.5}, "locks": {"fine": 0.25}}

    def time_s(variant: Variant) -> float:
        """Return a time in which each optimisation has its own factor."""
        return prod(
            factors.get(getattr(variant, field), 8.0 if field == "store" else 1.0)
            for field, factors in seconds.items()
        )

    times = {(v, "grep"): time_s(v) for v in combinations.variants()}
    effects = {name: combinations.effects(times, name, "grep") for name in combinations.EFFECTS}
    assert all(max(found) == pytest.approx(min(found)) for found in effects.values())
    assert {name: found[0] for name, found in effects.items()} == pytest.approx(
        dict.fromkeys(effects, 1.0)
        | {
            "store shm": 2 / 8,
            "store scc": 1 / 8,
            "message-passing buffers": 0.5,
            "fine locks": 0.25,
        }
    )


@pytest.mark.requirement("CIB-50")
def test_energy_is_the_sum_of_all_packages_or_unknown(tmp_path: Path) -> None:
    assert combinations.energy_j(tmp_path) is None
    for name, microjoules in {"intel-rapl:0": 2_000_000, "intel-rapl:1": 500_000}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "energy_uj").write_text(f"{microjoules}\n")
    part = tmp_path / "intel-rapl:0:0"  # of the first package, which counts it already
    part.mkdir()
    (part / "energy_uj").write_text("7\n")
    assert combinations.energy_j(tmp_path) == 2.5


@pytest.mark.parametrize(
    "ratios, expected",
    [([0.9] * 4, "pays"), ([1.1] * 4, "costs"), ([0.96] * 4, ""), ([0.1, 1.1, 1.1, 1.1], "")],
)
def test_an_optimisation_pays_only_if_it_does_so_in_most_pairs(
    ratios: list[float], expected: str
) -> None:
    assert combinations.verdict(ratios) == expected


@pytest.mark.requirement("CIB-50")
@pytest.mark.parametrize(
    "variant, of_all, of_workers",
    [
        (Variant("disk", "ring", "-", "1"), "--channel ring", "--store disk --io 1 "),
        (Variant("scc", "mpb", "coarse", "-"), "--channel mpb", ",shards=1 "),
    ],
)
def test_a_cluster_of_a_benchmark_has_the_options_of_its_variant(
    variant: Variant, of_all: str, of_workers: str
) -> None:
    with combinations.cluster(variant) as home:
        commands = [f"{command} " for command in home.processes().values()]
        daemons = [c for c in commands if "bin/ciel-master" in c or "bin/ciel-worker" in c]
        workers = [c for c in daemons if "bin/ciel-worker" in c]
    assert (len(daemons), len(workers)) == (3, 2)
    assert all(of_all in command for command in daemons)
    assert all(of_workers in command for command in workers)
