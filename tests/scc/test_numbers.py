"""Numbers of files, names and handles in an image, and the errors when they are used up."""

import gc
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from ciel.launch.limits import open_files_advice
from ciel.scc import instances
from ciel.scc.instances import Layout
from ciel.scc.shapes import ShmfsError
from ciel.scc.store import SccStore, open_cores
from ciel.storage.errors import NoSpaceError, ObjectNotFoundError
from ciel.testing.store_rules import pattern

INSTANCE = f"test-numbers-{os.getpid()}"
BLOCK_BYTES = 65536
CONTENT = pattern(100_000)


def open_core(core: int = 0) -> SccStore:
    """Open one of four cores of the instance of these tests."""
    return open_cores({"cores": "4", "capacity": "4MiB", "instance": INSTANCE, "core": str(core)})


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    assert not Path("/dev/shm", f"ciel-scc-{INSTANCE}").exists()


@pytest.fixture
def store() -> Iterator[SccStore]:
    with open_core() as store:
        yield store


def used(store: SccStore) -> int:
    return store.usage().used_bytes


def test_a_store_without_room_for_another_file_says_so(store: SccStore) -> None:
    for number in range(1024):
        store.put(f"o{number}", b"")
    with pytest.raises(NoSpaceError, match="the image has no free inode") as caught:
        store.put("more", b"")
    assert caught.value.available_bytes == 0 < caught.value.wanted_bytes
    store.delete("o1")
    store.put("more", b"")


def test_a_store_without_room_for_another_name_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instances, "_ENTRIES_MAX", 3)
    with open_core(0) as one, open_core(1) as other:
        for name in "ab":
            one.put(name, b"")
        other.discover("a")
        with pytest.raises(NoSpaceError, match="the image has no free directory entry"):
            other.discover("b")
        with pytest.raises(NoSpaceError, match="the image has no free directory entry"):
            one.put("c", b"")


def test_every_core_has_a_name_for_every_file() -> None:
    with ExitStack() as stack:
        cores = [stack.enter_context(open_core(core)) for core in range(4)]
        for number in range(1024):
            cores[0].put(f"o{number}", b"")
            assert all(core.discover(f"o{number}") is not None for core in cores[1:])
        assert cores[0].check() == []


@pytest.mark.parametrize(
    "layout, names_of_each, handles",
    [
        (Layout(), 8, 2**14),
        (Layout(cores=4), 4, 2**14),
        (Layout(cores=1024), 8, 2**11),
        (Layout(capacity_bytes=2**22, block_bytes=2**12), 8, 2**10),
        (Layout(capacity_bytes=2**36), 8, 2**16),
        (Layout(block_bytes=2**12), 2, 2**14),
    ],
)
def test_names_and_handles_are_as_many_as_the_memory_is_worth(
    layout: Layout, names_of_each: int, handles: int
) -> None:
    geometry = layout.geometry()
    assert geometry.entry_count >= names_of_each * geometry.inode_count
    assert geometry.handle_count >= handles
    too_many_bytes = max(layout.capacity_bytes // 8, 8 << 20)
    assert geometry.client_count * geometry.handle_count * 8 < too_many_bytes
    if names_of_each > 2:
        assert geometry.entry_count * 384 < too_many_bytes


def test_any_number_of_readers_of_an_object_is_one_handle(store: SccStore) -> None:
    for name in "ab":
        store.put(name, CONTENT)
    with ExitStack() as stack:
        readers = [stack.enter_context(store.open(name)) for name in "ab" * 1000]
        assert readers[0].read(0, 9) == readers[-2].read(0, 9) == CONTENT[:9]
        view = readers[-1].view()
        store.delete("a")
        readers[0].close()
        assert readers[2].view() == CONTENT
    with pytest.raises(ObjectNotFoundError):
        store.open("a")
    assert used(store) == 2 * BLOCK_BYTES
    store.delete("b")
    assert view == CONTENT
    del view
    assert used(store) == 0
    assert store.check() == []


def test_readers_that_are_collected_at_any_moment_take_no_handle_from_others(
    store: SccStore,
) -> None:
    names = "abc"
    for name in names:
        store.put(name, CONTENT)

    def read() -> None:
        for number in range(600):
            reader = store.open(names[number % 3])
            assert reader.read(0, 9) == CONTENT[:9]
            around: list[object] = [reader]
            around.append(around)  # none but the collector ends this

    before = gc.get_threshold()
    gc.set_threshold(3, 1, 1)
    try:
        with ThreadPoolExecutor(4) as pool:
            for reading in [pool.submit(read) for _ in range(4)]:
                reading.result(timeout=30)
    finally:
        gc.set_threshold(*before)
    gc.collect()
    for name in names:
        store.delete(name)
    assert used(store) == 0
    assert store.check() == []


def test_who_has_too_many_objects_open_is_not_sent_to_the_limits_of_the_system(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(instances, "_HANDLES_MAX", 2)
    with open_core() as store:
        for name in "abc":
            store.put(name, CONTENT)
        with store.open("a"), store.open("b"):
            with pytest.raises(ShmfsError, match="the image has no free handle") as caught:
                store.open("c")
            assert open_files_advice(caught.value) == ""
        assert store.get("c") == CONTENT
