"""Tests Python tasks that do not block while they wait: coroutines, and generators whose items
other tasks read.

The functions here are sent with their code: no program of a task can import this file.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

import ciel
from ciel.testing.homes import wait_for

cloudpickle.register_pickle_by_value(sys.modules[__name__])
WITHIN_S = 30


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ciel.Client]:
    with (
        ciel.LocalCluster(workers=1, slots=2, directory=tmp_path_factory.mktemp("two")) as cluster,
        ciel.Client(cluster) as client,
    ):
        yield client


@ciel.task
def square(number: int) -> int:
    return number * number


@ciel.task
def slow_square(number: int) -> int:
    time.sleep(0.2)
    return number * number


@ciel.task
def raises(kind: type[Exception]) -> None:
    raise kind("as it is")


@ciel.task
async def square_later(number: int) -> int:
    return number * number


def value_of(client: ciel.Client, function: Any) -> Any:
    return client.submit(function).result(WITHIN_S)


def values_of(results: Iterator[Any]) -> list[Any]:
    return list(results)


# --- coroutines -----------------------------------------------------------------------------------


@ciel.task
async def in_a_loop() -> Any:
    async def late(number: int) -> int:
        await asyncio.sleep(0.01 * number)
        return await square.spawn(number)

    beside = asyncio.create_task(late(3))
    async with asyncio.timeout(10):
        several = await asyncio.gather(
            *[late(n) for n in range(3)], square.spawn(9), asyncio.to_thread(sum, [1, 2])
        )
    return several, await beside


def test_asyncio_works_in_coroutines(client: ciel.Client) -> None:
    assert value_of(client, in_a_loop) == ([0, 1, 4, 81, 3], 9)


@ciel.task
async def talks_to_itself() -> bytes:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readline() + str(await square.spawn(4)).encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"asked ")
        writer.write_eof()
        found = await reader.read()
        writer.close()
        await writer.wait_closed()
    return found


def test_a_coroutine_may_talk_over_sockets(client: ciel.Client) -> None:
    assert value_of(client, talks_to_itself) == b"asked 16"


@ciel.task
async def waits_elsewhere() -> Any:
    ticks: list[int] = []

    async def tick() -> None:
        while True:
            await asyncio.sleep(0.01)
            ticks.append(1)

    ticking = asyncio.create_task(tick())
    value = await slow_square.options(retries=1).spawn(3)
    ticking.cancel()
    return value, len(ticks) > 2


def test_other_coroutines_go_on_while_one_waits_for_a_task(client: ciel.Client) -> None:
    assert value_of(client, waits_elsewhere) == (9, True)


@ciel.task
async def tree(depth: int) -> int:
    if not depth:
        return 1
    one: Any = tree.spawn(depth - 1)
    other: Any = tree.spawn(depth - 1)
    return int(await one + await other + 1)


@ciel.task
async def blocks_in_a_loop() -> Any:
    def blocking() -> Any:
        return tree.spawn(4).result()

    return blocking(), await tree.spawn(4)


def test_a_coroutine_may_block_as_functions_do(client: ciel.Client) -> None:
    assert value_of(client, blocks_in_a_loop) == (31, 31)


@ciel.task
def pause(seconds: float) -> None:
    time.sleep(seconds)


async def one_by_one(pauses_s: list[float]) -> None:
    for seconds in pauses_s:
        await pause.spawn(seconds)


@ciel.task(slots=2)  # all slots: the children run in the process of the task
async def has_limit(limit_s: float, pauses_s: list[float], *, waits_for: bool) -> tuple[str, bool]:
    begun_s = time.monotonic()
    try:
        if waits_for:
            await asyncio.wait_for(one_by_one(pauses_s), limit_s)
        else:
            async with asyncio.timeout(limit_s):
                await one_by_one(pauses_s)
    except TimeoutError:
        return "late", time.monotonic() - begun_s < sum(pauses_s)
    return "in time", time.monotonic() - begun_s < limit_s


@pytest.mark.parametrize("waits_for", [False, True], ids=["timeout", "wait_for"])
def test_a_time_limit_takes_effect_between_children_that_run_inline(
    client: ciel.Client, *, waits_for: bool
) -> None:
    def found(limit_s: float, pauses_s: list[float]) -> tuple[str, bool]:
        return client.submit(has_limit, limit_s, pauses_s, waits_for=waits_for).result(WITHIN_S)

    assert found(0.1, [0.05] * 40) == ("late", True)
    assert found(0.1, [0.5])[0] == "late"  # it cannot take effect before that child has ended
    assert found(WITHIN_S, [0.001] * 100) == ("in time", True)


@ciel.task
async def leaves_coroutines() -> str:
    async def stubborn() -> None:
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                continue

    kept = [asyncio.create_task(asyncio.sleep(60)), asyncio.create_task(stubborn())]
    await asyncio.sleep(0)
    return f"{len(kept)} left"


def test_abandoned_coroutines_do_not_delay_the_result(client: ciel.Client) -> None:
    assert value_of(client, leaves_coroutines) == "2 left"
    assert value_of(client, awaits_failure) == "as it is"


@ciel.task
async def awaits_failure() -> str:
    try:
        await raises.spawn(LookupError)
    except LookupError as error:
        return str(error)
    return ""


def test_awaiting_raises_the_exception_of_the_child(client: ciel.Client) -> None:
    assert value_of(client, awaits_failure) == "as it is"


@ciel.task
async def counts_up(count: int) -> Any:
    for number in range(count):
        await asyncio.sleep(0)
        yield number


def test_an_asynchronous_generator_yields_items(client: ciel.Client) -> None:
    assert list(client.submit(counts_up, 3).result(WITHIN_S)) == [0, 1, 2]


# --- streams --------------------------------------------------------------------------------------


@ciel.task
def items(count: int) -> Iterator[int]:
    yield from range(count)


@ciel.task
def consume(stream: Iterator[int]) -> int:
    return next(stream) * 1000 + sum(stream)


@ciel.task
def items_within(count: int) -> int:
    return ciel.call(consume, items.spawn(count))


def test_items_are_read_by_an_iterator(client: ciel.Client) -> None:
    assert client.submit(consume, client.submit(items, 4)).result(WITHIN_S) == 6
    assert client.submit(items_within, 4).result(WITHIN_S) == 6


@ciel.task
def items_when_told(paths: list[str]) -> Iterator[int]:
    for number, path in enumerate(paths):
        yield number
        wait_for(Path(path).exists, path)


@ciel.task
def tells(stream: Iterator[int], paths: list[str]) -> list[int]:
    seen = []
    for number in stream:
        seen.append(number)
        Path(paths[number]).touch()
    return seen


def test_a_consumer_reads_items_while_they_are_produced(
    client: ciel.Client, tmp_path: Path
) -> None:
    for number in range(20):  # the reader may start before, while and after the stream is announced
        paths = [str(tmp_path / f"seen{number}-{n}") for n in range(3)]
        made = client.submit(items_when_told, paths)  # continues when its items were read
        assert client.submit(tells, made, paths).result(WITHIN_S) == [0, 1, 2]


@ciel.task
def breaks_off() -> Iterator[int]:
    yield 1
    raise LookupError("in the middle")


def test_a_stream_that_breaks_off_fails_its_readers(client: ciel.Client) -> None:
    made = client.submit(breaks_off)
    with pytest.raises(LookupError, match="in the middle"):
        client.submit(consume, made).result(WITHIN_S)


@ciel.task
def both(one: Iterator[int], other: Iterator[int]) -> list[list[int]]:
    return [list(one), list(other)]


@ciel.task
def both_within(count: int) -> list[list[int]]:
    made = items.spawn(count)
    return ciel.call(both, made, other=made)


def test_a_stream_passed_twice_is_read_twice(client: ciel.Client) -> None:
    made = client.submit(items, 3)
    for _ in range(2):  # while it is produced, and when it is complete
        assert client.submit(both, made, made).result(WITHIN_S) == [[0, 1, 2]] * 2
        assert client.submit(both, made, other=made).result(WITHIN_S) == [[0, 1, 2]] * 2
    assert client.submit(both_within, 3).result(WITHIN_S) == [[0, 1, 2]] * 2
    mapped = values_of(client.map(both, [made, made], [made, made], chunksize=2))
    assert mapped == [[[0, 1, 2]] * 2] * 2


@ciel.task
def maps_within(function: Any) -> Any:
    with ciel.Executor() as executor:
        return list(executor.map(function, [1, 2], chunksize=2))


def test_the_elements_of_a_map_may_yield_or_be_awaited(client: ciel.Client) -> None:
    assert values_of(client.map(items, [1, 2])) == [[0], [0, 1]]
    assert values_of(client.map(items, [1, 2], chunksize=1)) == [[0], [0, 1]]
    with ciel.Executor(max_workers=1, client=client) as executor:
        assert values_of(executor.map(items, [1, 2])) == [[0], [0, 1]]
    assert client.submit(maps_within, items).result(WITHIN_S) == [[0], [0, 1]]
    assert client.submit(maps_within, square_later).result(WITHIN_S) == [1, 4]


# --- yielded futures ------------------------------------------------------------------------------


@ciel.task
def waits_and_yields(count: int) -> Any:
    found = yield square.spawn(count)
    for number in range(count):
        yield found + number
        yield square.spawn(number)


def test_a_yielded_future_is_awaited_and_is_not_an_item(client: ciel.Client) -> None:
    assert client.submit(waits_and_yields, 2).result(WITHIN_S) == [4, 5]
    assert list(client.map(waits_and_yields, [1, 2])) == [[1], [4, 5]]


@ciel.task
def waits_for_all(count: int) -> Any:
    total = 0
    for number in range(count):
        total += yield square.spawn(number)
    yield nothing.spawn()
    return total or None


@ciel.task
def nothing() -> None:
    pass


def test_a_generator_may_wait_for_futures_and_return_something(client: ciel.Client) -> None:
    assert client.submit(waits_for_all, 4).result(WITHIN_S) == 14
    assert list(client.map(waits_for_all, [2, 3])) == [1, 5]


@ciel.task
def only_waits() -> Any:
    yield nothing.spawn()


def test_a_generator_that_only_waits_may_return_none(client: ciel.Client) -> None:
    assert value_of(client, only_waits) is None


# --- waiting while the output is open -------------------------------------------------------------


@ciel.task
def yields_and_waits(options: dict[str, Any]) -> Any:
    yield 1
    yield square.options(**options).spawn(3).result()


def test_a_task_that_has_yielded_runs_its_children_itself(client: ciel.Client) -> None:
    assert client.submit(yields_and_waits, {}).result(WITHIN_S) == [1, 9]


def test_a_task_that_has_yielded_cannot_wait_for_tasks_of_other_processes(
    client: ciel.Client,
) -> None:
    with pytest.raises(
        RuntimeError, match="yielded an item cannot wait for calls that run elsewhere"
    ):
        client.submit(yields_and_waits, {"retries": 1}).result(WITHIN_S)


@ciel.task(retries=1)
def yields_and_waits_again(path: str) -> Any:
    yield 1
    if not Path(path).exists():
        Path(path).touch()
        os._exit(1)
    yield square.spawn(3).result()


def test_a_second_attempt_runs_its_children_itself_too(client: ciel.Client, tmp_path: Path) -> None:
    made = client.submit(yields_and_waits_again, str(tmp_path / "begun"))
    assert made.result(WITHIN_S) == [1, 9]
