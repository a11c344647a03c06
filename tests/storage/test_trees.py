"""Tests directories that are deeper than the recursion limit, and whose paths are too long."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ciel.storage.trees import bytes_below, entries_below, remove_tree

DEPTH = 5000  # its path is longer than the 4,096 bytes that a path may have


def make_deep(top: Path, depth: int = DEPTH) -> None:
    top.mkdir()
    fd = os.open(top, os.O_RDONLY)
    for _ in range(depth):
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
        os.mkdir("d", dir_fd=fd)
        below = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)


@pytest.mark.slow
def test_a_deep_tree_is_measured_and_removed(tmp_path: Path) -> None:
    make_deep(tmp_path / "top")
    before = len(os.listdir("/proc/self/fd"))
    assert sum(1 for _ in entries_below(tmp_path / "top")) == 2 * DEPTH
    assert bytes_below(tmp_path / "top") >= 2 * DEPTH * 512
    remove_tree(tmp_path / "top")
    assert list(tmp_path.iterdir()) == []
    # other descriptors may be collected meanwhile
    assert len(os.listdir("/proc/self/fd")) <= before


def test_each_directory_comes_after_its_entries(tmp_path: Path) -> None:
    for name in ("a/b/c", "a/x", "y"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "f").touch()
    seen = [entry.name for entry in entries_below(tmp_path)]
    assert sorted(seen) == sorted(["a", "b", "c", "x", "y", "f", "f", "f"])
    assert seen.index("c") < seen.index("b") < seen.index("a")


def test_links_are_removed_and_not_followed(tmp_path: Path) -> None:
    outside, top = tmp_path / "outside", tmp_path / "top"
    outside.mkdir()
    (outside / "kept").touch()
    top.mkdir()
    (top / "link").symlink_to(outside)
    remove_tree(top)
    assert [path.name for path in outside.iterdir()] == ["kept"]
    assert not top.exists()


def test_directories_without_permissions_are_removed(tmp_path: Path) -> None:
    closed = tmp_path / "top" / "closed"
    closed.mkdir(parents=True)
    (closed / "file").touch()
    closed.chmod(0)
    remove_tree(tmp_path / "top")
    assert list(tmp_path.iterdir()) == []
