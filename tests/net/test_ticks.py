import importlib
import time
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.task import Clock

import ciel
from ciel.net.ticks import SEND, START, Ticks, use_monotonic_clock


def test_a_call_runs_once_at_the_end_of_the_tick() -> None:
    clock, ran = Clock(), []
    ticks = Ticks(clock)
    first, second = (lambda: ran.append("first")), (lambda: ran.append("second"))
    for call in (first, second, first):
        ticks.at_end(call)
    assert ran == []
    clock.advance(0)
    assert ran == ["first", "second"]
    clock.advance(1)
    assert ran == ["first", "second"]


def test_calls_scheduled_at_the_end_run_in_the_same_tick() -> None:
    clock, ran = Clock(), []
    ticks = Ticks(clock)

    def send() -> None:
        ran.append("send")

    def decide() -> None:
        ran.append("decide")
        ticks.at_end(send)

    ticks.at_end(decide)
    clock.advance(0)
    assert ran == ["decide", "send"]


def test_decisions_run_before_starts_and_starts_before_reports() -> None:
    clock, ran = Clock(), []
    ticks = Ticks(clock)

    def start() -> None:
        ran.append("start")

    def decide() -> None:
        ran.append("decide")
        ticks.at_end(start, START)

    ticks.at_end(lambda: ran.append("tell"), SEND)
    ticks.at_end(decide)
    clock.advance(0)
    assert ran == ["decide", "start", "tell"]


def test_a_call_that_schedules_itself_waits_for_the_next_tick() -> None:
    clock, ran = Clock(), []
    ticks = Ticks(clock)

    def again() -> None:
        ran.append("ran")
        ticks.at_end(again)

    ticks.at_end(again)
    for turn in (1, 2):
        ticks.flush()
        assert ran == ["ran"] * turn
    assert len(clock.getDelayedCalls()) == 1


def test_other_calls_run_after_one_that_raised() -> None:
    clock, ran = Clock(), []
    ticks = Ticks(clock)

    def fail() -> None:
        raise RuntimeError("on purpose")

    ticks.at_end(fail)
    ticks.at_end(lambda: ran.append("ran"))
    clock.advance(0)
    assert ran == ["ran"]
    ticks.at_end(lambda: ran.append("and again"))
    clock.advance(0)
    assert ran == ["ran", "and again"]


def test_flush_ends_the_tick_now_and_only_once() -> None:
    clock, ran = Clock(), []
    ticks = Ticks(clock)
    ticks.flush()
    ticks.at_end(lambda: ran.append("ran"))
    ticks.flush()
    assert ran == ["ran"]
    assert clock.getDelayedCalls() == []


def test_a_reactor_is_put_on_the_monotonic_clock(in_reactor: Any) -> None:
    use_monotonic_clock(in_reactor.reactor)
    before = time.monotonic()
    call = in_reactor(in_reactor.reactor.callLater, 5, print)
    assert before <= call.getTime() - 5 <= time.monotonic()
    in_reactor(call.cancel)


SOURCES = Path(ciel.__file__).parent
LOGGING = [path for path in SOURCES.rglob("*.py") if "og = Logger(" in path.read_text()]


@pytest.mark.parametrize("path", LOGGING, ids=lambda path: str(path.relative_to(SOURCES)))
def test_a_log_is_named_after_its_module(path: Path) -> None:
    name = ".".join(["ciel", *path.relative_to(SOURCES).with_suffix("").parts])
    module = importlib.import_module(name)
    log = getattr(module, "log", None) or module._log
    assert log.namespace == name
