"""What a Python program keeps at hand from task to task."""

from __future__ import annotations

import os

import pytest

from ciel.executors.programs.python.objects import inputs
from ciel.executors.programs.python.objects.inputs import Kept, Stored


def stored(size_bytes: int) -> Stored:
    file = os.memfd_create("stored")
    os.truncate(file, size_bytes)
    return Stored(file, size_bytes)


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Kept:
    monkeypatch.setattr(inputs, "KEPT_MAX_BYTES", 100)
    return Kept()


def test_what_was_read_stays_as_long_as_its_object(kept: Kept) -> None:
    kept.keep("a", stored(40))
    kept.keep_value("a", 0, b"x" * 30)
    assert kept.value("a", 0) == b"x" * 30
    assert kept.value("a", 1) is None
    kept.keep("b", stored(40))  # there is no room for both
    assert kept.value("a", 0) is None
    assert kept.find("a") is None
    assert kept.keys() == [[["b"], ""]]
    kept.keep("c", stored(60))
    assert [kept.find(each) is None for each in "bc"] == [False, False]


def test_what_was_read_takes_room_too(kept: Kept) -> None:
    for each in "abc":
        kept.keep(each, stored(30))
    assert kept.find("a") is not None
    kept.keep_value("c", 0, b"x" * 30)  # the one used longest ago makes room
    kept.keep_value("c", 0, b"again, and not counted")
    assert [kept.find(each) is None for each in "abc"] == [False, True, False]


def test_of_what_is_not_at_hand_nothing_is_kept(kept: Kept) -> None:
    kept.keep_value("a", 0, b"x")
    assert kept.value("a", 0) is None
    kept.keep("a", stored(101))
    assert kept.find("a") is None


def test_e1_a_part_may_be_written_to_and_the_object_stays_as_it_is() -> None:
    kept = stored(1 << 23)
    for offset in (0, 4097, 1 << 22):
        part = kept.part(8192, offset)
        part[:3] = b"own"
        assert bytes(part[:4]) == b"own\0"
    large = kept.part((1 << 23) - 100, 100)
    large[-1] = 1
    assert not any(kept.content)
