"""Inputs that a Python program keeps from task to task."""

from __future__ import annotations

import os

import pytest

from ciel.executors.programs.python.objects import inputs
from ciel.executors.programs.python.objects.inputs import Cache, Stored


def stored(size_bytes: int) -> Stored:
    file = os.memfd_create("stored")
    os.truncate(file, size_bytes)
    return Stored(file, size_bytes)


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch) -> Cache:
    monkeypatch.setattr(inputs, "CACHED_MAX_BYTES", 100)
    return Cache()


def test_what_was_read_stays_as_long_as_its_object(cache: Cache) -> None:
    cache.keep("a", stored(40))
    cache.keep_value("a", 0, b"x" * 30)
    assert cache.value("a", 0) == b"x" * 30
    assert cache.value("a", 1) is None
    cache.keep("b", stored(40))  # the two do not fit
    assert cache.value("a", 0) is None
    assert cache.find("a") is None
    assert cache.keys() == [[["b"], ""]]
    cache.keep("c", stored(60))
    assert [cache.find(each) is None for each in "bc"] == [False, False]


def test_what_was_read_takes_room_too(cache: Cache) -> None:
    for each in "abc":
        cache.keep(each, stored(30))
    assert cache.find("a") is not None
    cache.keep_value("c", 0, b"x" * 30)  # the one used longest ago makes room
    cache.keep_value("c", 0, b"again, and not counted")
    assert [cache.find(each) is None for each in "abc"] == [False, True, False]


def test_of_what_is_not_at_hand_nothing_is_kept(cache: Cache) -> None:
    cache.keep_value("a", 0, b"x")
    assert cache.value("a", 0) is None
    cache.keep("a", stored(101))
    assert cache.find("a") is None


def test_a_part_may_be_written_to_and_the_object_stays_as_it_is() -> None:
    whole = stored(1 << 23)
    for offset in (0, 4097, 1 << 22):
        part = whole.part(8192, offset)
        part[:3] = b"own"
        assert bytes(part[:4]) == b"own\0"
    large = whole.part((1 << 23) - 100, 100)
    large[-1] = 1
    assert not any(whole.content)
