"""Tests that every store must pass whose objects are files; they extend `store_suite`.

They access the files directly, and place files among the objects that no store has created.
"""

from __future__ import annotations

import os
import signal
import socket
import stat
from pathlib import Path

import pytest

from ciel.storage.errors import CorruptObjectError, ObjectNotFoundError
from ciel.storage.interface import ObjectStore
from ciel.testing.store_rules import exit_code, needs, start_child
from ciel.testing.store_suite import StoreSuite

STRANGER = 65534
KINDS = ["symlink", "dangling", "fifo", "directory", "socket"]
if os.geteuid() == 0:
    KINDS.append("stranger")  # only root can create a file of another user


def plant(path: Path, kind: str, target: Path) -> None:
    """Create a file of some kind at a path, which no store would create there."""
    if kind == "symlink":
        path.symlink_to(target)
    elif kind == "dangling":
        path.symlink_to(target.with_name("nowhere"))
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        (path / "within").mkdir(parents=True)
    elif kind == "stranger":
        path.touch()
        os.chown(path, STRANGER, STRANGER)
    else:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))


class DirectoryStoreSuite(StoreSuite):
    """Tests the contract of stores that keep each object in a file."""

    def raw_path(self, where: Path, object_id: str) -> Path:
        """Return the path of an object's file, which may not exist."""
        raise NotImplementedError

    def raw_temporaries(self, where: Path) -> list[Path]:
        """Return the files that the open writers of all processes write."""
        raise NotImplementedError

    def raw_get(self, where: Path, object_id: str) -> bytes | None:
        try:
            return self.raw_path(where, object_id).read_bytes()
        except FileNotFoundError:
            return None

    def raw_put(self, where: Path, object_id: str, content: bytes) -> None:
        path = self.raw_path(where, object_id)
        path.write_bytes(content)
        path.chmod(0o400)

    def raw_damage(self, where: Path, object_id: str) -> None:
        path = self.raw_path(where, object_id)
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 4
        path.chmod(0o600)
        path.write_bytes(content)
        path.chmod(0o400)

    @pytest.mark.parametrize("kind", KINDS)
    def test_planted_thing_counts_as_missing_and_gives_way(
        self, store: ObjectStore, tmp_path: Path, kind: str
    ) -> None:
        target = tmp_path / "target"
        target.write_bytes(b"not ours")
        plant(self.raw_path(tmp_path, "a"), kind, target)
        assert store.stat("a") is None
        assert store.delete("a") is False
        assert list(store) == []
        with pytest.raises(ObjectNotFoundError):
            store.open("a")
        assert [(problem.code, problem.place) for problem in store.check()] == [("foreign", "a")]
        store.put("a", b"content")
        assert self.raw_get(tmp_path, "a") == b"content"
        assert target.read_bytes() == b"not ours"
        assert store.check() == []

    def test_committed_file_is_read_only_and_private(
        self, store: ObjectStore, tmp_path: Path
    ) -> None:
        store.put("a", b"content")
        path = self.raw_path(tmp_path, "a")
        assert stat.S_IMODE(path.stat().st_mode) == 0o400
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        path.chmod(0o600)
        assert [problem.code for problem in store.check()] == ["writable"]

    def test_only_temporaries_of_the_dead_are_swept(
        self, store: ObjectStore, tmp_path: Path
    ) -> None:
        def die() -> None:
            theirs = self.make_store(tmp_path)
            theirs.begin("theirs").write(b"lost")
            keep = theirs.begin("kept")
            keep.write(b"lost")
            os.kill(os.getpid(), signal.SIGKILL)

        with store.begin("ours") as writer:
            writer.write(b"ours")
            assert exit_code(start_child(die)) == -signal.SIGKILL
            assert len(self.raw_temporaries(tmp_path)) == 2
            with self.make_store(tmp_path):
                assert len(self.raw_temporaries(tmp_path)) == 1
            writer.commit()
        assert store.get("ours") == b"ours"
        assert self.raw_temporaries(tmp_path) == []

    # Outputs of programs that are taken instead of committed

    @needs("nameable")
    def test_what_a_program_wrote_is_taken_and_the_next_begins_empty(
        self, store: ObjectStore, tmp_path: Path
    ) -> None:
        for content in (b"0123456789", b"abc", b""):
            writer = store.begin("a")
            path = writer.path
            assert path is not None
            with open(path, "ab") as file:  # so that bytes of an earlier file would show
                file.write(content)
            assert writer.take(10) == content
        with store.begin("b") as writer:
            writer.write(b"xyz")
            writer.commit()
        assert store.get("b") == b"xyz"
        assert list(store) == ["b"]

    @needs("nameable")
    def test_a_file_that_a_program_replaced_is_taken_and_not_used_again(
        self, store: ObjectStore, tmp_path: Path
    ) -> None:
        writer = store.begin("a")
        assert writer.path is not None
        aside = Path(writer.path).with_name("aside")
        aside.write_bytes(b"other")
        aside.replace(writer.path)
        assert writer.take(10) == b"other"
        assert self.raw_temporaries(tmp_path) == []

    @needs("nameable")
    def test_a_file_that_has_a_second_name_is_not_used_again(
        self, store: ObjectStore, tmp_path: Path
    ) -> None:
        writer = store.begin("a")
        assert writer.path is not None
        second = Path(writer.path).with_name("second")
        os.link(writer.path, second)
        try:
            content = writer.take(10)
        except CorruptObjectError:  # a store may refuse it, but not hand it out again
            writer.abort()
        else:
            assert content == b""
        second.unlink()
        assert self.raw_temporaries(tmp_path) == []
