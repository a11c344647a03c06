"""Tests of the memory pool whose buffers lie in a file: POOL-1 and POOL-4."""

from __future__ import annotations

import os
import random
import resource
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

import itertools

import numpy as np
import pyarrow as pa
import pyarrow.compute  # pa.compute

from ciel.arrow import pool as store_pool
from ciel.arrow.pool import Arena, in_store, memory_pool, virtual_functions, why_not

if reason := why_not():
    pytest.skip(f"no buffers in the store here: {reason}", allow_module_level=True)

START = 4096


class Output:
    """A file that plays the output of a task, with an arena."""

    def __init__(self, path: Path) -> None:
        self.path = path
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
        self.pool = store_pool._pool()
        self.arena = Arena(store_pool._library(), descriptor, START, None)

    def buffer(self, size_bytes: int) -> Any:
        return pa.allocate_buffer(size_bytes, memory_pool=self.pool, resizable=True)

    def place(self, buffer: Any) -> int:
        """Return the offset of a buffer in the file; -1 if it is elsewhere."""
        found = self.arena.place(buffer.address, buffer.size)
        return -1 if found is None else found

    def content(self, buffer: Any) -> bytes:
        """Return what the file has where a buffer lies."""
        place = self.place(buffer)
        assert place >= 0
        return self.path.read_bytes()[place : place + buffer.size]


@pytest.fixture
def output(tmp_path: Path) -> Iterator[Output]:
    output = Output(tmp_path / "output")
    yield output
    output.arena.close(is_final=False)


def fill(buffer: Any, value: int) -> None:
    np.frombuffer(buffer, np.uint8)[:] = value


def mappings(path: Path) -> int:
    return Path("/proc/self/maps").read_text().count(str(path))


@pytest.mark.requirement("POOL-1", "POOL-3")
def test_a_table_lies_in_the_file(output: Output) -> None:
    numbers = np.arange(100_000)
    table = pa.table({"n": numbers, "t": [f"text {n % 50}" for n in numbers]})
    usual = pa.default_memory_pool()
    pa.set_memory_pool(output.pool)
    try:
        taken = table.take(pa.array(numbers[::-1].copy()))
    finally:
        pa.set_memory_pool(usual)
    buffers = [
        buffer
        for column in taken.columns
        for chunk in column.chunks
        for buffer in chunk.buffers()
        if buffer is not None and buffer.size
    ]
    assert len(buffers) >= 3
    for buffer in buffers:
        assert output.content(buffer) == buffer.to_pybytes()
        assert output.place(buffer) % 128 == 0


@pytest.mark.requirement("POOL-3")
@pytest.mark.slow
def test_buffers_of_any_size_keep_their_content_and_never_overlap(output: Output) -> None:
    chance = random.Random(1)
    sizes = [1, 100, 128, 129, 5000, 70_000, 1 << 20, (1 << 20) + 1, 3 << 20]
    kept: list[tuple[Any, int]] = []
    for step in range(800):
        action = chance.random()
        if action < 0.5 or not kept:
            buffer = output.buffer(chance.choice(sizes) + chance.randrange(100))
            kept.append((buffer, step % 251))
            fill(buffer, step % 251)
        elif action < 0.7:
            place = chance.randrange(len(kept))
            buffer, value = kept[place]
            old_bytes = buffer.size
            buffer.resize(chance.choice(sizes), shrink_to_fit=chance.random() < 0.5)
            common = np.frombuffer(buffer, np.uint8)[: min(old_bytes, buffer.size)]
            assert (common == value).all()
            fill(buffer, value)
        else:
            buffer, value = kept.pop(chance.randrange(len(kept)))
            assert (np.frombuffer(buffer, np.uint8) == value).all()
        del buffer
        while sum(each.size for each, _ in kept) > 12 << 20:
            kept.pop(0)
    places = sorted((output.place(buffer), buffer.size) for buffer, _ in kept)
    assert places[0][0] >= START
    for (start, size_bytes), (following, _) in itertools.pairwise(places):
        assert (start + size_bytes - 1) // 128 < following // 128  # no line is shared
    for buffer, value in kept:
        assert output.content(buffer) == bytes([value]) * buffer.size


@pytest.mark.parametrize("size_bytes", [1000, 100_000, 5 << 20])
def test_freed_space_is_used_again(output: Output, size_bytes: int) -> None:
    first, guard = output.buffer(size_bytes), output.buffer(1)
    place = output.place(first)
    del first
    again = output.buffer(size_bytes)
    assert output.place(again) == place
    assert guard.size == 1


def test_the_rest_of_a_large_block_is_used_too(output: Output) -> None:
    first, guard = output.buffer(8 << 20), output.buffer(1)
    place = output.place(first)
    del first
    halves = [output.buffer(4 << 20) for _ in range(2)]
    assert sorted(map(output.place, halves)) == [place, place + (4 << 20)]
    assert guard.size == 1


def test_a_growing_buffer_at_the_end_is_not_moved(output: Output) -> None:
    buffer = output.buffer(2 << 20)
    place = output.place(buffer)
    fill(buffer, 7)
    buffer.resize(40 << 20)
    assert output.place(buffer) == place
    assert output.content(buffer)[: 2 << 20] == b"\7" * (2 << 20)


def test_a_closed_file_contains_no_addresses_and_no_unused_pages(output: Output) -> None:
    buffers = [output.buffer(3000) for _ in range(200)]
    for buffer in buffers:
        fill(buffer, 1)
    del buffer
    del buffers[::2]
    large, guard = output.buffer(8 << 20), output.buffer(8 << 20)
    fill(large, 0)
    del large
    end_bytes = output.arena.close(is_final=True)
    os.truncate(output.path, end_bytes)
    assert set(output.path.read_bytes()[START:end_bytes]) <= {0, 1}
    assert output.path.stat().st_blocks * 512 < end_bytes - (7 << 20)
    assert guard.size == 8 << 20


def test_after_its_task_the_pool_allocates_elsewhere(output: Output) -> None:
    inside = output.buffer(5000)
    fill(inside, 3)
    output.arena.close(is_final=True)
    outside = output.buffer(5000)
    assert output.place(outside) == -1
    assert inside.to_pybytes() == b"\3" * 5000
    inside.resize(9000)  # moves it
    assert output.place(inside) == -1
    assert inside.to_pybytes()[:5000] == b"\3" * 5000


def test_what_was_published_cannot_be_changed(output: Output) -> None:
    buffer = output.buffer(5000)
    output.arena.close(is_final=True)
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)  # no traceback of this test
        try:
            fill(buffer, 1)
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGSEGV


def test_the_last_buffer_unmaps_the_file(output: Output) -> None:
    buffer = output.buffer(5000)
    output.arena.close(is_final=True)
    output.arena = Arena(store_pool._library(), os.open(os.devnull, os.O_RDWR), 0, None)
    assert mappings(output.path) == 1
    del buffer
    assert mappings(output.path) == 0


def test_a_second_file_follows_the_first(output: Output, tmp_path: Path) -> None:
    first = output.buffer(5000)
    output.arena.close(is_final=True)
    later = Output(tmp_path / "later")
    second = later.buffer(5000)
    assert (later.place(second), later.place(first)) == (START, -1)
    assert output.place(first) == START
    later.arena.close(is_final=False)


@contextmanager
def a_full_disk(size_bytes: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_without_space_buffers_lie_in_ordinary_memory(output: Output) -> None:
    first = output.buffer(100_000)
    fill(first, 5)
    with a_full_disk(4 << 20):
        second = output.buffer(8 << 20)
        first.resize(9 << 20)
        third = output.buffer(100_000)
    assert output.place(first) == output.place(second) == -1
    assert output.place(third) > 0
    assert first.to_pybytes()[:100_000] == b"\5" * 100_000
    fill(second, 1)


def test_pages_are_set_aside_for_others(output: Output) -> None:
    first = output.buffer(100)
    place = output.arena.skip(10_000)
    second = output.buffer(100)
    assert place % 4096 == 0
    assert output.place(first) < place
    assert output.place(second) >= place + 12_288
    with a_full_disk(1 << 20), pytest.raises(MemoryError, match="no space for 9000000 bytes"):
        output.arena.skip(9_000_000)


def test_threads_share_the_pool(output: Output) -> None:
    failures: list[str] = []

    def work(value: int) -> None:
        numbers = np.arange(500) * value
        column, order = pa.chunked_array([numbers]), pa.array(np.arange(500)[::-1].copy())
        for _ in range(4000):
            found = pa.compute.take(column, order, memory_pool=output.pool)
            if not (found.to_numpy() == numbers[::-1]).all():
                failures.append(f"thread {value}")

    threads = [threading.Thread(target=work, args=(value,)) for value in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_a_forked_child_changes_nothing_in_the_file(output: Output) -> None:
    kept, freed, guard = (output.buffer(5000) for _ in range(3))
    for buffer in (kept, freed, guard):
        fill(buffer, 9)
    del buffer
    child = os.fork()
    if child == 0:
        del freed
        outside = output.buffer(5000)
        is_right = output.place(outside) < 0 < output.place(kept)
        os._exit(0 if is_right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert output.content(freed) == b"\x09" * 5000
    assert output.place(output.buffer(5000)) > 0
    assert guard.size == 5000


def test_the_pool_counts(output: Output) -> None:
    before = output.pool.bytes_allocated()
    buffer = output.buffer(5000)
    grown = output.pool.bytes_allocated() - before
    assert 5000 <= grown < 6000
    assert output.pool.max_memory() >= output.pool.bytes_allocated()
    del buffer
    assert output.pool.bytes_allocated() == before
    assert output.pool.backend_name


def test_outside_of_a_task_the_pool_is_the_usual_one() -> None:
    assert memory_pool().backend_name == pa.default_memory_pool().backend_name
    before = pa.default_memory_pool()
    with in_store():
        assert pa.table({"a": [1, 2]}).num_rows == 2
    assert pa.default_memory_pool().backend_name == before.backend_name


def test_another_class_of_pools_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    header = Path(pa.get_include(), "arrow", "memory_pool.h").read_text()
    assert virtual_functions(header) == store_pool._VIRTUAL
    changed = header.replace("virtual void ReleaseUnused() {}", "")
    assert virtual_functions(changed) != store_pool._VIRTUAL
    (tmp_path / "arrow").mkdir()
    (tmp_path / "arrow" / "memory_pool.h").write_text(changed)
    monkeypatch.setattr(pa, "get_include", lambda: str(tmp_path))
    assert "declares another class arrow::MemoryPool" in why_not.__wrapped__()
    monkeypatch.setattr(pa, "get_include", lambda: str(tmp_path / "none"))
    assert "has no headers to check" in why_not.__wrapped__()
    monkeypatch.setattr(store_pool, "LIBRARY", tmp_path / "none")
    assert why_not.__wrapped__() == "ciel was installed without a compiler for C++"
