"""Tests the log of recent events: their numbers, its bounds, and requests that wait for events."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.task import Clock

from ciel.worker import events
from ciel.worker.events import ANSWERED_AT_ONCE, WAIT_S, Events


def test_events_have_numbers_from_zero() -> None:
    log = Events(Clock())
    for name in "abc":
        log.note("brought", name)
    assert log.count == 3
    found = log.between(1, 99)
    assert [(e["number"], e["event"], e["object"]) for e in found] == [
        (1, "brought", "b"),
        (2, "brought", "c"),
    ]
    assert log.between(1, 1) == found[:1]
    assert log.between(3, 99) == log.between(2, 1) == []


def test_only_the_latest_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "KEPT_MAX", 10)
    log = Events(Clock())
    for number in range(25):
        log.note("brought", str(number))
    assert [e["number"] for e in log.between(0, 99)] == list(range(15, 25))
    assert log.between(15, 15)[0]["object"] == "15"


def test_who_waits_is_told_of_the_next_event() -> None:
    clock = Clock()
    log = Events(clock)
    told: list[int] = []
    log.more_than(0).addCallback(lambda _: told.append(log.count))
    assert told == []
    log.note("brought", "x")
    clock.advance(0)
    assert told == [1]
    log.more_than(0).addCallback(lambda _: told.append(log.count))
    assert told == [1, 1]


def test_who_waits_hears_in_time_that_there_is_no_more() -> None:
    clock = Clock()
    log = Events(clock)
    told: list[None] = []
    log.more_than(0).addCallback(told.append)
    clock.advance(WAIT_S)
    assert told == [None]
    log.note("brought", "x")
    assert clock.getDelayedCalls() == []


class Turning(Clock):
    """Counts how often it has scheduled a call for the next tick."""

    turns = 0

    def callLater(self, delay: float, callable: Any, *args: Any, **kw: Any) -> Any:  # noqa: N802  # Twisted's
        self.turns += not delay
        return super().callLater(delay, callable, *args, **kw)


def test_many_who_wait_are_told_in_several_turns() -> None:
    clock = Turning()
    log = Events(clock)
    told: list[int] = []
    for _ in range(2 * ANSWERED_AT_ONCE + 1):
        log.more_than(0).addCallback(lambda _: told.append(clock.turns))
    log.note("brought", "x")
    clock.advance(0)
    assert [told.count(turn) for turn in (1, 2, 3)] == [ANSWERED_AT_ONCE, ANSWERED_AT_ONCE, 1]


def test_who_leaves_is_told_nothing() -> None:
    clock = Clock()
    log = Events(clock)
    waiting = log.more_than(0)
    waiting.addErrback(lambda failure: None)
    waiting.cancel()
    log.note("brought", "x")
    assert clock.getDelayedCalls() == []
