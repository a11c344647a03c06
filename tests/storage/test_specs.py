import os
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciel.storage.errors import StorageError, StoreSpecError
from ciel.storage.specs import check_options, parse_flag, parse_size, parse_spec, share_bytes


@pytest.mark.parametrize(
    "text, name, options",
    [
        ("disk", "disk", {}),
        ("shm:capacity=8GiB", "shm", {"capacity": "8GiB"}),
        ("shm:capacity=1,instance=a-b", "shm", {"capacity": "1", "instance": "a-b"}),
    ],
)
def test_spec_is_a_name_and_options(text: str, name: str, options: dict[str, str]) -> None:
    assert parse_spec(text) == (name, options)


@pytest.mark.parametrize(
    "text", ["", ":", "Disk", "shm:capacity", "shm:=1", "shm:a=", "shm:a=1,,b=2", "shm:a=1,a=2"]
)
def test_malformed_spec_is_refused(text: str) -> None:
    with pytest.raises(StoreSpecError):
        parse_spec(text)


@given(st.text())
def test_any_spec_parses_or_is_refused(text: str) -> None:
    try:
        name, options = parse_spec(text)
    except StoreSpecError:
        return
    assert name
    assert all(options.values())


@pytest.mark.parametrize(
    "text, size_bytes",
    [("1000000", 1_000_000), ("512MiB", 512 * 2**20), ("8GiB", 2**33), ("1TiB", 2**40), ("3B", 3)],
)
def test_size_in_units_of_1024(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize("text", ["", "0", "0GiB", "-1", "8GB", "8 GiB", "1.5GiB", "٣", "9" * 40])
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(StoreSpecError, match="not a size"):
        parse_size(text)


def test_flag_is_yes_or_no() -> None:
    assert parse_flag("yes")
    assert not parse_flag("no")
    with pytest.raises(StoreSpecError):
        parse_flag("true")


def test_unknown_option_names_the_known_ones() -> None:
    with pytest.raises(StoreSpecError, match="capacity, sync"):
        check_options("disk", {"size": "1"}, ("capacity", "sync"))


@pytest.mark.parametrize("name", ["disk", "shm"])
def test_store_is_found_by_name(name: str) -> None:
    (found,) = entry_points(group="ciel.stores", name=name)
    with pytest.raises(StorageError, match="unknown option 'colour'"):
        found.load()({"colour": "red"}, None)


@pytest.mark.requirement("CIB-54")
def test_workers_share_half_of_the_free_space(monkeypatch: pytest.MonkeyPatch) -> None:
    page_bytes, free_pages = 4096, 1 << 20
    device = os.statvfs_result((page_bytes, page_bytes, 1 << 21, 1 << 21, free_pages, *[9] * 5))
    monkeypatch.setattr(os, "statvfs", lambda directory: device)
    assert share_bytes("/any", 1) == free_pages * page_bytes // 2
    assert share_bytes("/any", 4) == free_pages * page_bytes // 8
    assert share_bytes("/any", 1 << 30) == 1 << 20, "a store has at least 1 MiB"


def test_the_share_of_a_directory_that_does_not_exist_is_small(tmp_path: Path) -> None:
    assert share_bytes(str(tmp_path / "absent"), 1) == 1 << 20


def test_a_specification_is_one_line() -> None:
    with pytest.raises(StoreSpecError, match="in one line"):
        parse_spec("shm:spill=/a\n/b")
