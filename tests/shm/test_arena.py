"""Arenas: huge pages where one may mount, memory that is used again, and nothing left behind."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ciel.shm import arena, upkeep
from ciel.shm.store import ShmStore, open_shm, remove_instance
from ciel.storage.errors import CorruptObjectError, StoreSpecError
from ciel.storage.segments import SEGMENT_MIN_BYTES, Segments
from ciel.testing.store_rules import digest, exit_code, start_child
from ciel_tests.clusters.mounts import run_on_mount

MIB = 1 << 20
CAPACITY_BYTES = 64 * MIB


@pytest.fixture(autouse=True)
def nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Use an arena that no other run of tests has, and see that it goes."""
    monkeypatch.setattr(arena, "NAME", f"ciel-arena-test-{os.getpid()}")
    yield
    assert not Path(arena.arena_path()).exists()


def open_with_arena(instance: str) -> ShmStore:
    return ShmStore(f"test-{instance}-{os.getpid()}", CAPACITY_BYTES, uses_arena=True)


@pytest.fixture
def store() -> Iterator[ShmStore]:
    with open_with_arena("own") as store:
        yield store


def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline_s, "it did not come to be"
        time.sleep(0.002)


def segments_of(store: ShmStore) -> Segments:
    return store._shelf.segments


# The mount


def test_it_says_what_it_got_and_keeps_objects_there(store: ShmStore) -> None:
    is_mounted = os.path.ismount(arena.arena_path())
    place = arena.arena_path() if is_mounted else arena.ROOT
    begin = ", a tmpfs with huge pages" if is_mounted else "; no arena with huge pages: "
    assert store.about.startswith(place + begin)
    with store.begin("a") as writer:
        assert writer.path.startswith(f"{place}/ciel-test-own")


def test_who_may_not_mount_has_plain_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(arena, "_mount", refuse)
    with open_with_arena("plain") as store:
        assert store.about == "/dev/shm; no arena with huge pages: Operation not permitted"
        store.put("a", bytes(2 * MIB))
        with store.open("a") as reader:
            assert reader.source.startswith("/dev/shm/ciel-test-plain")
        store.delete("a")
        assert segments_of(store).kept_bytes >= 2 * MIB


def test_stores_of_one_user_link_each_others_objects(store: ShmStore) -> None:
    with open_with_arena("other") as other:
        info = other.put("a", b"content")
        with other.open("a") as reader:
            store.adopt("a", str(reader.path), checksum=info.checksum or "", size_bytes=7)
    assert store.get("a") == b"content"


@pytest.mark.parametrize("finder", ["next", "parent"])
def test_it_goes_after_a_kill(finder: str) -> None:
    instance = f"test-killed-{os.getpid()}"

    def die() -> None:
        store = ShmStore(instance, CAPACITY_BYTES, uses_arena=True)
        store.put("a", bytes(MIB))
        os.kill(os.getpid(), signal.SIGKILL)

    assert exit_code(start_child(die)) == -signal.SIGKILL
    if finder == "next":
        with ShmStore(f"test-next-{os.getpid()}", MIB):
            assert not Path(arena.arena_path()).exists()
    else:
        assert remove_instance(instance) is True


def test_it_stays_while_somebody_is_there(store: ShmStore) -> None:
    store.put("a", b"content")
    with open_with_arena("other"), ShmStore(f"test-plain-{os.getpid()}", MIB):
        assert arena.remove_arena() is False
    assert store.get("a") == b"content"


def test_many_may_come_and_go_at_once() -> None:
    def come_and_go() -> None:
        for number in range(20):
            with open_with_arena(str(number)) as store:
                store.put("a", b"content")
                assert store.get("a") == b"content"

    children = [start_child(come_and_go) for _ in range(2)]
    assert [exit_code(pid) for pid in children] == [0, 0]


def test_a_small_shared_memory_is_enough(tmp_path: Path) -> None:
    mount = ["-t", "tmpfs", "-o", "size=64m", "none"]
    scenario = Path(__file__).parent / "small_arena.py"
    assert run_on_mount(mount, scenario, Path(arena.ROOT)) == 0


def test_an_arena_is_had_or_not(tmp_path: Path) -> None:
    with pytest.raises(StoreSpecError, match="write yes or no"):
        open_shm({"arena": "maybe"}, tmp_path)


# Memory that is used again


def settled(store: ShmStore) -> Segments:
    """Wait for the pages touched in advance, then free them: only recycled memory is left."""
    segments = segments_of(store)
    until(lambda: segments.kept_bytes == upkeep.prefault_bytes(CAPACITY_BYTES))
    segments.drop()
    return segments


def test_memory_is_touched_ahead_and_used(store: ShmStore) -> None:
    segments = segments_of(store)
    until(lambda: segments.kept_bytes == 8 * MIB)
    content = os.urandom(2 * MIB)
    store.put("a", content)
    assert segments.recycled == 1
    assert segments.kept_bytes == 0  # the unneeded part of it was freed
    assert store.get("a") == content
    assert store.usage().used_bytes == 2 * MIB


def test_memory_of_a_deleted_object_serves_another_and_nothing_of_it_is_seen(
    store: ShmStore,
) -> None:
    segments = settled(store)
    for size_bytes in (4 * MIB, 3 * MIB, 2 * MIB, 5 * MIB):
        store.put("secret", b"s" * (5 * MIB))
        assert store.delete("secret")
        assert segments.kept_bytes == 5 * MIB
        with store.begin("a", size_hint_bytes=size_bytes) as writer:
            assert writer.size_bytes == 0
            assert writer.read(0, 10) == b""
            writer.write(b"x" * MIB)
            assert writer.read(MIB - 1, 10) == b"x"
            assert Path(writer.path).read_bytes() == b"x" * MIB  # it begins empty for programs
            writer.commit()
        assert store.checksum("a") == digest(b"x" * MIB)
        store.delete("a")
        segments.drop()
    assert segments.recycled == 4
    assert store.usage().used_bytes == store.usage().reserved_bytes == 0


def test_small_objects_are_not_kept_and_large_ones_within_a_bound(store: ShmStore) -> None:
    segments = settled(store)
    store.put("small", bytes(SEGMENT_MIN_BYTES - 1))
    store.delete("small")
    assert segments.kept_bytes == 0
    for number in range(6):
        store.put(f"o{number}", bytes(4 * MIB))
    for number in range(6):
        store.delete(f"o{number}")
    assert segments.kept_bytes == CAPACITY_BYTES // 4


def test_an_object_is_written_in_place(store: ShmStore) -> None:
    settled(store)
    store.put("old", b"o" * 4 * MIB)
    store.delete("old")
    content = os.urandom(4 * MIB)
    with store.begin("a", size_hint_bytes=4 * MIB) as writer:
        view = writer.view(4 * MIB)
        view[:] = content
        with pytest.raises(CorruptObjectError, match="release the view"):
            writer.commit()
        view.release()
        assert writer.commit().size_bytes == 4 * MIB
    assert segments_of(store).recycled == 1
    assert store.get("a") == content
    assert store.check() == []
