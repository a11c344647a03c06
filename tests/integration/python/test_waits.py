"""Tests Python tasks that wait for other tasks and for timers: a waiting task holds no slot, so
that the awaited tasks can run in its slot.

The functions here are sent with their code: no program of a task can import this file.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any
from unittest import mock

import cloudpickle
import pytest

import ciel

cloudpickle.register_pickle_by_value(sys.modules[__name__])
WITHIN_S = 30


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ciel.Client]:
    """Connect a client to a cluster with a single slot: a task that waits in it blocks all
    others.
    """
    with (
        ciel.LocalCluster(workers=1, slots=1, directory=tmp_path_factory.mktemp("one")) as cluster,
        ciel.Client(cluster) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ciel.Client]:
    with (
        ciel.LocalCluster(workers=1, slots=3, directory=tmp_path_factory.mktemp("wide")) as cluster,
        ciel.Client(cluster) as client,
    ):
        yield client


@ciel.task(retries=1)
def elsewhere(rest_s: float = 0.0) -> str:
    """Runs as a separate task in another slot, because it has options."""
    time.sleep(rest_s)
    return "done"


# --- coroutines -----------------------------------------------------------------------------------


@ciel.task
async def with_a_heartbeat(pause_s: float) -> Any:
    beats = 0

    async def beat() -> None:
        nonlocal beats
        while True:
            await asyncio.sleep(pause_s)
            beats += 1

    beating = asyncio.create_task(beat())
    value = await elsewhere.spawn(0.5)
    before = beats
    await asyncio.sleep(2.5 * pause_s)
    beating.cancel()
    return value, before > 0, beats > before


@pytest.mark.parametrize("pause_s", [0.005, 0.2])
def test_a_child_gets_the_slot_of_a_coroutine_that_has_a_timer(
    client: ciel.Client, pause_s: float
) -> None:
    assert client.submit(with_a_heartbeat, pause_s).result(WITHIN_S) == ("done", True, True)


@ciel.task
async def in_time(limit_s: float, rest_s: float) -> str:
    try:
        async with asyncio.timeout(limit_s):
            return await elsewhere.spawn(rest_s)
    except TimeoutError:
        return "too late"


def test_a_timeout_of_asyncio_is_long_enough_for_a_child_that_needs_the_slot(
    client: ciel.Client,
) -> None:
    assert client.submit(in_time, 20, 0.1).result(WITHIN_S) == "done"


@pytest.mark.slow
def test_a_timeout_of_asyncio_ends_the_wait_for_a_child(wide: ciel.Client) -> None:
    begun_s = time.monotonic()
    assert wide.submit(in_time, 1.0, 8.0).result(WITHIN_S) == "too late"
    assert 1.0 <= time.monotonic() - begun_s < 6


@ciel.task
async def asks_again() -> int:
    future, count = elsewhere.spawn(0.3), 0
    while not future.done():
        count += 1
        try:
            await asyncio.wait_for(asyncio.shield(asyncio.ensure_future(awaited(future))), 0.05)
        except TimeoutError:
            pass
    return count


async def awaited(future: Any) -> Any:
    return await future


def test_a_task_that_polls_a_child_leaves_its_slot(client: ciel.Client) -> None:
    assert client.submit(asks_again).result(WITHIN_S) > 1


@ciel.task
async def listens() -> tuple[str, bytes]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    reading = asyncio.ensure_future(asyncio.get_running_loop().sock_recv(ours, 10))
    value = await elsewhere.spawn(0.1)
    theirs.send(b"hello")
    heard = await reading
    ours.close()
    theirs.close()
    return value, heard


def test_a_child_gets_the_slot_of_a_coroutine_that_reads_a_socket(client: ciel.Client) -> None:
    assert client.submit(listens).result(WITHIN_S) == ("done", b"hello")


# --- time-outs in functions -----------------------------------------------------------------------


@ciel.task
def slow(rest_s: float) -> str:
    time.sleep(rest_s)
    return f"after {rest_s} s"


@ciel.task
def waits(limit_s: float, rest_s: float) -> list[str]:
    future, told = slow.spawn(rest_s), []
    try:
        told.append(future.result(timeout=limit_s))
    except TimeoutError:
        told.append("not yet")
    told.append(future.result())
    return told


@pytest.mark.slow
def test_a_result_is_waited_for_no_longer_than_its_timeout(wide: ciel.Client) -> None:
    assert wide.submit(waits, 0.2, 1.5).result(WITHIN_S) == ["not yet", "after 1.5 s"]
    begun_s = time.monotonic()
    assert wide.submit(waits, 20, 0.1).result(WITHIN_S) == ["after 0.1 s"] * 2
    assert time.monotonic() - begun_s < 10, "nobody waits for a timer that nobody needs"


@pytest.mark.parametrize("limit_s", [float("inf"), threading.TIMEOUT_MAX])
def test_a_timeout_may_be_longer_than_any_clock(wide: ciel.Client, limit_s: float) -> None:
    assert wide.submit(waits, limit_s, 0.1).result(WITHIN_S) == ["after 0.1 s"] * 2


def test_the_timeout_of_a_high_priority_task_is_not_queued_behind_others(wide: ciel.Client) -> None:
    @ciel.task
    def patience() -> float:
        future, begun_s = slow.spawn(20.0), time.monotonic()
        with contextlib.suppress(TimeoutError):
            future.result(timeout=0.5)
        return time.monotonic() - begun_s

    waiting = wide.submit(patience.options(priority=9))
    line = [wide.submit(ciel.task(priority=5)(slow), 0.3) for _ in range(40)]
    assert waiting.result(WITHIN_S) < 3
    wide.cancel(line)


@pytest.mark.slow
def test_a_coroutine_is_woken_by_its_threads_while_it_waits(wide: ciel.Client) -> None:
    @ciel.task
    async def first_of_two() -> float:
        begun_s = time.monotonic()
        child = asyncio.ensure_future(awaited(elsewhere.spawn(8.0)))
        thread = asyncio.ensure_future(asyncio.to_thread(time.sleep, 1.5))
        clock = asyncio.ensure_future(asyncio.sleep(20))
        await asyncio.wait({child, thread, clock}, return_when=asyncio.FIRST_COMPLETED)
        clock.cancel()
        child.cancel()
        return time.monotonic() - begun_s

    assert wide.submit(first_of_two).result(WITHIN_S) < 5


@pytest.mark.slow
def test_a_coroutine_that_threads_may_wake_is_in_its_slot_half_of_the_time(
    wide: ciel.Client,
) -> None:
    @ciel.task
    async def departures() -> int:
        from ciel.executors.programs.python.evaluation.sharing import Sharing

        count, wait = 0, Sharing.wait

        def counted(*args: Any, **options: Any) -> Any:
            nonlocal count
            count += 1
            return wait(*args, **options)

        with mock.patch.object(Sharing, "wait", counted):
            thread = asyncio.ensure_future(asyncio.to_thread(time.sleep, 4))
            await elsewhere.spawn(3.0)
            thread.cancel()
        return count

    # The coroutine stays in its slot for 0.5 s, leaves it for 0.25 s, and so on for 3 s; a slow
    # machine does so less often.
    assert 1 <= wide.submit(departures).result(WITHIN_S) <= 5


def test_a_child_with_a_timeout_gets_the_slot_of_its_parent(client: ciel.Client) -> None:
    assert client.submit(waits, 20, 0.1).result(WITHIN_S) == ["after 0.1 s"] * 2


@ciel.task
def sees_which(limit_s: float) -> Any:
    futures = [slow.spawn(rest_s) for rest_s in (0.05, 0.1, 6.0)]
    done, left = ciel.wait(futures, timeout=limit_s)
    first = sorted(future.result() for future in done)
    raised = False
    try:
        for _ in ciel.as_completed(left, timeout=0.1):
            pass
    except TimeoutError:
        raised = True
    try:
        futures[2].exception(timeout=0.1)
    except TimeoutError:
        return first, len(left), raised
    return "it did not take that long"


@pytest.mark.slow
def test_wait_returns_the_finished_futures_when_its_time_is_over(wide: ciel.Client) -> None:
    found = wide.submit(sees_which, 1.5).result(WITHIN_S)
    assert found == (["after 0.05 s", "after 0.1 s"], 1, True)


def test_many_unused_timeouts_do_not_delay_a_task(client: ciel.Client) -> None:
    @ciel.task
    def asks(count: int) -> int:
        return sum(elsewhere.spawn().result(timeout=60) == "done" for _ in range(count))

    begun_s = time.monotonic()
    assert client.submit(asks, 30).result(WITHIN_S) == 30
    assert time.monotonic() - begun_s < 20
