"""Memory of deleted objects serves others, but never while anybody may still see it."""

import mmap
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ciel.shm.huge import STEP_BYTES, make_huge
from ciel.shm.store import ShmStore
from ciel.shm.upkeep import Upkeep
from ciel.storage.segments import FIT_SHARE, Segments
from ciel.testing.store_rules import digest, exit_code, start_child

MIB = 1 << 20
CAPACITY_BYTES = 64 * MIB
SIZE_BYTES = 2 * MIB


@pytest.fixture
def store() -> Iterator[ShmStore]:
    with ShmStore(f"test-own-{os.getpid()}", CAPACITY_BYTES) as store:
        yield store


@pytest.fixture
def segments(store: ShmStore) -> Segments:
    return store._shelf.segments


def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline_s, "it did not come to be"
        time.sleep(0.002)


def put(store: ShmStore, object_id: str, size_bytes: int = SIZE_BYTES) -> bytes:
    content = os.urandom(size_bytes)
    store.put(object_id, content)
    return content


# Takes it


def test_a_deleted_object_leaves_its_memory_to_the_next(
    store: ShmStore, segments: Segments
) -> None:
    put(store, "a")
    assert store.delete("a")
    assert segments.kept_bytes == SIZE_BYTES
    content = put(store, "b")
    assert segments.recycled == 1
    assert segments.kept_bytes == 0
    assert store.get("b") == content
    assert store.check() == []


@pytest.mark.parametrize("length_bytes", [5, MIB, SIZE_BYTES, SIZE_BYTES + 5])
def test_a_program_that_maps_has_what_was_there_and_leaves_what_it_wrote(
    store: ShmStore, segments: Segments, length_bytes: int
) -> None:
    put(store, "old", 3 * MIB)
    store.delete("old")
    with store.begin("a", size_hint_bytes=SIZE_BYTES) as writer:
        path = Path(writer.mapped_path)
        assert path.stat().st_size == SIZE_BYTES
        assert path.stat().st_blocks * 512 >= SIZE_BYTES
        content = os.urandom(length_bytes)
        with path.open("r+b") as file:
            file.write(content)
            file.truncate(length_bytes)
        writer.commit()
    assert segments.recycled == 1
    assert store.get("a") == content
    assert store.verify("a").checksum == digest(content)


def test_a_program_that_maps_an_output_of_unknown_size_gets_old_memory(
    store: ShmStore, segments: Segments
) -> None:
    for name in ("larger", "last"):
        put(store, name, SIZE_BYTES if name == "last" else 3 * MIB)
    for name in ("larger", "last"):
        store.delete(name)
    with store.begin("a") as writer:
        path = Path(writer.mapped_path)
        assert path.stat().st_blocks * 512 >= SIZE_BYTES
        assert writer.mapped_path == str(path)
        writer.account()
        assert store.usage().reserved_bytes == SIZE_BYTES
        with path.open("r+b") as file:
            file.write(b"new")
            file.truncate(3)
        writer.commit()
    assert (segments.recycled, segments.kept_bytes) == (1, 3 * MIB)
    assert store.get("a") == b"new"
    assert store.verify("a").checksum == digest(b"new")
    assert store.usage().reserved_bytes == 0


def test_a_program_that_may_not_map_gets_no_old_memory(store: ShmStore, segments: Segments) -> None:
    put(store, "old")
    store.delete("old")
    with store.begin("a") as writer:
        assert Path(writer.path).stat().st_size == 0
        assert Path(writer.mapped_path).stat().st_size == 0
    assert segments.recycled == 0


def test_old_memory_that_exceeds_the_capacity_is_freed(store: ShmStore, segments: Segments) -> None:
    put(store, "old", 8 * MIB)
    store.delete("old")
    put(store, "large", CAPACITY_BYTES - 4 * MIB)
    with store.begin("a") as writer:
        assert Path(writer.mapped_path).stat().st_size == 0
        writer.write(b"new")
        writer.commit()
    assert segments.kept_bytes == 0
    assert store.get("a") == b"new"


def test_the_store_that_has_written_an_object_keeps_its_memory(
    store: ShmStore, segments: Segments
) -> None:
    with ShmStore(f"test-other-{os.getpid()}", CAPACITY_BYTES) as other:
        for is_first in (True, False):
            put(store, "shared")
            with store.open("shared") as reader:
                path, checksum = reader.source, store.checksum("shared")
            assert path is not None
            other.adopt("shared", path, checksum=checksum, size_bytes=SIZE_BYTES)
            first, last = (store, other) if is_first else (other, store)
            first.delete("shared")
            assert segments.kept_bytes == 0
            assert last.verify("shared").size_bytes == SIZE_BYTES  # it has an object still
            assert last.check() == []
            last.delete("shared")
            assert other._shelf.segments.kept_bytes == 0
            put(store, "next")
            assert segments.recycled == (1 if is_first else 2)
            store.delete("next")
            assert segments.drop()


def test_memory_that_another_store_has_is_given_up_in_the_end(
    store: ShmStore, segments: Segments
) -> None:
    with ShmStore(f"test-other-{os.getpid()}", CAPACITY_BYTES) as other:
        put(store, "shared")
        with store.open("shared") as reader:
            path = reader.source
        assert path is not None
        checksum = store.checksum("shared")
        other.adopt("shared", path, checksum=checksum, size_bytes=SIZE_BYTES)
        store.delete("shared")
        assert segments
        segments.drop()
        assert not segments
        assert os.stat(f"{other.directories[0]}/shared").st_nlink == 1


def test_much_memory_is_not_cut_for_a_small_object(store: ShmStore, segments: Segments) -> None:
    put(store, "old", (FIT_SHARE + 1) * MIB)
    store.delete("old")
    put(store, "a", MIB)
    assert segments.recycled == 0
    assert segments.kept_bytes == (FIT_SHARE + 1) * MIB


def test_a_forked_copy_of_the_store_takes_nothing(store: ShmStore, segments: Segments) -> None:
    put(store, "old")
    store.delete("old")

    def copy() -> None:
        put(store, "copy")
        assert segments.recycled == 0

    assert exit_code(start_child(copy)) == 0
    content = put(store, "b")
    assert segments.recycled == 1
    assert store.get("b") == content


# --- memory that a reader or a writer may still map -----------------------------------------------


def read(store: ShmStore, object_id: str) -> Callable[[], bytes]:
    reader = store.open(object_id)
    return lambda: reader.read(0, SIZE_BYTES)


def view(store: ShmStore, object_id: str) -> Callable[[], bytes]:
    with store.open(object_id) as reader:
        seen = reader.view()
    return lambda: bytes(seen)


def copy_on_write(store: ShmStore, object_id: str) -> Callable[[], bytes]:
    with store.open(object_id) as reader, open(reader.mapped_path, "rb") as file:
        seen = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    return lambda: bytes(seen)


@pytest.mark.parametrize("see", [read, view, copy_on_write])
def test_what_is_seen_is_not_used_again_before_it_is_no_longer(
    store: ShmStore, segments: Segments, see: Callable[[ShmStore, str], Callable[[], bytes]]
) -> None:
    content = put(store, "a")
    seen = see(store, "a")
    store.delete("a")
    put(store, "b")
    assert segments.recycled == 0
    assert seen() == content
    del seen
    put(store, "c")
    assert segments.recycled == 1


def test_another_process_may_map_it_until_it_is_killed(store: ShmStore, segments: Segments) -> None:
    content = put(store, "a")
    with store.open("a") as reader:
        path = reader.mapped_path
    mapped, answers = os.pipe()
    asked, ask = os.pipe()

    def look() -> None:
        os.close(ask)  # so that it ends with us
        with open(path, "rb") as file:
            seen = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        os.write(answers, b"m")
        os.read(asked, 1)
        os.write(answers, b"s" if bytes(seen) == content else b"c")
        os.read(asked, 1)

    child = start_child(look)
    try:
        assert os.read(mapped, 1) == b"m"
        store.delete("a")
        put(store, "b")
        os.write(ask, b"?")
        assert os.read(mapped, 1) == b"s"
        assert segments.recycled == 0
    finally:
        os.kill(child, signal.SIGKILL)
        assert exit_code(child) == -signal.SIGKILL
    put(store, "c")
    assert segments.recycled == 1
    for fd in (mapped, answers, asked, ask):
        os.close(fd)


def test_who_wrote_it_may_go_on_to_see_it(store: ShmStore, segments: Segments) -> None:
    with store.begin("a", size_hint_bytes=SIZE_BYTES) as writer:
        with open(writer.mapped_path, "r+b") as file:
            file.truncate(SIZE_BYTES)
            seen = mmap.mmap(file.fileno(), SIZE_BYTES)
        seen[:] = content = os.urandom(SIZE_BYTES)
        writer.commit()
    store.delete("a")
    put(store, "b")
    assert segments.recycled == 0
    assert bytes(seen) == content


def test_what_another_store_has_linked_is_not_used_again(
    store: ShmStore, segments: Segments
) -> None:
    content = put(store, "a")
    with ShmStore(f"test-other-{os.getpid()}", CAPACITY_BYTES) as other:
        with store.open("a") as reader:
            other.adopt("a", reader.source, checksum=digest(content), size_bytes=SIZE_BYTES)
        store.delete("a")
        assert segments.kept_bytes == 0
        put(store, "b")
        assert other.get("a") == content


def test_what_is_linked_while_it_is_kept_is_not_used_again(
    store: ShmStore, segments: Segments, tmp_path: Path
) -> None:
    put(store, "a")
    store.delete("a")
    (kept,) = segments._kept
    other = Path("/dev/shm", f"test-link-{os.getpid()}")
    os.link(store._shelf.temporaries.path_of(kept.name), other)
    try:
        put(store, "b")
        assert segments.recycled == 0
    finally:
        other.unlink()


@pytest.mark.parametrize("who", ["reader", "writer", "stream"])
def test_what_a_program_had_as_a_file_is_never_used_again(
    store: ShmStore, segments: Segments, who: str
) -> None:
    """It may have sent it to a socket, or to a pipe: there its pages lie without a name."""
    with store.begin("a", size_hint_bytes=SIZE_BYTES) as writer:
        if who == "writer":
            Path(writer.path).write_bytes(os.urandom(SIZE_BYTES))
        elif who == "stream":
            os.write(writer.fileno(), os.urandom(SIZE_BYTES))
        else:
            writer.write(os.urandom(SIZE_BYTES))
        writer.commit()
    if who == "reader":
        with store.open("a") as reader:
            assert reader.path
    store.delete("a")
    assert segments.kept_bytes == 0
    assert store.check() == []


# The bounds


def test_what_cannot_be_used_makes_room_for_what_can(store: ShmStore, segments: Segments) -> None:
    seen = []
    for number in range(8):
        put(store, f"o{number}")
        seen.append(view(store, f"o{number}"))
        store.delete(f"o{number}")
    assert segments.kept_bytes == CAPACITY_BYTES // 4
    put(store, "a")
    store.delete("a")
    assert segments.kept_bytes == SIZE_BYTES
    put(store, "b")
    assert segments.recycled == 1


def test_idle_memory_is_given_back(store: ShmStore, segments: Segments) -> None:
    idle = Upkeep(segments, 0, idle_s=0.01)
    put(store, "a")
    store.delete("a")
    until(lambda: segments.kept_bytes == 0)
    idle.close()


def test_closing_ends_it(store: ShmStore, segments: Segments) -> None:
    put(store, "a")
    store.delete("a")
    store.close()
    assert "ciel-shm" not in {thread.name for thread in threading.enumerate()}


# Huge pages


def test_what_is_made_huge_stays_what_it_is_while_it_is_written() -> None:
    size_bytes = STEP_BYTES + 5 * MIB
    content = bytearray(os.urandom(size_bytes))
    fd = os.memfd_create("test")
    os.write(fd, content)
    shared = mmap.mmap(fd, size_bytes)
    is_over = threading.Event()
    started = threading.Event()

    def write() -> None:
        number = 0
        while not is_over.is_set():
            at = number * 4099 % size_bytes
            content[at] = shared[at] = number & 255
            number += 1
            started.set()

    writing = threading.Thread(target=write)
    writing.start()
    started.wait()
    for start in range(0, size_bytes, STEP_BYTES):
        make_huge(fd, start, min(STEP_BYTES, size_bytes - start))
    is_over.set()
    writing.join()
    assert shared[:] == content
    assert os.pread(fd, size_bytes, 0) == content
    shared.close()
    os.close(fd)


def test_a_file_is_looked_after_in_parts_and_may_be_taken_meanwhile(
    store: ShmStore, segments: Segments
) -> None:
    segments.when_kept = None
    put(store, "a")
    store.delete("a")
    parts: list[tuple[int, ...]] = []
    assert segments.settle(lambda fd, *part: parts.append(part), MIB)

    def take(fd: int, *part: int) -> None:
        parts.append(part)
        put(store, "b")

    assert segments.settle(take, MIB)
    assert parts == [(0, MIB), (MIB, MIB)]
    assert not segments.settle(take, MIB)
    assert segments.recycled == 1


@pytest.mark.parametrize("is_huge", [False, True])
def test_what_has_huge_pages_as_it_is_is_left_alone(
    store: ShmStore, segments: Segments, monkeypatch: pytest.MonkeyPatch, is_huge: bool
) -> None:
    segments.when_kept = None
    put(store, "a")
    store.delete("a")
    looked_after: list[object] = []
    monkeypatch.setattr(segments, "settle", lambda *how: looked_after.append(how))
    own = Upkeep(segments, 0, 0.05, is_huge=is_huge)
    own._wake()
    until(lambda: segments.kept_bytes == 0)  # it was given back, which is what comes next
    own.close()
    assert bool(looked_after) is not is_huge
