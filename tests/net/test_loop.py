"""The reactor of our daemons, alone: each test turns it by hand."""
# ruff: noqa: N802

from __future__ import annotations

import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from ciel.net.loop import Loop
from ciel.net.rounds import SHORT_WAITS_MIN
from ciel.net.turns import Turns


@pytest.fixture
def loop() -> Iterator[Any]:
    loop: Any = Loop()
    yield loop
    loop.removeAll()
    loop.waker.connectionLost(None)  # which holds two descriptors
    loop._poller.close()


class Reading:
    """Reads one byte at a time from a pipe of its own, and notes that."""

    def __init__(self, loop: Any, noted: list[str], name: str) -> None:
        self._descriptor, self.writes = os.pipe()
        self._loop = loop
        self._noted = noted
        self.name = name
        loop.addReader(self)

    def fileno(self) -> int:
        return self._descriptor

    def logPrefix(self) -> str:
        return self.name

    def doRead(self) -> None:
        os.read(self._descriptor, 1)
        self._noted.append(self.name)

    def connectionLost(self, reason: Any) -> None:
        self._noted.append(f"{self.name} lost: {reason.type.__name__}")

    def close(self) -> None:
        self._loop.removeReader(self)
        os.close(self._descriptor)
        os.close(self.writes)


@pytest.fixture
def noted() -> list[str]:
    return []


@pytest.fixture
def first(loop: Any, noted: list[str]) -> Iterator[Reading]:
    reading = Reading(loop, noted, "first")
    yield reading
    reading.close()


@pytest.fixture
def second(loop: Any, noted: list[str]) -> Iterator[Reading]:
    reading = Reading(loop, noted, "second")
    yield reading
    reading.close()


def test_a_turn_ends_once_all_is_served_that_is_ready(
    loop: Any, first: Reading, second: Reading, noted: list[str]
) -> None:
    turns = Turns(loop)
    for reading in (first, second):
        taken = reading.doRead

        def served(taken: Any = taken) -> None:
            taken()
            turns.at_end(lambda: noted.append("end"))

        reading.doRead = served  # type: ignore[method-assign]  # what it does is noted, too
        os.write(reading.writes, b"x")
    loop.doIteration(0)
    assert sorted(noted[:2]) == ["first", "second"]
    assert noted[2:] == ["end", "end"]


def test_what_is_due_soon_is_done_before_a_wait_and_shortens_it(
    loop: Any, noted: list[str]
) -> None:
    loop.soon(lambda: noted.append("soon"))
    assert loop.timeout() == 0
    loop.doIteration(30)  # as long as no test may take
    assert noted == ["soon"]
    assert loop.timeout() is None


def test_what_asks_for_itself_leaves_others_their_turn(
    loop: Any, first: Reading, noted: list[str]
) -> None:
    turns = Turns(loop)

    def again() -> None:
        noted.append("again")
        turns.at_end(again)

    turns.at_end(again)
    os.write(first.writes, b"x")
    loop.doIteration(None)
    assert "first" in noted
    assert noted.count("again") <= 2


def test_a_turn_may_be_ended_by_hand(loop: Any, noted: list[str]) -> None:
    turns = Turns(loop)
    turns.at_end(lambda: noted.append("end"))
    turns.flush()
    assert noted == ["end"]
    loop.doIteration(0)
    assert noted == ["end"]
    turns.at_end(lambda: noted.append("another"))
    loop.doIteration(0)
    assert noted == ["end", "another"]


@pytest.fixture
def waits(loop: Any, first: Reading) -> Iterator[list[float]]:
    """How long each wait of the loop may last, as they come."""
    poller, noted = loop._poller, []

    def poll(timeout_s: float, count: int) -> Any:
        noted.append(timeout_s)
        return poller.poll(timeout_s, count)

    loop._poller = SimpleNamespace(poll=poll)
    yield noted
    loop._poller = poller


def test_who_waits_shortly_looks_before_it_sleeps(
    loop: Any, first: Reading, noted: list[str], waits: list[float]
) -> None:
    loop.look_s = 0.02
    for _ in range(SHORT_WAITS_MIN):  # something is there at once
        os.write(first.writes, b"x")
        loop.doIteration(5)
    assert waits == [5] * SHORT_WAITS_MIN
    waits.clear()
    os.write(first.writes, b"x")
    loop.doIteration(5)
    assert waits == [0]
    assert noted == ["first"] * (SHORT_WAITS_MIN + 1)
    waits.clear()
    loop.doIteration(0.03)  # looks in vain
    assert set(waits[:-1]) == {0}
    assert waits[-1] == pytest.approx(0.01)
    waits.clear()
    loop.doIteration(0.03)
    assert waits == [0.03]  # it begins anew


def test_who_looks_is_not_late_for_a_timer(loop: Any, first: Reading, waits: list[float]) -> None:
    loop.look_s = 0.02
    for _ in range(SHORT_WAITS_MIN):
        os.write(first.writes, b"x")
        loop.doIteration(5)
    waits.clear()
    loop.doIteration(0.001)
    assert waits == [0.001]


def test_who_is_not_told_to_look_sleeps(loop: Any, first: Reading, waits: list[float]) -> None:
    for _ in range(2 * SHORT_WAITS_MIN):
        os.write(first.writes, b"x")
        loop.doIteration(5)
    assert set(waits) == {5}


def test_a_failing_call_keeps_no_other_from_running(loop: Any, noted: list[str]) -> None:
    loop.soon(lambda: 1 // 0)
    loop.soon(lambda: noted.append("soon"))
    loop.doIteration(0)
    assert noted == ["soon"]


def test_who_was_closed_by_one_before_it_is_not_served(
    loop: Any, first: Reading, second: Reading, noted: list[str]
) -> None:
    def read() -> None:
        noted.append("read")
        loop.removeReader(first)
        loop.removeReader(second)

    for reading in (first, second):
        reading.doRead = read  # type: ignore[method-assign]  # whoever comes first
        os.write(reading.writes, b"x")
    loop.doIteration(0)
    assert noted == ["read"]


def test_timers_are_as_they_were(loop: Any, noted: list[str]) -> None:
    loop.callLater(0, noted.append, "timer")
    assert loop.timeout() == 0
    loop.runUntilCurrent()
    assert noted == ["timer"]
