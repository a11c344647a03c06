"""Checks benchmarks that take minutes: the parts that decide, and the disk that they model."""

from __future__ import annotations

import mmap
import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks import plots
from benchmarks.disks import large_loads
from benchmarks.disks.rotating import NoModelledDiskError, rotating_disk
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
