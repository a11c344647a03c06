"""Generators, coroutines and streams."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import ciel
from ciel.executors.programs.python.evaluation import coroutines


def add(one: int, other: int) -> int:
    return one + other


def divide(one: int, other: int) -> float:
    return one / other


@ciel.task
def remote(one: int, other: int) -> float:
    return one / other


remote = remote.options(slots=2)  # so that no program runs it for its parent


# --- generators -----------------------------------------------------------------------------------


def test_the_items_of_a_generator_are_a_list(cluster: Any) -> None:
    def count() -> Iterator[int]:
        yield from range(3)

    def parent() -> Any:
        return list(ciel.spawn(count)), ciel.spawn(sum, ciel.spawn(count)).result()

    assert cluster.call(parent).value == ([0, 1, 2], 3)


def test_a_generator_waits_for_the_futures_that_it_yields(cluster: Any) -> None:
    def total() -> Any:
        one = yield ciel.spawn(add, 1, 2)
        other = yield remote.spawn(8, 2)
        return one + other

    assert cluster.call(total).value == 7.0
    assert cluster.ran == ["remote"]


def test_a_generator_gets_the_exception_of_a_future(cluster: Any) -> None:
    def careful() -> Any:
        try:
            yield ciel.spawn(divide, 1, 0)
        except ZeroDivisionError:
            return "caught"

    def careless() -> Any:
        yield ciel.spawn(divide, 1, 0)

    assert cluster.call(careful).value == "caught"
    _, details = cluster.call(careless).failure
    assert "in careless" in details["text"]


def test_a_generator_that_yields_nothing_has_an_empty_list_or_its_value(cluster: Any) -> None:
    def nothing() -> Iterator[int]:
        yield from ()

    def value() -> Any:
        yield from ()
        return 7

    assert cluster.call(nothing).value == []
    assert cluster.call(value).value == 7


def test_many_generators_may_wait_for_each_other_without_a_stack(cluster: Any) -> None:
    def chain(n: int) -> Any:
        if n == 0:
            return 0
        below = yield ciel.spawn(chain, n - 1)
        return below + 1

    assert cluster.call(chain, 2000).value == 2000
    assert cluster.ran == []


# --- coroutines -----------------------------------------------------------------------------------


def test_a_coroutine_awaits_children(cluster: Any) -> None:
    async def total() -> Any:
        one, other = await asyncio.gather(awaited(add, 1, 2), awaited(add, 3, 4))
        return one + other + await remote.spawn(8, 2)

    async def awaited(function: Any, *args: Any) -> Any:
        return await ciel.spawn(function, *args)

    assert cluster.call(total).value == 14.0
    assert cluster.ran == ["remote"]


def test_a_coroutine_gets_the_exception_of_a_child(cluster: Any) -> None:
    async def careful() -> Any:
        try:
            await ciel.spawn(divide, 1, 0)
        except ZeroDivisionError:
            return "caught"

    async def careless() -> Any:
        await remote.spawn(1, 0)

    assert cluster.call(careful).value == "caught"
    _, details = cluster.call(careless).failure
    assert "in careless" in details["text"]


def test_coroutines_may_be_children(cluster: Any) -> None:
    async def tree(n: int) -> int:
        if n == 0:
            return 1
        one, other = ciel.spawn(tree, n - 1), ciel.spawn(tree, n - 1)
        return int(await one) + int(await other)

    assert cluster.call(tree, 6).value == 64


@pytest.mark.filterwarnings("ignore:asynchronous generator:ResourceWarning")  # of a reused loop
def test_the_items_of_an_asynchronous_generator_are_a_list(cluster: Any) -> None:
    async def count() -> AsyncIterator[int]:
        for number in range(3):
            await asyncio.sleep(0)
            yield number

    assert cluster.call(count).value == [0, 1, 2]


def test_a_timeout_cancels_the_wait_for_a_child(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coroutines, "STAYS_S", 5.0)

    async def impatient() -> str:
        try:
            async with asyncio.timeout(0.05):
                await remote.spawn(8, 2)
        except TimeoutError:
            return "too late"
        return "in time"

    assert cluster.call(impatient).value == "too late"


def test_coroutines_that_are_left_are_cancelled_at_the_end_of_the_task(cluster: Any) -> None:
    ends: list[str] = []

    async def left() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ends.append("cancelled")
            raise

    async def parent() -> str:
        tasks.append(asyncio.ensure_future(left()))
        await asyncio.sleep(0)
        return "done"

    tasks: list[Any] = []
    _kept[0] = parent
    assert cluster.call(run_kept).value == "done"
    assert ends == ["cancelled"]


_kept: dict[int, Any] = {}


def run_kept() -> Any:
    return _kept[0]()


def test_a_function_may_wait_in_a_loop_of_its_own(cluster: Any) -> None:
    cluster.runs_during_timeouts = True

    async def inner() -> Any:
        return await ciel.spawn(add, 1, 2) + await remote.spawn(8, 2)

    def outer() -> Any:
        return asyncio.run(inner())

    assert cluster.call(outer).value == 7.0


# --- streams --------------------------------------------------------------------------------------


def stream_of(cluster: Any, function: Any) -> Any:
    return cluster.call(function, streams=True)


def test_the_items_of_a_stream_are_in_its_file_while_the_task_runs(cluster: Any) -> None:
    def count() -> Any:
        for number in range(3):
            yield "x" * number
        return "end"

    task = stream_of(cluster, count)
    (opened,) = task.channel.named("open_output")
    assert opened["may_stream"] is True
    content = task.channel.files[0].read_bytes()
    assert task.channel.named("close_output") == [{"index": 0, "size": len(content)}]
    assert content.startswith(b"ciel.st1")


def test_a_task_reads_the_stream_of_another_one(cluster: Any) -> None:
    def count() -> Any:
        yield from ([1], [2])

    def parent() -> Any:
        future = ciel.task(count, slots=2).spawn()
        first = ciel.task(first_of, slots=2).spawn(future)
        return first.result(), future.result()

    assert cluster.call(parent).value == ([1], [[1], [2]])


def first_of(items: Iterator[Any]) -> Any:
    return next(items)


def test_a_stream_that_fails_fails_its_task(cluster: Any) -> None:
    def count() -> Any:
        yield 1
        raise ValueError("no")

    def unpicklable() -> Any:
        yield threading.Lock()

    _, details = stream_of(cluster, count).failure
    assert details["text"].endswith("ValueError: no\n")
    _, details = stream_of(cluster, unpicklable).failure
    assert "an item that the task yields: _thread.lock cannot be pickled" in details["text"]


def test_a_stream_cannot_wait_for_other_programs_after_its_first_item(cluster: Any) -> None:
    def count() -> Any:
        yield 1
        yield remote.spawn(8, 2).result()

    _, details = stream_of(cluster, count).failure
    assert "cannot wait for calls that run elsewhere" in details["text"]
