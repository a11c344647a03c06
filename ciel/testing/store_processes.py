"""The tests of `StoreSuite` in which programs and several processes use the store."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from ciel.storage.errors import (
    CannotAdoptError,
    CorruptObjectError,
    ObjectConflictError,
    ObjectNotFoundError,
)
from ciel.storage.interface import ObjectInfo, ObjectStore
from ciel.testing.store_rules import (
    PAGE_BYTES,
    StoreRules,
    digest,
    exit_code,
    needs,
    pattern,
    start_child,
)

READER_ROUNDS = 100


class ProcessRules(StoreRules):
    """Tests of programs that write files, of adopted objects, and of several processes."""

    # Programs that write by name

    @needs("nameable")
    @pytest.mark.parametrize(
        "script", ['printf content > "$1"', 'printf content > "$1.new" && mv "$1.new" "$1"']
    )
    def test_what_a_program_wrote_is_committed(self, store: ObjectStore, script: str) -> None:
        with store.begin("a", size_hint_bytes=3 * PAGE_BYTES) as writer:
            subprocess.run(["sh", "-c", script, "sh", str(writer.path)], check=True)
            assert writer.size_bytes == 7
            assert writer.read(0, 1024) == b"content"
            info = writer.commit()
        assert info.size_bytes == 7
        assert store.checksum("a") == digest(b"content")
        assert store.stat("a") == ObjectInfo("a", 7, digest(b"content"))
        with store.open("a") as reader:
            assert subprocess.check_output(["cat", str(reader.path)]) == b"content"

    @needs("nameable")
    @pytest.mark.parametrize(
        "script",
        [
            'rm "$1"',
            'ln -sf /etc/passwd "$1"',
            'rm "$1" && mkfifo "$1"',
            'rm "$1" && mkdir "$1"',
            'ln "$1" "$1.second"',
        ],
    )
    def test_what_is_no_file_of_ours_is_not_committed(
        self, store: ObjectStore, script: str
    ) -> None:
        before = store.usage()
        with store.begin("a") as writer:
            subprocess.run(["sh", "-c", script, "sh", str(writer.path)], check=True)
            with pytest.raises(CorruptObjectError, match="output"):
                writer.commit()
        assert store.stat("a") is None
        assert store.usage() == before

    @needs("nameable")
    def test_object_is_adopted_from_a_store_on_the_same_device(
        self, store: ObjectStore, tmp_path: Path
    ) -> None:
        with self.make_store(tmp_path / "other") as other:
            described = other.put("a", b"content")
            with other.open("a") as reader:
                path = str(reader.source)
            info = store.adopt("b", path, checksum=digest(b"content"), size_bytes=7)
            again = store.adopt("b", path, checksum=digest(b"content"), size_bytes=7)
            assert info == again == ObjectInfo("b", described.size_bytes, described.checksum)
            for checksum, size_bytes in ((digest(b"x"), 7), (digest(b"content"), 8)):
                with pytest.raises(CannotAdoptError):
                    store.adopt("c", path, checksum=checksum, size_bytes=size_bytes)
            other.delete("a")
            assert store.stat("b") == info
            with pytest.raises(CannotAdoptError, match=r"missing|does not exist"):
                store.adopt("c", path, checksum=digest(b"content"), size_bytes=7)
        assert list(store) == ["b"]
        assert store.get("b") == b"content"
        assert (store.usage().object_count, store.usage().reserved_bytes) == (1, 0)

    @needs("nameable")
    def test_file_that_was_never_committed_is_not_adopted(
        self, store: ObjectStore, tmp_path: Path
    ) -> None:
        with store.begin("a") as writer:
            writer.write(b"content")
            path = str(writer.path)
            for candidate in (path, os.path.dirname(path), "/dev/null", "/etc/passwd"):
                with pytest.raises(CannotAdoptError):
                    store.adopt("b", candidate, checksum=digest(b"content"), size_bytes=7)
        assert list(store) == []

    # Several processes

    @needs("shared_between_processes")
    def test_processes_see_one_another(self, store: ObjectStore, tmp_path: Path) -> None:
        store.put("ours", b"ours")

        def other() -> None:
            with self.make_store(tmp_path) as theirs:
                assert theirs.get("ours") == b"ours"
                theirs.put("theirs", b"theirs")
                assert theirs.delete("ours")

        assert exit_code(start_child(other)) == 0
        assert list(store) == ["theirs"]
        assert store.get("theirs") == b"theirs"

    @needs("shared_between_processes")
    def test_one_of_racing_processes_wins(self, store: ObjectStore, tmp_path: Path) -> None:
        def race(seed: int) -> None:
            with self.make_store(tmp_path) as theirs:
                for index in range(50):
                    theirs.put(f"same{index}", b"same")
                    with suppress(ObjectConflictError):
                        theirs.put(f"other{index}", pattern(100, seed))

        children = [start_child(partial(race, seed)) for seed in range(3)]
        assert [exit_code(pid) for pid in children] == [0, 0, 0]
        assert len(list(store)) == 100
        assert store.check() == []

    @needs("shared_between_processes")
    def test_readers_never_see_a_deleter(self, store: ObjectStore, tmp_path: Path) -> None:
        content = pattern(8 * PAGE_BYTES)
        parent = os.getpid()

        def read() -> None:
            with self.make_store(tmp_path) as theirs:
                while theirs.stat("done") is None and os.getppid() == parent:
                    try:
                        with theirs.open("a") as reader:
                            assert reader.view() == content
                    except ObjectNotFoundError:
                        continue

        children = [start_child(read) for _ in range(2)]
        for _ in range(READER_ROUNDS):
            store.put("a", content)
            store.delete("a")
        store.put("done", b"")
        assert [exit_code(pid) for pid in children] == [0, 0]

    @needs("shared_between_processes")
    def test_forked_copy_of_a_writer_owns_nothing(self, store: ObjectStore) -> None:
        with store.begin("a") as writer:
            writer.write(b"content")
            assert exit_code(start_child(writer.abort)) == 0
            writer.commit()
        assert store.get("a") == b"content"

    @needs("shared_between_processes", "bounded")
    def test_space_that_another_process_freed_is_found(self, tmp_path: Path) -> None:
        def free() -> None:
            with self.make_store(tmp_path, capacity_bytes=16 * PAGE_BYTES) as theirs:
                assert theirs.delete("a")

        with self.make_store(tmp_path, capacity_bytes=16 * PAGE_BYTES) as store:
            store.put("a", bytes(12 * PAGE_BYTES))
            assert exit_code(start_child(free)) == 0
            store.put("b", bytes(12 * PAGE_BYTES))
            assert store.usage().object_count == 1

    @needs("shared_between_processes")
    def test_killed_writer_leaves_nothing(self, tmp_path: Path) -> None:
        def die() -> None:
            store = self.make_store(tmp_path)
            writer = store.begin("a", size_hint_bytes=4 * PAGE_BYTES)
            writer.write(pattern(3 * PAGE_BYTES))
            os.kill(os.getpid(), signal.SIGKILL)

        with self.make_store(tmp_path / "empty") as empty:
            expected = empty.usage()
        assert exit_code(start_child(die)) == -signal.SIGKILL
        with self.make_store(tmp_path) as store:
            assert list(store) == []
            assert self.raw_get(tmp_path, "a") is None
            usage = store.usage()
            assert (usage.used_bytes, usage.reserved_bytes) == (expected.used_bytes, 0)
