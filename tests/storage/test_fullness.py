"""Tests the counter of how often a device in memory was full: who increments it, who sees it, and
when it is deleted.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ciel.storage.errors import StoreSpecError
from ciel.storage.fullness import Fullness
from ciel_tests.clusters.mounts import run_on_mount


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Fullness, Fullness]]:
    one, other = Fullness(str(tmp_path)), Fullness(str(tmp_path))
    yield one, other
    one.close()
    other.close()


def test_all_processes_see_an_increment(pair: tuple[Fullness, Fullness]) -> None:
    one, other = pair
    since = other.count
    assert not other.was_full(since)
    one.note()
    assert other.was_full(since)
    assert not other.was_full(other.count)


def test_the_counter_is_deleted_by_its_last_user(tmp_path: Path) -> None:
    one, other = Fullness(str(tmp_path)), Fullness(str(tmp_path))
    one.close()
    other.note()
    assert other.count == 1
    other.close()
    other.close()
    assert not list(tmp_path.iterdir())


def test_a_counter_locked_for_too_long_counts_as_full(
    pair: tuple[Fullness, Fullness], tmp_path: Path
) -> None:
    _, other = pair
    (count,) = tmp_path.glob("ciel-full.*/count")
    held = os.open(count, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)  # as a process that was stopped while it freed memory
        assert other.was_full(other.count)
    finally:
        os.close(held)
    assert not other.was_full(other.count)


@pytest.mark.parametrize("plant", ["link", "file"])
def test_a_file_or_link_in_its_place_is_avoided(tmp_path: Path, plant: str) -> None:
    name, elsewhere = f"ciel-full.{os.geteuid()}", tmp_path / "elsewhere"
    elsewhere.mkdir()

    def put(place: Path) -> None:
        place.symlink_to(elsewhere) if plant == "link" else place.touch()

    put(tmp_path / name)
    one, other = Fullness(str(tmp_path)), Fullness(str(tmp_path))
    one.note()
    assert other.count == 1
    (tmp_path / name).unlink()  # a new process joins the existing counter
    third = Fullness(str(tmp_path))
    assert third.count == 1
    for each in (one, other, third):
        each.close()
    for number in range(1, 8):
        put(tmp_path / f"{name}.{number}")
    put(tmp_path / name)
    with pytest.raises(StoreSpecError):
        Fullness(str(tmp_path))
    assert not list(elsewhere.iterdir())


def test_without_a_device_in_memory_the_counter_does_nothing(tmp_path: Path) -> None:
    nothing = Fullness(None)
    nothing.note()
    assert not nothing.was_full(0)
    nothing.close()


@pytest.mark.parametrize("kind", ["shm", "scc"])
def test_a_refused_writer_sees_memory_that_other_processes_freed(kind: str) -> None:
    mount = ["-t", "tmpfs", "-o", "size=16m", "none"]
    os.environ["FULL_STORE"] = kind
    try:
        scenario = Path(__file__).parent / "full_memory.py"
        assert run_on_mount(mount, scenario, Path("/dev/shm")) == 0
    finally:
        del os.environ["FULL_STORE"]
