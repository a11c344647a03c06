"""What a Python program keeps at hand from task to task."""

from __future__ import annotations

import pytest

from ciel.executors.programs import python_inputs
from ciel.executors.programs.python_inputs import Kept


def content(size_bytes: int) -> memoryview:
    return memoryview(bytes(size_bytes))


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Kept:
    monkeypatch.setattr(python_inputs, "KEPT_MAX_BYTES", 100)
    return Kept()


def test_what_was_read_stays_as_long_as_its_object(kept: Kept) -> None:
    kept.keep("a", content(40))
    kept.keep_value("a", 0, b"x" * 30)
    assert kept.value("a", 0) == b"x" * 30
    assert kept.value("a", 1) is None
    kept.keep("b", content(40))  # there is no room for both
    assert kept.value("a", 0) is None
    assert kept.find("a") is None
    assert kept.keys() == [[["b"], ""]]
    kept.keep("c", content(60))
    assert [kept.find(each) is None for each in "bc"] == [False, False]


def test_what_was_read_takes_room_too(kept: Kept) -> None:
    for each in "abc":
        kept.keep(each, content(30))
    assert kept.find("a") is not None
    kept.keep_value("c", 0, b"x" * 30)  # the one used longest ago makes room
    kept.keep_value("c", 0, b"again, and not counted")
    assert [kept.find(each) is None for each in "abc"] == [False, True, False]


def test_of_what_is_not_at_hand_nothing_is_kept(kept: Kept) -> None:
    kept.keep_value("a", 0, b"x")
    assert kept.value("a", 0) is None
    kept.keep("a", content(101))
    assert kept.find("a") is None
