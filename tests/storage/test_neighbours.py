"""Cores of one image that need space: the objects that were used least recently go, whoever has
them (CIB-52).
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest

from ciel.scc.neighbours import Neighbours
from ciel.scc.store import open_scc
from ciel.storage.interface import NEVER_S, Answer
from ciel.storage.tiers import TieredStore
from ciel.testing.homes import wait_for

BLOCK_BYTES = 64 << 10
BLOCKS = 64
CORES = 3


class Cores:
    """The stores of several workers on one image; each spills to another directory."""

    def __init__(self, where: Path, count: int = CORES, *, spill: str = "yes") -> None:
        self.instance = f"neighbours-{os.getpid()}-{where.name[-20:]}"
        self.stack = ExitStack()
        self.thread = self.stack.enter_context(ThreadPoolExecutor(CORES))
        """Threads in which a writer may wait for space."""
        self.stores = [
            self.stack.enter_context(self.open(where, core, spill)) for core in range(count)
        ]
        self.cores: dict[str, int] = {}  # the core of each object
        self.order: dict[str, int] = {}  # of those in the image, least recently used first

    def open(self, where: Path, core: int, spill: str) -> TieredStore:
        directory = where / str(core)
        directory.mkdir()
        options = {
            "cores": str(CORES), "capacity": str(BLOCKS * BLOCK_BYTES), "block": str(BLOCK_BYTES),
            "instance": self.instance, "core": str(core), "spill": spill,
        }  # fmt: skip
        store = open_scc(options, directory)
        assert isinstance(store, TieredStore)
        return store

    def put(self, core: int, name: str, blocks: int) -> None:
        content = bytes([core + 1]) * (blocks * BLOCK_BYTES)
        self.thread.submit(self.stores[core].put, name, content).result()
        self.cores[name] = core
        if name in self.stores[core].mover._above:  # else the image was full when it began
            self.order[name] = core

    def read(self, name: str) -> None:
        core = self.cores[name]
        assert self.stores[core].get(name)[:1] == bytes([core + 1])
        if self.order.pop(name, None) is not None:
            self.order[name] = core

    def in_memory(self) -> list[bool]:
        """Say of each object, least recently used first, whether it is in the image."""
        return [name in self.stores[core].mover._above for name, core in self.order.items()]

    def settle(self) -> None:
        """Wait until no core wants space, moves an object, or is about to move one: it may have
        planned more moves than are needed now, because another core frees space, too.
        """
        movers = [store.mover for store in self.stores]

        def is_settled() -> bool:
            wants = any(mover._goal_bytes() > 0 or mover._moving for mover in movers)
            return not wants and all(m._is_resting or m._thread is None for m in movers)

        wait_for(is_settled, "space in the image")


@pytest.fixture
def cores(tmp_path: Path) -> Iterator[Cores]:
    cores = Cores(tmp_path)
    with cores.stack:
        yield cores
    assert not Path("/dev/shm", f"ciel-scc-{cores.instance}").exists()


@pytest.mark.requirement("CIB-52")
def test_idle_objects_of_another_core_go_first(cores: Cores) -> None:
    for number in range(9):
        cores.put(0, f"idle{number}", 4)
    for number in range(12):
        cores.put(1, f"new{number}", 4)
    cores.settle()
    resident = cores.in_memory()
    assert all(resident[9:])
    assert not all(resident)
    assert cores.stores[0].mover.evicted > 0
    assert cores.stores[1].mover.evicted == 0
    for number in range(9):
        cores.read(f"idle{number}")


@pytest.mark.requirement("CIB-52")
@pytest.mark.parametrize(
    "seeds",
    [range(30), pytest.param(range(30, 1000), marks=pytest.mark.slow)],
    ids=["some", "a thousand"],
)
def test_what_stays_was_used_after_all_that_went(seeds: range, tmp_path: Path) -> None:
    for seed in seeds:
        check_history(Random(seed), tmp_path / f"{seed}")


def check_history(random: Random, where: Path) -> None:
    """Let cores write and read; objects that go were used before all that stay.

    An object that was read from the disk comes back if there is room, so reads are of objects in
    memory.
    """
    where.mkdir()
    cores = Cores(where)
    with cores.stack:
        for number in range(25):
            cores.put(random.randrange(CORES), f"o{number}", random.randrange(1, 7))
            cores.settle()
            resident = cores.in_memory()
            first = resident.index(True)
            assert all(resident[first:]), (number, resident)
            for name in random.sample(list(cores.order)[first:], min(2, len(resident) - first)):
                cores.read(name)


@pytest.mark.requirement("CIB-52")
def test_objects_in_use_stay_and_a_core_without_any_gets_an_error_at_once(cores: Cores) -> None:
    for number in range(15):
        cores.put(0, f"read{number}", 4)
    with ExitStack() as stack:
        readers = [
            stack.enter_context(cores.stores[0].open(name)) for name in list(cores.order)
            if name in cores.stores[0].mover._above
        ]  # fmt: skip
        writer = cores.stores[1].begin_in("memory", "new", size_hint_bytes=8 * BLOCK_BYTES)
        writer.write(bytes(8 * BLOCK_BYTES))  # to its disk
        writer.commit()
        assert "new" not in cores.stores[1].mover._above
        assert all(reader.read(0, 1) == b"\1" for reader in readers)


def test_cores_that_ask_each_other_at_once_all_get_space(cores: Cores) -> None:
    def write(core: int) -> None:
        for number in range(40):
            cores.put(core, f"{core}-{number}", 3)

    threads = [threading.Thread(target=write, args=(core,)) for core in range(CORES)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert len(cores.cores) == 40 * CORES
    for name in cores.cores:
        cores.read(name)


def test_a_core_that_was_killed_is_not_asked_again(cores: Cores) -> None:
    stale = Path("/dev/shm", f"ciel-scc-{cores.instance}", "space-2.dead")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as bound:
        bound.bind(str(stale))
    for number in range(25):
        cores.put(0, f"o{number}", 4)
    cores.settle()
    assert not stale.exists()


def test_a_core_that_does_not_answer_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ciel.scc.neighbours.ASK_S", 0.05)
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    asking, silent, helpful = (Neighbours(fd, name) for name in ("0.a", "1.b", "2.c"))
    stop = threading.Event()
    asked = []

    def keep_silent(wanted_bytes: int, before_s: float) -> Answer:
        stop.wait(10)
        return Answer(0, NEVER_S)

    def help_(wanted_bytes: int, before_s: float) -> Answer:
        asked.append((wanted_bytes, before_s))
        return Answer(min(wanted_bytes, 70), NEVER_S if wanted_bytes else 3.0)

    silent.serve(keep_silent)
    helpful.serve(help_)
    assert asking.ask(100, 5.0) == Answer(70, NEVER_S)
    assert asked == [(0, 5.0), (100, 5.0)]
    stop.set()
    for each in (asking, silent, helpful):
        each.close()
    assert list(tmp_path.iterdir()) == []
    os.close(fd)
