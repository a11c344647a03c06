"""Tests that a file of another store becomes an object of this store completely or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ciel.storage.errors import CannotAdoptError, CorruptObjectError, NoSpaceError
from ciel.storage.files import FileStore, open_disk
from ciel.storage.sharing import PeerObject, copy_in, link
from ciel.testing.store_rules import digest

CONTENT = bytes(range(256)) * 12_000  # three pieces


@pytest.fixture
def own(tmp_path: Path) -> Iterator[FileStore]:
    with open_disk({"capacity": "8MiB"}, tmp_path / "own") as store:
        yield store
        assert [*(tmp_path / "own/incoming").glob("*/*")] == []


def committed(tmp_path: Path, content: bytes = CONTENT) -> PeerObject:
    """Return a file that another store has committed."""
    path = tmp_path / "other"
    path.write_bytes(content)
    path.chmod(0o400)
    return PeerObject(str(path), len(content), digest(content))


def test_a_link_shares_the_file_and_a_copy_does_not(own: FileStore, tmp_path: Path) -> None:
    found = committed(tmp_path)
    assert link(own, "linked", found) is not None
    assert copy_in(own, "copied", found).size_bytes == len(CONTENT)
    for name, is_same in (("linked", True), ("copied", False)):
        with own.open(name) as reader:
            assert os.path.samefile(reader.path, found.path) is is_same
            assert reader.read(0, len(CONTENT)) == CONTENT
            assert own.stat(name) is not None
    assert own.checksum("copied") == found.checksum


def test_an_empty_object_is_copied(own: FileStore, tmp_path: Path) -> None:
    assert copy_in(own, "x", committed(tmp_path, b"")).size_bytes == 0
    assert own.get("x") == b""


def test_a_deleted_file_is_neither_linked_nor_copied(own: FileStore, tmp_path: Path) -> None:
    gone = PeerObject(str(tmp_path / "gone"), 5, "abc")
    for take in (link, copy_in):
        with pytest.raises(CannotAdoptError):
            take(own, "x", gone)


def test_a_file_that_is_not_committed_is_not_copied(own: FileStore, tmp_path: Path) -> None:
    found = committed(tmp_path)
    os.chmod(found.path, 0o600)
    with pytest.raises(CannotAdoptError, match="not a committed file"):
        copy_in(own, "x", found)
    os.mkfifo(tmp_path / "fifo", 0o400)
    with pytest.raises(CannotAdoptError, match="not a committed file"):
        copy_in(own, "x", found._replace(path=str(tmp_path / "fifo")))
    (tmp_path / "symlink").symlink_to(found.path)
    with pytest.raises(CannotAdoptError):
        copy_in(own, "x", found._replace(path=str(tmp_path / "symlink")))
    assert [*own] == []


def test_a_file_with_another_size_or_checksum_is_refused(own: FileStore, tmp_path: Path) -> None:
    found = committed(tmp_path)
    with pytest.raises(CannotAdoptError, match="not 7"):
        copy_in(own, "x", found._replace(size_bytes=7))
    with pytest.raises(CorruptObjectError):
        copy_in(own, "x", found._replace(checksum="0" * 16))
    assert [*own] == []
    assert own.usage().reserved_bytes == 0


def test_a_copy_without_room_or_cancelled_leaves_nothing(own: FileStore, tmp_path: Path) -> None:
    found = committed(tmp_path)
    with pytest.raises(CannotAdoptError, match="was cancelled"):
        copy_in(own, "x", found, is_cancelled=lambda: True)
    own.put("y", bytes(6 * 2**20))
    with pytest.raises(NoSpaceError):
        copy_in(own, "x", found)
    assert [*own] == ["y"]
    assert own.usage().reserved_bytes == 0
