"""Stores that spill to memory of other machines: real page servers, whose owner is in the test."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciel.memory.page_server import EXTENT_BYTES
from ciel.shm.requests import Place, Slow
from ciel.shm.work import Done, Work
from ciel.storage.errors import (
    CorruptObjectError,
    NoSpaceError,
    ObjectConflictError,
    ObjectNotFoundError,
)
from ciel.storage.files import FileStore
from ciel.storage.interface import DISK, Capabilities, ObjectWriter
from ciel.storage.remote.memory import FreePages, RemoteMemory
from ciel.storage.remote.spill import RemoteSpill
from ciel.storage.shelf import ShelfOptions
from ciel.storage.tiers import TieredStore
from ciel.testing.directory_store_suite import DirectoryStoreSuite
from ciel_tests.clusters.memory import Nodes, SpaceOfNodes

VOLUME_EXTENTS = 4
OBJECT_BYTES = 300_000
CAPACITY_BYTES = 4 * OBJECT_BYTES + 100_000


class NodesLender:
    """Lends memory of page servers in this process."""

    def __init__(self, nodes: Nodes, timeout_s: float = 5.0) -> None:
        self.nodes = nodes
        self.tidy: Callable[[], None] = lambda: None
        self._timeout_s = timeout_s
        self._count = 0

    def create(self, size_bytes: int) -> SpaceOfNodes | None:
        self._count += 1
        name, extents = f"spill{self._count}", size_bytes // EXTENT_BYTES
        if sum(server.free for server in self.nodes.volumes.servers.values()) < extents:
            return None
        return self.nodes.create(name, extents, 1, self._timeout_s)

    def call_now_and_then(self, tidy: Callable[[], None]) -> None:
        self.tidy = tidy


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    nodes = Nodes()
    yield nodes
    nodes.close()


class Lab:
    """A store in front of memory servers; every object is `OBJECT_BYTES` long."""

    def __init__(self, where: Path, nodes: Nodes) -> None:
        self.memory = RemoteMemory(VOLUME_EXTENTS * EXTENT_BYTES)
        self.lender = NodesLender(nodes, timeout_s=0.5)
        self.disk = FileStore(where / "lower", ShelfOptions())
        self.spill = RemoteSpill(self.disk, self.memory)
        options = ShelfOptions(capacity_bytes=CAPACITY_BYTES, links_overrun=True)
        upper = FileStore(where / "upper", options, may_block=False)
        self.store = TieredStore(upper, self.spill)
        assert self.store.use_memory(self.lender)

    def put(self, end: int, start: int = 0) -> list[str]:
        """Write objects; those that do not fit are moved meanwhile."""
        numbers = range(start, end)
        elsewhere(lambda: [self.store.put(f"o{number}", content(number)) for number in numbers])
        return [f"o{number}" for number in numbers]

    def bring_back(self, name: str) -> None:
        elsewhere(lambda: self.store.bring_back(name))

    def remote(self, names: list[str]) -> list[str]:
        return [name for name in names if self.store.is_remote(name)]


@pytest.fixture
def lab(tmp_path: Path, nodes: Nodes) -> Iterator[Lab]:
    nodes.join("a", extents=16)
    lab = Lab(tmp_path, nodes)
    yield lab
    lab.store.close()


def content(number: int) -> bytes:
    return random.Random(number).randbytes(OBJECT_BYTES)


def elsewhere(act: Callable[[], object]) -> None:
    """Call a function in another thread, which may wait for space."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(act).result(timeout=30)


def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.005)


# --- free pages -----------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 40)), st.randoms(use_true_random=False))
def test_no_page_is_given_twice_and_all_come_back(sizes: list[int], chance: random.Random) -> None:
    free = FreePages(100)
    taken: list[list[tuple[int, int]]] = []
    for size in sizes:
        if size <= free.free:
            taken.append(free.take(size))
        elif taken:
            for start, pages in taken.pop(chance.randrange(len(taken))):
                free.give_back(start, pages)
        given = [page for parts in taken for start, n in parts for page in range(start, start + n)]
        assert len(set(given)) == len(given) == 100 - free.free
        assert all(0 <= page < 100 for page in given)
    for parts in taken:
        for start, count in parts:
            free.give_back(start, count)
    assert free.is_empty
    assert free.take(100) == [(0, 100)]


# --- moves ----------------------------------------------------------------------------------------


def test_objects_that_do_not_fit_are_moved_to_other_machines_and_come_back(lab: Lab) -> None:
    names = lab.put(12)
    remote = lab.remote(names)
    assert len(remote) >= 8
    assert list(lab.disk) == []
    assert sorted(lab.store) == sorted(names)
    for number, name in enumerate(names):
        lab.bring_back(name)
        assert not lab.store.is_remote(name)
        with lab.store.open(name) as reader:
            assert Path(str(reader.path)).read_bytes() == content(number)


def test_levels_say_how_much_is_where(lab: Lab) -> None:
    names = lab.put(12)
    until(lambda: lab.store.levels()[1].objects == len(lab.remote(names)))  # none is moving
    memory, remote, disk = lab.store.levels()
    assert remote.name == "remote"
    assert remote.used_bytes >= remote.objects * OBJECT_BYTES
    assert remote.capacity_bytes is not None
    assert remote.used_bytes <= remote.capacity_bytes
    assert memory.evicted >= remote.objects
    assert disk.objects == 0


def test_an_object_that_was_brought_back_stays_until_it_was_opened(lab: Lab) -> None:
    names = lab.put(12)
    wanted = lab.remote(names)[0]
    lab.bring_back(wanted)
    lab.put(30, 20)
    assert not lab.store.is_remote(wanted)
    lab.store.open(wanted).close()


def test_an_object_that_is_expected_does_not_make_room_for_others(lab: Lab) -> None:
    names = lab.put(12)
    wanted = next(name for name in names if not lab.store.is_remote(name))
    lab.store.expect(wanted)
    lab.put(30, 20)
    assert not lab.store.is_remote(wanted)
    lab.store.open(wanted).close()
    lab.put(50, 30)
    assert lab.store.is_remote(wanted)


def test_an_object_stays_until_each_of_those_who_are_expected_has_opened_it(lab: Lab) -> None:
    names = lab.put(12)
    wanted = lab.remote(names)[0]
    lab.bring_back(wanted)
    assert lab.store.expect(wanted)
    lab.store.open(wanted).close()
    lab.put(30, 20)
    assert not lab.store.is_remote(wanted)
    lab.store.open(wanted).close()
    lab.put(50, 30)
    assert lab.store.is_remote(wanted)
    assert not lab.store.expect(wanted)


def test_a_peer_of_this_host_gets_the_path_of_an_object_that_was_remote(lab: Lab) -> None:
    wanted = lab.remote(lab.put(12))[0]
    work = Work(lab.store, None, lambda path, size_bytes: nullcontext())
    assert work.look_up(wanted, for_peer=True) is Place.REMOTE
    found: list[Done] = []
    elsewhere(lambda: found.append(work.do_slowly(Slow.READ, wanted, None)))
    assert Path(found[0].seen.path).read_bytes() == content(int(wanted.removeprefix("o")))


def test_an_error_that_no_code_expects_does_not_end_the_thread_that_moves_objects(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writers would wait for space that nobody frees."""
    shown: list[object] = []
    begin = lab.spill.begin_moved

    def fail_once(object_id: str, size_bytes: int) -> ObjectWriter:
        monkeypatch.setattr(lab.spill, "begin_moved", begin)
        raise ZeroDivisionError

    monkeypatch.setattr(threading, "excepthook", shown.append)
    monkeypatch.setattr(lab.spill, "begin_moved", fail_once)
    names = lab.put(12)
    assert len(shown) == 1
    until(lambda: len(lab.remote(names)) > 0)


def test_objects_go_to_the_disk_when_no_memory_is_left(lab: Lab) -> None:
    names = lab.put(80)
    assert lab.remote(names)
    assert list(lab.disk)
    for number, name in enumerate(names):
        lab.bring_back(name)
        assert lab.store.get(name) == content(number)


def test_an_object_that_is_larger_than_the_upper_level_comes_back_to_the_disk(lab: Lab) -> None:
    large = random.Random(0).randbytes(2 * CAPACITY_BYTES)
    with lab.spill.begin_moved("large", len(large)) as writer:
        writer.write(large)
        writer.commit()
    assert lab.store.is_remote("large")
    lab.bring_back("large")
    assert list(lab.disk) == ["large"]
    assert lab.store.get("large") == large
    assert lab.memory.used_bytes == 0


def test_an_object_that_was_begun_on_the_disk_is_moved_when_nobody_uses_it(lab: Lab) -> None:
    with lab.store.begin_in(DISK, "x", size_hint_bytes=OBJECT_BYTES) as writer:
        writer.write(content(7))
        writer.commit()
        reader = lab.store.open("x")
    path = Path(str(reader.path))
    time.sleep(0.05)
    assert path.read_bytes() == content(7)
    assert not lab.spill.is_remote("x")
    reader.close()
    until(lambda: lab.spill.is_remote("x"))
    assert not path.exists()
    assert lab.spill.get("x") == content(7)


def test_deleted_objects_free_their_pages_and_empty_volumes_are_removed(lab: Lab) -> None:
    names = lab.put(12)
    assert lab.memory.used_bytes
    for name in names:
        assert lab.store.delete(name)
    until(lambda: lab.memory.used_bytes == 0)
    assert lab.lender.nodes.volumes.volumes
    lab.lender.tidy()
    assert not lab.lender.nodes.volumes.volumes
    assert lab.memory.capacity_bytes == 0


def test_an_object_stays_readable_for_those_who_have_it_open(lab: Lab) -> None:
    names = lab.put(12)
    name = lab.remote(names)[0]
    with lab.spill.open(name) as reader:
        assert lab.store.delete(name)
        used_bytes = lab.memory.used_bytes
        assert reader.read(0, OBJECT_BYTES) == content(names.index(name))
    assert lab.memory.used_bytes < used_bytes
    with pytest.raises(ObjectNotFoundError):
        lab.store.open(name)


# --- the rules of stores --------------------------------------------------------------------------


def test_the_first_commit_wins_also_against_remote_memory(lab: Lab) -> None:
    name = lab.remote(lab.put(12))[0]
    number = int(name.removeprefix("o"))
    lab.store.put(name, content(number))
    with pytest.raises(ObjectConflictError):
        lab.store.put(name, content(99))
    assert lab.store.get(name) == content(number)


def test_a_wrong_checksum_is_refused(lab: Lab) -> None:
    with lab.spill.begin_moved("x", 5) as writer:
        writer.write(b"hello")
        with pytest.raises(CorruptObjectError):
            writer.commit(checksum="0" * 16)
    assert lab.spill.stat("x") is None
    assert lab.memory.used_bytes == 0


@pytest.mark.parametrize("size_bytes", [0, 1, 4095, 4096, 4097, (1 << 20) + 1])
def test_every_size_survives(lab: Lab, size_bytes: int) -> None:
    written = random.Random(size_bytes).randbytes(size_bytes)
    with lab.spill.begin_moved("x", size_bytes) as writer:
        for start in range(0, size_bytes, 100_000):
            writer.write(written[start : start + 100_000])
        info = writer.commit()
    assert lab.spill.get("x") == written
    assert lab.spill.verify("x") == info
    assert lab.spill.checksum("x") == info.checksum


# --- lost servers ---------------------------------------------------------------------------------


def test_an_object_whose_server_has_died_is_corrupt_and_others_are_written_elsewhere(
    lab: Lab, nodes: Nodes
) -> None:
    names = lab.put(12)
    remote = lab.remote(names)
    nodes.kill("a")
    with pytest.raises(CorruptObjectError) as caught:
        lab.bring_back(remote[0])
    assert caught.value.code == "unreadable"
    assert lab.store.delete(remote[0])
    nodes.join("b", extents=16)
    lab.put(26, 20)
    for number in range(20, 26):
        lab.bring_back(f"o{number}")
        assert lab.store.get(f"o{number}") == content(number)


@pytest.mark.parametrize("dies", [False, True])
def test_threads_that_read_write_and_delete_never_see_wrong_bytes_and_lose_no_page(
    lab: Lab, nodes: Nodes, dies: bool
) -> None:
    end_s, allowed = time.monotonic() + 2.0, (ObjectNotFoundError, CorruptObjectError, NoSpaceError)

    def use(seed: int) -> int:
        chance, reads = random.Random(seed), 0
        while time.monotonic() < end_s:
            number = chance.randrange(24)
            name = f"o{number}"
            with suppress(*allowed):
                if chance.random() < 0.1:
                    lab.store.delete(name)
                elif lab.store.stat(name) is None:
                    lab.store.put(name, content(number))
                else:
                    lab.store.bring_back(name)
                    with lab.store.open(name) as reader:
                        assert reader.read(0, OBJECT_BYTES) == content(number)
                        reads += 1
        return reads

    with ThreadPoolExecutor(3) as pool:
        running = [pool.submit(use, seed) for seed in range(3)]
        if dies:
            time.sleep(0.7)
            nodes.kill("a")
            nodes.join("b", extents=16)
        assert sum(each.result(timeout=30) for each in running) > 10
    for name in [*lab.store]:
        lab.store.delete(name)
    until(lambda: lab.memory.used_bytes == 0)


class SlowSpace:
    """A space whose reads wait until the test lets them end."""

    def __init__(self) -> None:
        self.is_read, self.may_end = threading.Event(), threading.Event()
        self.was_closed_while_read = False

    def read_into(self, address: int, buffer: memoryview) -> None:
        self.is_read.set()
        self.may_end.wait(20)
        self.is_read.clear()

    def write(self, address: int, content: bytes | bytearray | memoryview) -> None: ...

    def close(self) -> None:
        self.was_closed_while_read = self.is_read.is_set()

    def remove(self) -> None: ...


class SlowLender:
    def __init__(self) -> None:
        self.space = SlowSpace()

    def create(self, size_bytes: int) -> SlowSpace:
        return self.space

    def call_now_and_then(self, tidy: Callable[[], None]) -> None: ...


def test_a_space_is_closed_when_no_thread_reads_it_any_more() -> None:
    """The space is in C: a read must not find its memory freed."""
    memory, lender = RemoteMemory(EXTENT_BYTES), SlowLender()
    memory.use(lender)
    ranges = memory.take(10)
    assert ranges is not None
    with ThreadPoolExecutor(2) as pool:
        reading = pool.submit(memory.read, ranges, 0, memoryview(bytearray(10)))
        assert lender.space.is_read.wait(20)
        closing = pool.submit(memory.close)
        with suppress(TimeoutError):
            closing.result(timeout=0.1)
        assert not closing.done()
        lender.space.may_end.set()
        closing.result(timeout=20)
        reading.result(timeout=20)
    assert not lender.space.was_closed_while_read
    with pytest.raises(OSError, match="the store is closed"):
        memory.read(ranges, 0, memoryview(bytearray(10)))


class TestStoreThatSpillsToOtherMachines(DirectoryStoreSuite):
    """All rules of stores hold for one whose lower level is in remote memory."""

    capabilities = Capabilities(
        mappable=True,
        nameable=True,
        streaming=True,
        shared_between_processes=False,
        bounded=True,
        may_block=False,
    )

    @pytest.fixture(autouse=True)
    def with_nodes(self, nodes: Nodes) -> None:
        nodes.join("a", extents=8)
        self._nodes = nodes

    def raw_path(self, where: Path, object_id: str) -> Path:
        return where / "upper" / "objects" / object_id.replace(":", "+")

    def raw_temporaries(self, where: Path) -> list[Path]:
        return [path for path in (where / "upper" / "incoming").rglob("*") if path.is_file()]

    def make_store(self, where: Path, *, capacity_bytes: int | None = None) -> TieredStore:
        options = ShelfOptions(capacity_bytes=capacity_bytes or 32 << 20, links_overrun=True)
        upper = FileStore(where / "upper", options, may_block=False)
        lower = RemoteSpill(
            FileStore(where / "lower", ShelfOptions(capacity_bytes=1)),
            RemoteMemory(EXTENT_BYTES),
        )
        store = TieredStore(upper, lower)
        store.use_memory(NodesLender(self._nodes))
        return store
