"""Waiting for several futures, also when Ctrl-C interrupts it."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, FIRST_EXCEPTION
from contextlib import suppress
from typing import Any, cast

import pytest

from ciel.client.calls.futures import ClientFuture
from ciel.client.calls.waiting import as_completed, wait

WITHIN_S = 20.0
ROUNDS = 150


def futures(count: int) -> list[ClientFuture[Any]]:
    return [ClientFuture(cast(Any, None), f"number {number}") for number in range(count)]


def interrupt() -> None:
    """Do as Ctrl-C does, from another thread."""
    main = threading.main_thread().ident
    assert main is not None
    signal.pthread_kill(main, signal.SIGINT)


def settle(made: Sequence[ClientFuture[Any]]) -> None:
    for future in made:
        if not future.done():
            future.set_result(future.name)


def settle_in_thread(made: Sequence[ClientFuture[Any]]) -> None:
    """Settle futures as the connection does: a lock that is still held would block it for ever."""
    thread = threading.Thread(target=settle, args=(made,), daemon=True)
    thread.start()
    thread.join(WITHIN_S)
    assert not thread.is_alive()


def wait_again_and_again(made: Sequence[ClientFuture[Any]], timer: threading.Timer) -> None:
    timer.start()
    while timer.is_alive():
        wait(made, 0.0, ALL_COMPLETED)


@pytest.mark.parametrize("return_when, expected", [
    (FIRST_COMPLETED, {0}), (FIRST_EXCEPTION, {0, 1}), (ALL_COMPLETED, {0, 1, 2}),
])  # fmt: skip
def test_it_waits_until_enough_are_done(return_when: str, expected: set[int]) -> None:
    made = futures(3)
    steps: list[Callable[[], object]] = [
        lambda: made[0].set_result(0),
        lambda: made[1].set_exception(ValueError()),
        lambda: made[2].set_result(2),
    ]
    found: list[set[ClientFuture[Any]]] = []
    thread = threading.Thread(target=lambda: found.append(wait(made, WITHIN_S, return_when)))
    thread.start()
    while not all(future._waiters for future in made):
        time.sleep(0.001)
    for step in steps[: len(expected)]:
        assert not found
        step()
    thread.join(WITHIN_S)
    assert found == [{made[number] for number in expected}]
    assert not any(future._waiters for future in made)


def test_no_futures_are_enough() -> None:
    assert wait([], None, ALL_COMPLETED) == set()
    assert list(as_completed([], None)) == []


def test_those_that_are_not_done_in_time_are_counted() -> None:
    made = futures(3)
    made[1].set_result(1)
    assert wait(made, 0.0, ALL_COMPLETED) == {made[1]}
    left = as_completed(made, 0.0)
    assert next(left) is made[1]
    with pytest.raises(TimeoutError, match=r"2 \(of 3\) futures unfinished"):
        next(left)
    assert not any(future._waiters for future in made)


def test_an_interrupted_wait_leaves_nothing_in_the_futures() -> None:
    made = futures(2)
    threading.Timer(0.05, interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        wait(made, WITHIN_S, ALL_COMPLETED)
    assert not any(future._waiters for future in made)
    settle_in_thread(made)


@pytest.mark.slow
def test_interrupts_at_any_moment_leave_no_lock_acquired() -> None:
    chance = random.Random(5)
    for _ in range(ROUNDS):
        made = futures(20)
        timer = threading.Timer(chance.uniform(0.0, 0.002), interrupt)
        with suppress(KeyboardInterrupt):  # it is lost if it arrives in a `__del__`
            wait_again_and_again(made, timer)
        timer.join()
        settle_in_thread(made)
