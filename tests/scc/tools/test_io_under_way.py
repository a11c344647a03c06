"""The statistics of an image count all I/O under way: loads, stores, moves and spills (CIB-21)."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ciel.scc.store import SccStore, open_cores
from ciel.storage.files import FileStore
from ciel.storage.interface import DISK, ObjectWriter
from ciel.storage.shelf import ShelfOptions
from ciel.storage.tiers import TieredStore
from ciel.testing.homes import wait_for
from ciel.testing.store_rules import exit_code, pattern, start_child

pytestmark = pytest.mark.requirement("CIB-21")
CONTENT = pattern(1 << 20)


class SlowStore(FileStore):
    """A disk whose writes wait until the test has looked at the statistics."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, ShelfOptions())
        self.is_writing, self.may_write = threading.Event(), threading.Event()

    def begin_moved(self, object_id: str, size_bytes: int) -> ObjectWriter:
        self.is_writing.set()
        assert self.may_write.wait(20)
        return super().begin_moved(object_id, size_bytes)


def io_count(upper: SccStore) -> int:
    return upper._image.statistics()["io_count"]


@contextmanager
def store(tmp_path: Path) -> Iterator[tuple[SccStore, SlowStore, TieredStore]]:
    upper, lower = open_cores({"capacity": "4MiB", "cores": "2"}), SlowStore(tmp_path / "disk")
    with TieredStore(upper, lower) as tiered:
        yield upper, lower, tiered


def test_a_move_is_counted_until_it_ends(tmp_path: Path) -> None:
    with store(tmp_path) as (upper, lower, tiered):
        for number in range(4):
            tiered.put(f"o{number}", CONTENT)  # the level is full now, so the first one moves
        assert lower.is_writing.wait(20)
        assert io_count(upper) == 1
        lower.may_write.set()
        wait_for(lambda: io_count(upper) == 0 and tiered.mover.evicted, "the end of the move")


def test_an_object_that_is_written_to_the_disk_is_counted(tmp_path: Path) -> None:
    with store(tmp_path) as (upper, _, tiered):
        with tiered.begin_in(DISK, "a") as writer:
            writer.write(CONTENT)
            assert io_count(upper) == 1
            writer.commit()
        assert io_count(upper) == 0
        with tiered.begin_in(DISK, "b"):
            assert io_count(upper) == 1
        assert io_count(upper) == 0


def test_loads_and_stores_of_the_binding_are_counted(tmp_path: Path) -> None:
    with open_cores({"capacity": "4MiB", "cores": "2"}) as upper:
        read, write = os.pipe()
        loading = threading.Thread(target=upper._image.load, args=(read, "loaded"))
        loading.start()
        wait_for(lambda: io_count(upper) == 1, "the load to begin")
        os.write(write, b"content")
        os.close(write)
        loading.join()
        os.close(read)
        assert io_count(upper) == 0
        with open(tmp_path / "out", "wb") as out:
            assert upper._image.store("loaded", out.fileno()) == 7
        assert io_count(upper) == 0


def test_io_of_a_dead_process_is_not_under_way() -> None:
    options = {"capacity": "4MiB", "cores": "2", "instance": f"io-{os.getpid()}"}

    def die() -> None:
        upper = open_cores(options)
        with upper.counted_io():
            os.kill(os.getpid(), signal.SIGKILL)

    with open_cores(options) as upper:
        pid = start_child(die)
        assert exit_code(pid) == -signal.SIGKILL
        assert io_count(upper) == 1
        upper.levels()
        assert io_count(upper) == 0
