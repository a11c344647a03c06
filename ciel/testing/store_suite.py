"""Tests that every store must pass.

The tests of a store inherit them in a few lines:

    class TestMyStore(StoreSuite):
        capabilities = Capabilities(mappable=False, nameable=False, ...)

        def make_store(self, where, *, capacity_bytes=None): ...
        def raw_get(self, where, object_id): ...
        def raw_put(self, where, object_id, content): ...
        def raw_damage(self, where, object_id): ...

The raw methods bypass the code of the store, so that it does not verify itself. pytest does not
collect the tests of capabilities that the store does not declare. For stores whose objects are
files, `ciel.testing.directory_store_suite` has further tests.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from random import Random

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from ciel.core.errors import InvalidIdError
from ciel.storage.errors import (
    CorruptObjectError,
    NoSpaceError,
    ObjectConflictError,
    ObjectNotFoundError,
    StoreClosedError,
)
from ciel.storage.interface import ObjectInfo, ObjectStore
from ciel.testing.store_processes import ProcessRules
from ciel.testing.store_rules import PAGE_BYTES, digest, needs, pattern
from ciel.testing.store_walk import StoreWalk

CAPACITY_BYTES = 64 * PAGE_BYTES
SIZES = (0, 1, PAGE_BYTES - 1, PAGE_BYTES, PAGE_BYTES + 1, 3 * 2**20 + 7)
HOSTILE_COUNT = 10_000


def hostile_ids(number: int) -> Iterator[str]:
    """Yield names that every store must refuse: paths, control characters, other alphabets, too
    long.
    """
    random = Random(1)
    yield from ("", ".", "..", "../x", "/etc/passwd", "a/b", "a\0b", "a\n", "-rf", ":a", "x" * 129)
    for _ in range(number - 11):
        good = "".join(random.choices("ab9_:.-", k=random.randrange(120)))
        bad = random.choice("/\\\0\n %+~$*'\"\u0130\u00e4\uff0e\ud800\U0001f4a9")
        cut = random.randrange(len(good) + 1)
        yield random.choice(("../", "/", ".", "-", "")) + good[:cut] + bad + good[cut:]


def snapshot(where: Path) -> list[str]:
    """Return all paths below a directory, beside it, above it and in the current directory, except
    the directories that other processes of the test run create.
    """
    places = (where.parent, where.parent.parent, Path.cwd())
    around = [path for place in places for path in place.iterdir()]
    others = ("popen-gw", "pytest-", ".hypothesis", ".pytest_cache")
    ours = [path for path in around if not path.name.startswith(others)]
    return sorted(map(str, (*ours, *where.rglob("*"))))


class StoreSuite(ProcessRules):
    """Tests each clause of the contract in `ciel.storage.interface`."""

    # One object's life

    def test_store_has_the_declared_capabilities(self, store: ObjectStore) -> None:
        assert store.capabilities == self.capabilities

    def test_absent_object_is_none_or_an_error(self, store: ObjectStore) -> None:
        assert store.stat("absent") is None
        assert store.delete("absent") is False
        for ask in (store.open, store.checksum, store.verify):
            with pytest.raises(ObjectNotFoundError):
                ask("absent")

    def test_object_is_invisible_until_commit(self, store: ObjectStore, tmp_path: Path) -> None:
        with store.begin("a:out:0") as writer:
            writer.write(b"content")
            assert store.stat("a:out:0") is None
            assert list(store) == []
            assert self.raw_get(tmp_path, "a:out:0") is None
            writer.commit()
        assert list(store) == ["a:out:0"]
        assert self.raw_get(tmp_path, "a:out:0") == b"content"

    def test_raw_object_is_read(self, store: ObjectStore, tmp_path: Path) -> None:
        self.raw_put(tmp_path, "a:out:0", b"content")
        assert store.get("a:out:0") == b"content"
        assert store.checksum("a:out:0") == digest(b"content")

    @pytest.mark.parametrize("size_bytes", SIZES)
    @pytest.mark.parametrize("hinted", [True, False])
    def test_any_size_comes_back_whole(
        self, store: ObjectStore, tmp_path: Path, size_bytes: int, hinted: bool
    ) -> None:
        content = pattern(size_bytes)
        with store.begin("a", size_hint_bytes=size_bytes if hinted else None) as writer:
            for start in range(0, size_bytes, 100_000):
                writer.write(memoryview(content)[start : start + 100_000])
            assert writer.size_bytes == size_bytes
            info = writer.commit()
        assert info == store.stat("a") == ObjectInfo("a", size_bytes, digest(content))
        assert self.raw_get(tmp_path, "a") == content == store.get("a")
        with store.open("a") as reader:
            assert reader.size_bytes == size_bytes
            assert reader.view() == content

    def test_read_is_short_only_at_the_end(self, store: ObjectStore) -> None:
        store.put("a", bytearray(b"0123456789"))
        with store.open("a") as reader:
            assert reader.read(2, 3) == b"234"
            assert reader.read(8, 5) == b"89"
            assert reader.read(10, 5) == reader.read(99, 1) == b""
            buffer = bytearray(b"------------")
            assert reader.read_into(buffer, 4) == 6
            assert buffer == b"456789------"

    def test_hint_larger_than_the_content_leaves_no_trace(self, store: ObjectStore) -> None:
        store.put("a", b"x")
        usage = store.usage()
        with store.begin("b", size_hint_bytes=10 * PAGE_BYTES) as writer:
            writer.write(b"x")
            assert writer.commit().size_bytes == 1
        assert store.usage().used_bytes == 2 * usage.used_bytes

    def test_writer_reads_back_before_commit(self, store: ObjectStore) -> None:
        with store.begin("a") as writer:
            writer.write(b"0123456789")
            assert writer.read(0, 1024) == b"0123456789"
            assert writer.read(8, 5) == b"89"
            writer.write(b"abc")
            writer.commit()
        assert store.get("a") == b"0123456789abc"

    def test_short_content_is_taken_and_nothing_is_left(self, store: ObjectStore) -> None:
        before = store.usage()
        for content in (b"0123456789", b""):
            writer = store.begin("a")
            writer.write(content)
            assert writer.take(10) == content
            with pytest.raises(StoreClosedError):
                writer.commit()
        assert store.stat("a") is None
        assert store.usage() == before

    def test_content_that_is_too_long_is_not_taken(self, store: ObjectStore) -> None:
        with store.begin("a") as writer:
            writer.write(b"0123456789")
            assert writer.take(9) is None
            writer.commit()
        assert store.get("a") == b"0123456789"

    def test_what_was_written_stays_readable_through_a_duplicate(self, store: ObjectStore) -> None:
        for end in ("take", "abort", "commit"):
            writer = store.begin("a")
            fd = os.dup(writer.fileno())
            os.write(fd, b"content")
            if end == "take":
                assert writer.take(10, is_alone=True) == b"content"
            else:
                getattr(writer, end)()
            for number in range(100):  # no later object gets the same memory
                other = store.begin(f"other{number}")
                other.write(b"another")
                other.take(10, is_alone=True)
            assert os.pread(fd, 10, 0) == b"content"
            os.close(fd)

    @needs("nameable")
    def test_a_program_that_is_left_cannot_write_into_another_object(
        self, store: ObjectStore
    ) -> None:
        writer = store.begin("a")
        with open(str(writer.path), "wb", buffering=0) as program:
            program.write(b"content")
            assert writer.take(10) == b"content"
            others = [store.begin(f"other{number}") for number in range(100)]
            program.write(b"late")
        assert {other.read(0, 20) for other in others} == {b""}

    def test_who_only_reads_does_not_put_the_checksum_off(self, store: ObjectStore) -> None:
        with store.begin("a") as writer:
            writer.write(b"content")
            assert os.pread(writer.fileno(to_write=False), 10, 0) == b"content"
            assert writer.commit().checksum == digest(b"content")

    @pytest.mark.parametrize("by_program", [False, True])
    def test_content_that_has_another_checksum_is_not_committed(
        self, store: ObjectStore, by_program: bool
    ) -> None:
        before = store.usage()
        with store.begin("a") as writer:
            if by_program:
                os.write(writer.fileno(), b"content")
            else:
                writer.write(b"content")
            with pytest.raises(CorruptObjectError) as caught:
                writer.commit(checksum=digest(b"contend"))
            assert caught.value.code == "checksum"
            assert store.stat("a") is None
            assert writer.commit(checksum=digest(b"content")).size_bytes == 7
        assert store.checksum("a") == digest(b"content")
        store.delete("a")
        assert store.usage() == before

    def test_reader_survives_delete(self, store: ObjectStore, tmp_path: Path) -> None:
        content = pattern(5 * PAGE_BYTES)
        store.put("a", content)
        with store.open("a") as reader:
            view = reader.view()
            assert store.delete("a") is True
            assert store.stat("a") is None
            assert self.raw_get(tmp_path, "a") is None
            assert reader.read(0, reader.size_bytes) == content
        assert view == content

    def test_view_cannot_be_written(self, store: ObjectStore) -> None:
        store.put("a", b"content")
        with store.open("a") as reader, pytest.raises(TypeError):
            reader.view()[0] = 0

    def test_deleted_id_may_be_written_anew(self, store: ObjectStore) -> None:
        store.put("a", b"one")
        store.delete("a")
        store.put("a", b"other")
        assert store.get("a") == b"other"
        assert store.check() == []

    # Ends that are not commits

    def test_aborted_writer_leaves_nothing(self, store: ObjectStore) -> None:
        before = store.usage()
        writer = store.begin("a", size_hint_bytes=PAGE_BYTES)
        assert store.usage().reserved_bytes > before.reserved_bytes
        writer.write(b"x" * 3 * PAGE_BYTES)
        writer.abort()
        writer.abort()
        assert store.usage() == before
        assert list(store) == []

    def test_dropped_writer_is_aborted(self, store: ObjectStore) -> None:
        before = store.usage()
        store.begin("a", size_hint_bytes=PAGE_BYTES).write(b"x")
        gc.collect()
        assert store.usage() == before

    def test_finished_writer_refuses(self, store: ObjectStore) -> None:
        writer = store.begin("a")
        writer.commit()
        for ask in (writer.commit, lambda: writer.write(b"x"), lambda: writer.size_bytes):
            with pytest.raises(StoreClosedError):
                ask()
        assert store.get("a") == b""

    def test_closed_store_refuses_but_its_readers_live(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        store.put("a", b"content")
        reader, writer = store.open("a"), store.begin("b")
        store.close()
        store.close()
        for ask in (lambda: store.open("a"), lambda: store.begin("c"), store.usage, writer.commit):
            with pytest.raises(StoreClosedError):
                ask()
        with reader:
            assert reader.read(0, 7) == b"content"
        with pytest.raises(StoreClosedError):
            reader.read(0, 7)

    # Racing commits

    def test_second_equal_commit_is_dropped(self, store: ObjectStore) -> None:
        with store.begin("a") as first, store.begin("a") as second:
            for writer in (first, second):
                writer.write(b"content")
            assert first.commit() == second.commit()
        usage = store.usage()
        assert (usage.object_count, usage.reserved_bytes) == (1, 0)

    def test_second_other_commit_is_refused_with_both_checksums(self, store: ObjectStore) -> None:
        store.put("a", b"kept")
        before = store.usage()
        with pytest.raises(ObjectConflictError) as caught:
            store.put("a", b"refused")
        assert caught.value.kept_checksum == digest(b"kept")
        assert caught.value.refused_checksum == digest(b"refused")
        assert store.get("a") == b"kept"
        assert store.usage() == before

    # Names

    def test_hostile_ids_are_refused_and_touch_nothing(
        self, store: ObjectStore, tmp_path: Path
    ) -> None:
        store.put("a", b"content")
        before = snapshot(tmp_path)
        for object_id in hostile_ids(HOSTILE_COUNT):
            for ask in (store.begin, store.open, store.stat, store.delete, store.checksum):
                with pytest.raises(InvalidIdError):
                    ask(object_id)
            with pytest.raises(InvalidIdError):
                store.adopt(object_id, "/etc/passwd", checksum="", size_bytes=0)
        assert snapshot(tmp_path) == before

    def test_every_id_of_the_grammar_is_a_name_of_its_own(self, store: ObjectStore) -> None:
        ids = [f"{first}{rest}" for first in "aA0_" for rest in (":", ".", "-", "_", "::", "%", "")]
        ids = [object_id for object_id in ids if "%" not in object_id] + ["x" * 128]
        for object_id in ids:
            store.put(object_id, object_id.encode())
        assert sorted(store) == sorted(ids)
        assert all(store.get(object_id) == object_id.encode() for object_id in ids)

    # Health and space

    def test_damage_is_found_and_healthy_objects_are_not_blamed(
        self, store: ObjectStore, tmp_path: Path
    ) -> None:
        for index in range(40):
            store.put(f"o{index}", pattern(index * 997 + 1, index))
        assert store.check() == []
        damaged = [f"o{index}" for index in range(0, 40, 3)]
        for object_id in damaged:
            self.raw_damage(tmp_path, object_id)
        found = [problem.place for problem in store.check() if problem.code == "checksum"]
        assert sorted(found) == sorted(damaged)
        with pytest.raises(CorruptObjectError, match="committed as"):
            store.verify("o0")
        assert store.verify("o1").size_bytes == 998

    def test_a_damaged_object_is_replaced_when_it_is_made_again(
        self, store: ObjectStore, tmp_path: Path
    ) -> None:
        content = pattern(5000)
        store.put("a", content)
        before = store.usage()
        self.raw_damage(tmp_path, "a")
        assert store.put("a", content).checksum == digest(content)
        assert store.get("a") == content
        assert store.check() == []
        assert store.usage() == before

    def test_usage_follows_what_is_there(self, store: ObjectStore) -> None:
        empty = store.usage()
        for index in range(5):
            store.put(f"o{index}", pattern(index * 5000))
        usage = store.usage()
        assert usage.object_count == 5
        assert usage.used_bytes - empty.used_bytes >= 50_000
        for index in range(5):
            store.delete(f"o{index}")
        assert store.usage() == empty

    def test_threads_share_a_store(self, store: ObjectStore) -> None:
        def work(thread: int) -> None:
            for index in range(40):
                store.put(f"own{thread}:{index}", pattern(index, thread))
                store.put(f"common:{index}", pattern(index))
                assert store.delete(f"own{thread}:{index}")

        with ThreadPoolExecutor(4) as pool:
            for done in [pool.submit(work, thread) for thread in range(4)]:
                done.result()
        usage = store.usage()
        assert (usage.object_count, usage.reserved_bytes) == (40, 0)
        assert store.check() == []

    @needs("bounded")
    def test_full_store_says_wanted_and_available(self, tmp_path: Path) -> None:
        with self.make_store(tmp_path, capacity_bytes=CAPACITY_BYTES) as store:
            with pytest.raises(NoSpaceError) as caught:
                store.begin("a", size_hint_bytes=CAPACITY_BYTES + 1)
            assert caught.value.wanted_bytes > CAPACITY_BYTES >= caught.value.available_bytes
            with store.begin("a") as writer:
                for _ in range(CAPACITY_BYTES // PAGE_BYTES):
                    writer.write(bytes(PAGE_BYTES))
                with pytest.raises(NoSpaceError):
                    writer.write(b"x")
            assert list(store) == []
            store.put("b", bytes(CAPACITY_BYTES // 2))  # refused writes occupy no space
            with pytest.raises(NoSpaceError):
                store.put("c", bytes(CAPACITY_BYTES))
            store.delete("b")
            store.put("c", bytes(CAPACITY_BYTES))
            assert store.get("c") == bytes(CAPACITY_BYTES)

    @needs("bounded", "nameable")
    def test_what_a_program_writes_is_charged_while_it_writes(self, tmp_path: Path) -> None:
        half_bytes = CAPACITY_BYTES // 2
        with self.make_store(tmp_path, capacity_bytes=CAPACITY_BYTES) as store:
            store.put("there", bytes(half_bytes))
            with store.begin("a") as writer, open(str(writer.path), "wb", buffering=0) as program:
                program.write(bytes(half_bytes))
                writer.account()
                assert store.usage().reserved_bytes == half_bytes
                with pytest.raises(NoSpaceError):
                    store.begin("b", size_hint_bytes=1)
                program.write(b"x")
                with pytest.raises(NoSpaceError) as caught:
                    writer.account()
                wanted_bytes, available_bytes = half_bytes + 1, half_bytes
                assert caught.value.wanted_bytes == wanted_bytes
                assert caught.value.available_bytes == available_bytes
            assert store.usage().reserved_bytes == 0

    # All together

    def test_random_walk_agrees_with_a_dict(self, tmp_path: Path) -> None:
        numbers = count()

        class Walk(StoreWalk):
            def __init__(walk) -> None:  # noqa: N805  # `self` is the suite here
                super().__init__(self.make_store(tmp_path / str(next(numbers))))

        run_state_machine_as_test(
            Walk,
            settings=settings(
                derandomize=True,
                deadline=None,
                database=None,
                max_examples=25,
                stateful_step_count=30,
            ),
        )
