"""Tests the reactor of daemons alone: each test runs its iterations by hand."""
# ruff: noqa: N802

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from ciel.net.iteration import SHORT_WAITS_MIN
from ciel.net.loop import Loop
from ciel.net.ticks import PauseGauge, Ticks


@pytest.fixture
def loop() -> Iterator[Any]:
    loop: Any = Loop()
    yield loop
    loop.removeAll()
    loop.waker.connectionLost(None)  # closes two descriptors
    loop._poller.close()


class Reading:
    """Reads one byte at a time from a private pipe, and records each read."""

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


def test_calls_at_the_end_run_after_all_ready_readers_were_served(
    loop: Any, first: Reading, second: Reading, noted: list[str]
) -> None:
    ticks = Ticks(loop)
    for reading in (first, second):
        taken = reading.doRead

        def served(taken: Any = taken) -> None:
            taken()
            ticks.at_end(lambda: noted.append("end"))

        reading.doRead = served  # type: ignore[method-assign]  # records the read, too
        os.write(reading.writes, b"x")
    loop.doIteration(0)
    assert sorted(noted[:2]) == ["first", "second"]
    assert noted[2:] == ["end", "end"]


def test_a_call_due_soon_runs_before_a_wait_and_shortens_it(loop: Any, noted: list[str]) -> None:
    loop.soon(lambda: noted.append("soon"))
    assert loop.timeout() == 0
    loop.doIteration(30)  # longer than a test may take
    assert noted == ["soon"]
    assert loop.timeout() is None


def test_a_call_that_reschedules_itself_does_not_starve_readers(
    loop: Any, first: Reading, noted: list[str]
) -> None:
    ticks = Ticks(loop)

    def again() -> None:
        noted.append("again")
        ticks.at_end(again)

    ticks.at_end(again)
    os.write(first.writes, b"x")
    loop.doIteration(None)
    assert "first" in noted
    assert noted.count("again") <= 2


def test_flush_ends_an_iteration_early(loop: Any, noted: list[str]) -> None:
    ticks = Ticks(loop)
    ticks.at_end(lambda: noted.append("end"))
    ticks.flush()
    assert noted == ["end"]
    loop.doIteration(0)
    assert noted == ["end"]
    ticks.at_end(lambda: noted.append("another"))
    loop.doIteration(0)
    assert noted == ["end", "another"]


@pytest.fixture
def waits(loop: Any, first: Reading) -> Iterator[list[float]]:
    """Record the time-out of each wait of the loop."""
    poller, noted = loop._poller, []

    def poll(timeout_s: float, count: int) -> Any:
        noted.append(timeout_s)
        return poller.poll(timeout_s, count)

    loop._poller = SimpleNamespace(poll=poll)
    yield noted
    loop._poller = poller


def test_a_loop_with_short_waits_polls_before_it_sleeps(
    loop: Any, first: Reading, noted: list[str], waits: list[float]
) -> None:
    loop.poll_for_s = 0.02
    for _ in range(SHORT_WAITS_MIN):  # each wait ends at once
        os.write(first.writes, b"x")
        loop.doIteration(5)
    assert waits == [5] * SHORT_WAITS_MIN
    waits.clear()
    os.write(first.writes, b"x")
    loop.doIteration(5)
    assert waits == [0]
    assert noted == ["first"] * (SHORT_WAITS_MIN + 1)
    waits.clear()
    loop.doIteration(0.03)  # polls in vain
    assert set(waits[:-1]) == {0}
    assert waits[-1] == pytest.approx(0.01)
    waits.clear()
    loop.doIteration(0.03)
    assert waits == [0.03]  # it has stopped polling


def test_polling_does_not_delay_a_timer(loop: Any, first: Reading, waits: list[float]) -> None:
    loop.poll_for_s = 0.02
    for _ in range(SHORT_WAITS_MIN):
        os.write(first.writes, b"x")
        loop.doIteration(5)
    waits.clear()
    loop.doIteration(0.001)
    assert waits == [0.001]


def test_a_loop_sleeps_unless_polling_is_enabled(
    loop: Any, first: Reading, waits: list[float]
) -> None:
    for _ in range(2 * SHORT_WAITS_MIN):
        os.write(first.writes, b"x")
        loop.doIteration(5)
    assert set(waits) == {5}


def test_other_calls_run_after_one_that_raised(loop: Any, noted: list[str]) -> None:
    loop.soon(lambda: 1 // 0)
    loop.soon(lambda: noted.append("soon"))
    loop.doIteration(0)
    assert noted == ["soon"]


def test_a_reader_removed_by_an_earlier_one_is_not_served(
    loop: Any, first: Reading, second: Reading, noted: list[str]
) -> None:
    def read() -> None:
        noted.append("read")
        loop.removeReader(first)
        loop.removeReader(second)

    for reading in (first, second):
        reading.doRead = read  # type: ignore[method-assign]  # whichever is served first
        os.write(reading.writes, b"x")
    loop.doIteration(0)
    assert noted == ["read"]


def test_an_event_of_a_closed_file_is_not_for_another_one_with_its_number(
    loop: Any, first: Reading, second: Reading, noted: list[str]
) -> None:
    replacements: list[Reading] = []

    def replace(reading: Reading, other: Reading) -> None:
        """Read `reading`; the first time, close the other one and reuse its descriptor."""
        os.read(reading.fileno(), 1)
        noted.append(reading.name)
        if not replacements:
            number = other.fileno()
            loop.removeReader(other)
            os.dup2(replacement_fd, number)  # closes it
            replacement = Reading.__new__(Reading)
            replacement._descriptor, replacement.name = number, "replacement"
            replacement._noted, replacement._loop = noted, loop
            loop.addReader(replacement)
            replacements.append(replacement)

    replacement_fd, writes = os.pipe()
    first.doRead = lambda: replace(first, second)  # type: ignore[method-assign]  # it reads another one, too
    second.doRead = lambda: replace(second, first)  # type: ignore[method-assign]  # it reads another one, too
    for reading in (first, second):
        os.write(reading.writes, b"x")
    loop.doIteration(0)
    assert noted in (["first"], ["second"])
    os.write(writes, b"y")
    loop.doIteration(0)
    assert noted[1:] == ["replacement"]
    for descriptor in (replacement_fd, writes):
        os.close(descriptor)


def test_timers_work_as_in_other_reactors(loop: Any, noted: list[str]) -> None:
    loop.callLater(0, noted.append, "timer")
    assert loop.timeout() == 0
    loop.runUntilCurrent()
    assert noted == ["timer"]


def test_the_loop_measures_its_work_and_not_its_waits(
    loop: Any, first: Reading, noted: list[str]
) -> None:
    gauge = PauseGauge()
    loop.measure(gauge)
    loop.soon(lambda: time.sleep(0.1))
    loop.doIteration(0)
    loop.doIteration(1.0)
    loop.doIteration(0)
    assert 0.1 <= gauge.longest_s < 1.0
