"""Checks that the list of planted faults (`.ci/faults`) fits the sources."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
LIST = tomllib.loads((ROOT / "tests/faults/faults.toml").read_text())


def test_the_text_that_each_fault_replaces_occurs_once_in_its_file() -> None:
    wrong = [
        fault["effect"]
        for fault in LIST["fault"]
        if (ROOT / fault["file"]).read_text().count(fault["text"]) != 1
    ]
    assert wrong == []


def test_each_fault_has_an_area_with_unit_tests() -> None:
    paths = [path for area in LIST["areas"].values() for path in area]
    assert {fault["area"] for fault in LIST["fault"]} == LIST["areas"].keys()
    assert [path for path in paths if not (ROOT / path).exists()] == []
