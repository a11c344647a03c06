from typing import Any

import pytest

from ciel.cli.commands.store import render_stats
from ciel.cli.output.tables import size_text

LEVEL: dict[str, Any] = {
    "worker": "w1", "netloc": "127.0.0.1:1", "name": "memory", "capacity_bytes": 4 << 30,
    "used_bytes": 1 << 30, "reserved_bytes": 512 << 20, "objects": 12, "readers": 2, "writers": 1,
    "evicted": 3, "evicted_bytes": 5 << 20, "dropped": 4, "promoted": 6, "spilled": 0, "waited": 7,
    "copied_bytes": 0, "disk_waiting": 8,
}  # fmt: skip


def test_a_store_has_a_row_for_each_level() -> None:
    disk = {**LEVEL, "name": "disk", "capacity_bytes": None, "evicted": 0, "spilled": 9}
    lines = render_stats([LEVEL, disk]).split("\n")
    assert [line.split() for line in lines] == [
        ["WORKER", "LEVEL", "CAPACITY", "USED", "COMMITTED", "OPEN", "EVICTED", "DROPPED",
         "LOADED", "SPILLED", "WAITED", "COPIED", "JOBS"],
        ["w1", "memory", "4GiB", "1.5GiB", "12", "2+1", "3", "(5MiB)", "4", "6", "0", "7", "0",
         "8"],
        ["w1", "disk", "1.5GiB", "12", "2+1", "0", "4", "6", "9", "7", "0", "8"],
    ]  # fmt: skip


def test_where_nothing_was_told_it_says_so() -> None:
    assert render_stats([]) == "no worker has reported its store yet"


@pytest.mark.parametrize(
    "size_bytes, text",
    [
        (0, "0"), (1, "1B"), (1023, "1023B"), (1024, "1KiB"), (1536, "1.5KiB"),
        (1024**2 - 1, "1MiB"), (8 * 1024**3, "8GiB"), (1024**6, "1024PiB"),
    ],
)  # fmt: skip
def test_a_size_is_written_with_its_unit(size_bytes: int, text: str) -> None:
    assert size_text(size_bytes) == text
