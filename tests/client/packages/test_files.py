"""Tests the files that get their names only when they are complete."""

import os
from pathlib import Path

import pytest

from ciel.client.data.files import whole_file


def test_a_file_replaces_the_old_one_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("old")
    with whole_file(path) as file:
        file.write(b"new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["out"]


def test_a_file_that_is_not_completed_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), whole_file(tmp_path / "out") as file:
        file.write(b"half" * (1 // 0))
    assert os.listdir(tmp_path) == []


def test_the_name_before_completion_differs_each_time(tmp_path: Path) -> None:
    """So nobody can prepare a link that a writer would follow."""
    names = set()
    for _ in range(3):
        with whole_file(tmp_path / "out"):
            names |= {name for name in os.listdir(tmp_path) if name != "out"}
    assert len(names) == 3


def test_a_link_of_the_old_name_is_not_followed(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("precious")
    (tmp_path / ".out.partial").symlink_to(precious)
    with whole_file(tmp_path / "out") as file:
        file.write(b"new")
    assert precious.read_text() == "precious"


def test_an_error_names_the_file_and_not_its_name_before_completion(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "out"
    with pytest.raises(FileNotFoundError) as raised, whole_file(path):
        pass
    assert raised.value.filename == str(path)
