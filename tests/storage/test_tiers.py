import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from itertools import count, cycle
from pathlib import Path
from typing import Any, TypeVar

import pytest

from ciel.shm.store import open_shm
from ciel.storage.errors import (
    NoSpaceError,
    ObjectConflictError,
    StoreSpecError,
)
from ciel.storage.files import FileStore, FileWriter
from ciel.storage.interface import DISK, MEMORY, Capabilities
from ciel.storage.shelf import ShelfOptions
from ciel.storage.spill import UnspilledStore
from ciel.storage.tiers import WAIT_S, TieredStore
from ciel.testing.directory_store_suite import DirectoryStoreSuite
from ciel.testing.store_rules import digest, exit_code, start_child

T = TypeVar("T")


@pytest.mark.requirement("CIB-54")
class TestTieredStore(DirectoryStoreSuite):
    """Tests a store whose lower level has no room, so that its capacity is the upper level's."""

    capabilities = Capabilities(
        mappable=True,
        nameable=True,
        streaming=True,
        shared_between_processes=False,
        bounded=True,
        may_block=False,
    )

    def raw_path(self, where: Path, object_id: str) -> Path:
        return where / "upper" / "objects" / object_id.replace(":", "+")

    def raw_temporaries(self, where: Path) -> list[Path]:
        return [path for path in (where / "upper" / "incoming").rglob("*") if path.is_file()]

    def make_store(self, where: Path, *, capacity_bytes: int | None = None) -> TieredStore:
        options = ShelfOptions(capacity_bytes=capacity_bytes or 32 << 20, links_overrun=True)
        upper = FileStore(where / "upper", options, may_block=False)
        lower = FileStore(where / "lower", ShelfOptions(capacity_bytes=1))
        return TieredStore(upper, lower)


UNIT = 1 << 16
CAPACITY_BYTES = 16 * UNIT


def content(number: int) -> bytes:
    return number.to_bytes(8, "little") * (UNIT // 8)


def upper_at(where: Path) -> FileStore:
    options = ShelfOptions(capacity_bytes=CAPACITY_BYTES, links_overrun=True)
    return FileStore(where / "upper", options, may_block=False)


def lower_at(where: Path, capacity_bytes: int | None = None) -> FileStore:
    return FileStore(where / "lower", ShelfOptions(capacity_bytes=capacity_bytes))


@pytest.fixture
def tiers(tmp_path: Path) -> Iterator[TieredStore]:
    with TieredStore(upper_at(tmp_path), lower_at(tmp_path)) as store:
        yield store


@pytest.fixture
def hasty(tmp_path: Path) -> Iterator[TieredStore]:
    """A store whose writers wait only 0.1 s for room."""
    with TieredStore(upper_at(tmp_path), lower_at(tmp_path), wait_s=0.1) as store:
        yield store


def until(condition: Callable[[], bool]) -> None:
    """Wait until the mover has fulfilled a condition."""
    deadline_s = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline_s, "it did not come to be"
        time.sleep(0.002)


def places(where: Path, object_id: str) -> str:
    return "".join(
        level[0] for level in ("upper", "lower") if (where / level / "objects" / object_id).exists()
    )


def elsewhere(act: Callable[[], T]) -> T:
    """Call a function in another thread, which may block."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(act).result(timeout=10)


def fill(store: TieredStore, end: int, start: int = 0) -> None:
    """Put objects into the upper level, each when it has room."""

    def put() -> None:
        for number in range(start, end):
            store.put(f"o{number}", content(number))

    elsewhere(put)


# Objects that leave the upper level


@pytest.mark.requirement("CIB-52")
def test_the_least_recently_used_object_is_moved_down_and_read_there(
    tiers: TieredStore, tmp_path: Path
) -> None:
    fill(tiers, 13)
    tiers.get("o0")
    fill(tiers, 16, 13)
    until(lambda: places(tmp_path, "o1") == "l")
    assert places(tmp_path, "o0") == places(tmp_path, "o15") == "u"
    for number in range(16):
        assert tiers.get(f"o{number}") == content(number)
    assert sorted(tiers) == sorted(f"o{number}" for number in range(16))
    assert tiers.check() == []
    memory, disk = tiers.levels()
    assert (memory.name, disk.name) == ("memory", "disk")
    assert memory.evicted >= 1
    assert memory.evicted_bytes == memory.evicted * UNIT


def test_no_object_is_moved_while_there_is_room(tiers: TieredStore) -> None:
    fill(tiers, 14)
    tiers.get("o0")
    tiers.delete("o1")
    assert tiers.levels()[0].evicted == 0
    assert tiers.mover._thread is None  # none was even started


@pytest.mark.requirement("CIB-52")
def test_an_open_object_stays(tiers: TieredStore, tmp_path: Path) -> None:
    fill(tiers, 8)
    with tiers.open("o0") as reader, tiers.open("o1"):
        assert tiers.levels()[0].readers == 2
        fill(tiers, 16, 8)
        until(lambda: places(tmp_path, "o2") == "l")
        assert places(tmp_path, "o0") == places(tmp_path, "o1") == "u"
        with open(str(reader.path), "rb") as file:  # as programs do
            assert file.read() == content(0)
    assert tiers.levels()[0].readers == 0
    elsewhere(lambda: tiers.put("more", bytes(12 * UNIT)))
    assert places(tmp_path, "more") == "u"
    until(lambda: places(tmp_path, "o0") == "l")


def test_objects_that_can_be_fetched_again_are_dropped_before_any_is_moved(
    tiers: TieredStore, tmp_path: Path
) -> None:
    dropped: list[str] = []
    again = {"o7", "o9"}
    tiers.advise(again.__contains__, dropped.append, lambda place, size_bytes: nullcontext())
    fill(tiers, 16)
    until(lambda: dropped == ["o7", "o9"])
    assert tiers.stat("o7") is None
    assert places(tmp_path, "o0") == "u"
    memory, _ = tiers.levels()
    assert (memory.dropped, memory.evicted) == (2, 0)


@pytest.mark.requirement("CIB-52")
def test_a_reader_finds_an_object_in_some_level_at_every_moment(tiers: TieredStore) -> None:
    stop = threading.Event()

    def read() -> None:
        for number in cycle(range(8)):
            if stop.is_set():
                return
            with tiers.open(f"o{number}") as reader:  # raises if it is in neither level
                assert reader.read(0, 8) == content(number)[:8]
            assert tiers.stat(f"o{number}") is not None
            assert f"o{number}" in list(tiers)

    fill(tiers, 8)
    with ThreadPoolExecutor(2) as pool:
        reading = [pool.submit(read) for _ in range(2)]
        numbers = count()
        while tiers.levels()[0].evicted < 40 and not any(one.done() for one in reading):
            elsewhere(lambda: tiers.put(f"next{next(numbers)}", bytes(UNIT)))
        stop.set()
        for one in reading:
            one.result()


def test_an_object_deleted_while_it_moves_stays_deleted(tiers: TieredStore, tmp_path: Path) -> None:
    for round_number in range(4):
        fill(tiers, 16)
        for number in range(16):
            assert tiers.delete(f"o{number}"), (round_number, number)
            assert places(tmp_path, f"o{number}") == ""
        assert list(tiers) == []
        assert tiers.usage().used_bytes == 0


def test_a_damaged_object_stays_where_it_is(tiers: TieredStore, tmp_path: Path) -> None:
    fill(tiers, 8)
    path = tmp_path / "upper" / "objects" / "o0"
    path.chmod(0o600)
    path.write_bytes(content(99))
    path.chmod(0o400)
    fill(tiers, 16, 8)
    until(lambda: places(tmp_path, "o1") == "l")
    assert places(tmp_path, "o0") == "u"
    assert [problem.place for problem in tiers.check()] == ["o0"]


# Killed processes


@pytest.mark.requirement("CIB-52")
@pytest.mark.parametrize("moment", ["copying", "committing", "deleting"])
def test_an_object_stays_readable_if_its_process_is_killed_while_moving_it(
    tmp_path: Path, moment: str
) -> None:
    def die() -> None:
        upper, lower = upper_at(tmp_path), lower_at(tmp_path)
        end = partial(os.kill, os.getpid(), signal.SIGKILL)
        steps = {"copying": (FileWriter, "write"), "committing": (FileWriter, "commit")}
        of, name = steps.get(moment, (FileStore, "delete"))
        original = getattr(of, name)

        def at_last(self: Any, *args: Any, **options: Any) -> Any:
            if threading.current_thread().name == "ciel-tiers":
                if moment == "deleting":
                    original(self, *args, **options)
                end()
            return original(self, *args, **options)

        setattr(of, name, at_last)
        store = TieredStore(upper, lower)
        fill(store, 16)
        time.sleep(10)

    assert exit_code(start_child(die)) == -signal.SIGKILL
    with TieredStore(upper_at(tmp_path), lower_at(tmp_path)) as store:
        for number in range(15):  # the last object may have been written after the kill
            assert store.get(f"o{number}") == content(number)
        assert store.check() == []
        assert [
            path for path in (tmp_path / "lower" / "incoming").rglob("*") if path.is_file()
        ] == []
        assert store.usage().object_count in (15, 16)
        assert store.delete("o0")
        assert places(tmp_path, "o0") == ""


# Objects that return to the upper level


def test_an_object_read_before_its_eviction_is_recorded_is_promoted(
    tiers: TieredStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_read = threading.Event()
    end_move = tiers.mover._end_move

    def end_late(object_id: str) -> None:
        assert object_id != "o0" or is_read.wait(10)
        end_move(object_id)

    monkeypatch.setattr(tiers.mover, "_end_move", end_late)
    fill(tiers, 16)
    until(lambda: places(tmp_path, "o0") == "l")
    for number in range(8, 16):
        tiers.delete(f"o{number}")
    assert tiers.get("o0") == content(0)
    assert tiers.levels()[0].promoted == 0
    is_read.set()
    until(lambda: tiers.levels()[0].promoted == 1)


def test_an_object_read_from_the_lower_level_is_promoted_when_there_is_room(
    tiers: TieredStore, tmp_path: Path
) -> None:
    fill(tiers, 16)
    until(lambda: places(tmp_path, "o0") == "l")
    tiers.get("o0")
    for number in range(8, 16):
        tiers.delete(f"o{number}")
    assert tiers.get("o0") == content(0)
    until(lambda: tiers.levels()[0].promoted == 1)
    assert places(tmp_path, "o0") == "ul"
    assert tiers.usage().object_count == len(list(tiers)) == 8
    moved = tiers.levels()[0].evicted
    for number in range(1, 8):
        tiers.get(f"o{number}")
    elsewhere(lambda: tiers.put("large", bytes(9 * UNIT)))
    until(lambda: places(tmp_path, "o0") == "l")  # it is dropped above without being copied again
    assert tiers.levels()[0].evicted >= moved + 1
    assert tiers.delete("o0")
    assert places(tmp_path, "o0") == ""


def test_an_object_deleted_while_its_promotion_waits_for_the_disk_stays_deleted(
    tiers: TieredStore, tmp_path: Path
) -> None:
    fill(tiers, 16)
    until(lambda: places(tmp_path, "o0") == "l")
    for number in range(8, 16):
        tiers.delete(f"o{number}")
    waits, may_go_on = threading.Event(), threading.Event()

    @contextmanager
    def turn(size_bytes: int) -> Iterator[None]:
        waits.set()
        assert may_go_on.wait(10)
        yield

    tiers.mover.turn = turn
    tiers.get("o0")
    assert waits.wait(10)
    assert tiers.delete("o0")
    may_go_on.set()
    tiers.get("o1")  # the thread has ended the earlier promotion when it begins this one
    until(lambda: places(tmp_path, "o1") == "ul")
    assert places(tmp_path, "o0") == ""


def test_the_first_object_with_an_id_wins_in_whichever_level_it_is(
    tiers: TieredStore, tmp_path: Path
) -> None:
    fill(tiers, 16)
    until(lambda: places(tmp_path, "o0") == "l")
    assert tiers.put("o0", content(0)).size_bytes == UNIT
    with pytest.raises(ObjectConflictError) as caught:
        tiers.put("o0", content(99))
    assert caught.value.refused_checksum == digest(content(99))
    assert tiers.get("o0") == content(0)
    until(lambda: tiers.usage().reserved_bytes == 0)  # other objects are moved meanwhile
    path = tmp_path / "lower" / "objects" / "o0"
    path.chmod(0o600)
    path.write_bytes(b"damaged")
    assert tiers.put("o0", content(0)).size_bytes == UNIT
    assert tiers.get("o0") == content(0)
    assert tiers.check() == []


# Writers that find no room


def test_a_writer_waits_for_room_and_gets_it(tmp_path: Path) -> None:
    with TieredStore(upper_at(tmp_path), lower_at(tmp_path)) as tiers:
        tiers.put("open", bytes(12 * UNIT))
        reader = tiers.open("open")

        def write() -> None:
            with tiers.begin("late") as writer:
                for _ in range(8):
                    writer.write(bytes(UNIT))
                writer.commit()

        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(write)
            until(lambda: tiers.levels()[0].waited == 1)
            assert places(tmp_path, "open") == "u"
            reader.close()
            writing.result(timeout=10)
        assert places(tmp_path, "open") == "l"
        assert places(tmp_path, "late") == "u"


def test_a_writer_that_waits_in_vain_reports_the_wanted_and_available_bytes(
    hasty: TieredStore,
) -> None:
    hasty.put("open", bytes(12 * UNIT))
    with hasty.open("open"):

        def write() -> None:
            with hasty.begin("late") as writer:
                for _ in range(8):
                    writer.write(bytes(UNIT))

        with pytest.raises(NoSpaceError) as caught:
            elsewhere(write)
    assert caught.value.wanted_bytes == 5 * UNIT
    assert caught.value.available_bytes == 4 * UNIT
    assert hasty.usage().reserved_bytes == 0
    assert hasty.levels()[0].writers == 0


def test_the_thread_that_opened_the_store_overruns_instead_of_waiting(
    tiers: TieredStore, tmp_path: Path
) -> None:
    tiers.put("open", bytes(12 * UNIT))
    with tiers.open("open"), tiers.begin("late") as writer:
        Path(str(writer.path)).write_bytes(bytes(6 * UNIT))
        writer.account()
        assert tiers.levels()[0].reserved_bytes == 6 * UNIT
        writer.commit()
    until(lambda: tiers.levels()[0].used_bytes <= CAPACITY_BYTES)
    assert tiers.get("late") == bytes(6 * UNIT)


def test_a_program_may_overrun_only_for_a_limited_time(hasty: TieredStore) -> None:
    hasty.put("open", bytes(12 * UNIT))
    with hasty.open("open"), hasty.begin("late") as writer:
        Path(str(writer.path)).write_bytes(bytes(6 * UNIT))

        def account_on() -> None:
            deadline_s = time.monotonic() + 10
            while time.monotonic() < deadline_s:
                writer.account()
                time.sleep(0.01)

        with pytest.raises(NoSpaceError) as caught:
            account_on()
        assert (caught.value.wanted_bytes, caught.value.available_bytes) == (6 * UNIT, 4 * UNIT)


def test_an_object_larger_than_the_memory_is_written_below_or_refused(
    tiers: TieredStore, tmp_path: Path
) -> None:
    tiers.put("large", bytes(CAPACITY_BYTES + 1))
    assert places(tmp_path, "large") == "l"
    assert tiers.levels()[1].spilled == 1
    with tiers.begin("unknown") as writer:
        Path(str(writer.path)).write_bytes(bytes(CAPACITY_BYTES + 1))
        with pytest.raises(NoSpaceError):
            writer.account()


def test_a_new_object_is_written_below_when_no_object_can_leave(
    tiers: TieredStore, tmp_path: Path
) -> None:
    # an object that fills the level would start to be evicted at once
    tiers.put("open", bytes(12 * UNIT))
    with tiers.open("open"), tiers.begin("rest", size_hint_bytes=4 * UNIT):
        tiers.put("known", bytes(UNIT))
        with tiers.begin("unknown") as writer:
            writer.write(b"x")
            writer.commit()
    assert places(tmp_path, "known") == places(tmp_path, "unknown") == "l"


def test_two_full_levels_raise_no_space_until_space_is_free(tmp_path: Path) -> None:
    with TieredStore(upper_at(tmp_path), lower_at(tmp_path, 2 * UNIT), wait_s=0.1) as tiers:
        fill(tiers, 18)
        with pytest.raises(NoSpaceError) as caught:
            tiers.put("late", bytes(UNIT))
        assert caught.value.available_bytes < UNIT <= caught.value.wanted_bytes
        assert tiers.check() == []
        tiers.delete("o7")
        tiers.put("late", bytes(UNIT))
        assert tiers.get("late") == bytes(UNIT)


def test_a_writer_may_choose_the_lower_level(tiers: TieredStore, tmp_path: Path) -> None:
    with tiers.begin_in(DISK, "a") as writer, tiers.begin_in(MEMORY, "b") as other:
        assert [level.writers for level in tiers.levels()] == [1, 1]
        writer.write(b"content")
        writer.commit()
        other.commit()
    assert places(tmp_path, "a") == "l"
    assert places(tmp_path, "b") == "u"
    assert tiers.levels()[1].spilled == 0


# Adoption from other stores, and the option `spill`


def test_an_object_in_the_lower_level_of_another_store_is_adopted_below(
    tiers: TieredStore, tmp_path: Path
) -> None:
    with open_shm({"spill": str(tmp_path / "spill"), "capacity": "64KiB"}, tmp_path) as other:
        info = other.put("a", bytes(2 * UNIT))
        with other.open("a") as reader:
            checksum, path = info.checksum or "", str(reader.path)
            assert path.startswith(str(tmp_path / "spill"))
        tiers.adopt("a", path, checksum=checksum, size_bytes=2 * UNIT)
        with open_shm({"spill": "yes", "capacity": "9MiB"}, tmp_path / "third") as third:
            third.adopt("a", path, checksum=checksum, size_bytes=2 * UNIT)
            assert third.levels()[1].objects == 1
    assert list((tmp_path / "spill").iterdir()) == []  # deleted with its store
    assert tiers.get("a") == bytes(2 * UNIT)


def test_without_spilling_a_full_memory_raises_no_space(tmp_path: Path) -> None:
    with open_shm({"spill": "no", "capacity": "64KiB"}, tmp_path) as store:
        with pytest.raises(NoSpaceError):
            store.put("a", bytes(2 * UNIT))
        assert len(store.levels()) == 1


class TestUnspilledStore(DirectoryStoreSuite):
    """A store in memory without a lower level keeps all rules of stores."""

    capabilities = TestTieredStore.capabilities

    def raw_path(self, where: Path, object_id: str) -> Path:
        return where / "objects" / object_id.replace(":", "+")

    def raw_temporaries(self, where: Path) -> list[Path]:
        return [path for path in (where / "incoming").rglob("*") if path.is_file()]

    def make_store(self, where: Path, *, capacity_bytes: int | None = None) -> UnspilledStore:
        options = ShelfOptions(capacity_bytes=capacity_bytes or 32 << 20)
        return UnspilledStore(FileStore(where, options, may_block=False))


def no_turn(place: str, size_bytes: int) -> AbstractContextManager[None]:
    raise AssertionError(f"a turn at {place}, and there is no disk")


@pytest.fixture
def unspilled(tmp_path: Path) -> Iterator[UnspilledStore]:
    """A full store; half of its objects can be fetched again."""
    options = ShelfOptions(capacity_bytes=CAPACITY_BYTES)
    with UnspilledStore(FileStore(tmp_path / "upper", options, may_block=False)) as store:
        store.advise(lambda object_id: object_id.startswith("copy"), lambda _: None, no_turn)
        for number in range(8):
            store.put(f"own{number}", content(number))
            store.put(f"copy{number}", content(number))
        assert store.mover.free_bytes() == 0
        yield store


@pytest.mark.parametrize("where", [elsewhere, lambda act: act()])
def test_without_spilling_only_objects_that_can_be_fetched_again_are_dropped(
    unspilled: UnspilledStore, where: Callable[[Callable[[], Any]], Any]
) -> None:
    with unspilled.open("copy2") as reader:
        where(lambda: unspilled.put("a", bytes(4 * UNIT)))
        assert reader.read(0, UNIT) == content(2)
    assert [name for name in sorted(unspilled) if name.startswith("copy")] == [
        f"copy{number}" for number in (2, 5, 6, 7)
    ]
    (memory,) = unspilled.levels()
    assert (memory.dropped, memory.evicted) == (4, 0)
    with unspilled.begin("b") as writer:
        Path(str(writer.path)).write_bytes(bytes(3 * UNIT))
        writer.account()
        writer.commit()
    begun_s = time.monotonic()
    with pytest.raises(NoSpaceError):
        unspilled.put("c", bytes(2 * UNIT))
    assert time.monotonic() - begun_s < WAIT_S / 2
    assert [name for name in sorted(unspilled) if name.startswith("own")] == [
        f"own{number}" for number in range(8)
    ]


def test_without_spilling_adopting_an_object_makes_room_too(
    unspilled: UnspilledStore, tmp_path: Path
) -> None:
    other = FileStore(tmp_path / "other", ShelfOptions(capacity_bytes=None))
    with other:
        info = other.put("a", bytes(2 * UNIT))
        with other.open("a") as reader:
            found = unspilled.adopt(
                "a", str(reader.source), checksum=str(info.checksum), size_bytes=2 * UNIT
            )
    assert unspilled.get("a") == bytes(2 * UNIT)
    assert found == info
    assert unspilled.levels()[0].dropped == 2


def test_without_spilling_a_request_for_the_disk_is_ignored(unspilled: UnspilledStore) -> None:
    with unspilled.begin_in(DISK, "a", size_hint_bytes=UNIT) as writer:
        writer.write(content(1))
        writer.commit()
    assert unspilled.get("a") == content(1)


@pytest.mark.parametrize("spill", ["maybe", "tmp/x"])
def test_an_unknown_value_of_spill_is_refused(tmp_path: Path, spill: str) -> None:
    with pytest.raises(StoreSpecError, match="write yes, no, remote, or a path"):
        open_shm({"spill": spill}, tmp_path)
