"""Tests futures in unusual places: within values, cancelled before they are passed on, and of other
clients.

The functions here are sent with their code: no program of a task can import this file.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle
import pytest

import ciel
from ciel.client.errors import CallbackWaitError, ForeignFutureError
from ciel.testing.homes import wait_for

cloudpickle.register_pickle_by_value(sys.modules[__name__])
WITHIN_S = 20
CANCELLED = concurrent.futures.CancelledError


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ciel.LocalCluster]:
    with ciel.LocalCluster(workers=1, slots=2, directory=tmp_path_factory.mktemp("two")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def client(cluster: ciel.LocalCluster) -> Iterator[ciel.Client]:
    with ciel.Client(cluster) as client:
        yield client


@pytest.fixture
def other(cluster: ciel.LocalCluster) -> Iterator[ciel.Client]:
    """Connect another client to the same cluster."""
    with ciel.Client(cluster) as client:
        yield client


# --- futures within values ------------------------------------------------------------------------


def made(number: int) -> Any:
    """Return a future of a child that is done."""
    child = ciel.spawn(abs, number)
    child.result()
    return {"f": child}


def made_large(number: int) -> Any:
    child = ciel.spawn(lambda size_bytes: bytes(size_bytes), number)
    ciel.wait([child])
    return {"f": child}


def made_elsewhere(number: int) -> Any:
    child = abs_alone.spawn(number)
    child.result()
    return {"f": child}


@ciel.task(retries=1)
def abs_alone(number: int) -> int:
    return abs(number)


@ciel.task
def hands_on(number: int) -> Any:
    return abs_alone.spawn(number)


def handed_on(number: int) -> Any:
    child = hands_on.spawn(number)
    child.result()
    return {"f": child}


def stored(number: int) -> Any:
    return {"f": ciel.put(abs(number))}


def passed_on(value: Any) -> Any:
    return value


def awaited(future: Any) -> Any:
    async def wait() -> Any:
        async with asyncio.timeout(WITHIN_S):
            return await future

    return asyncio.run(wait())


def called_back(future: Any) -> Any:
    is_called = threading.Event()
    future.add_done_callback(lambda _: is_called.set())
    assert is_called.wait(WITHIN_S)
    return future.result(0)


def polled(future: Any) -> Any:
    wait_for(future.done, "the future", WITHIN_S)
    return future.result(0)


def without_exception(future: Any) -> Any:
    assert future.exception(WITHIN_S) is None
    return future.result(0)


def waited_for(future: Any) -> Any:
    assert ciel.wait([future], timeout=WITHIN_S) == ({future}, set())
    return future.result(0)


WAYS = [
    lambda future: future.result(WITHIN_S),
    without_exception,
    polled,
    called_back,
    awaited,
    waited_for,
    lambda future: next(iter(ciel.as_completed([future], timeout=WITHIN_S))).result(0),
    lambda future: ciel.spawn(passed_on, future).result(WITHIN_S),
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("parent", [made, made_elsewhere, handed_on, stored])
def test_a_future_that_was_done_when_it_arrived_is_done(
    client: ciel.Client, parent: Callable[[int], Any], way: Callable[[Any], Any]
) -> None:
    value = client.submit(parent, -3).result(WITHIN_S)
    assert way(value["f"]) == 3
    again = client.submit(passed_on, client.submit(parent, -4)).result(WITHIN_S)
    assert way(again["f"]) == 4


@pytest.mark.parametrize("size_bytes", [5_000, 1_000_000])
def test_a_future_of_a_large_value_that_was_done_is_done(
    client: ciel.Client, size_bytes: int
) -> None:
    value = client.submit(made_large, size_bytes).result(WITHIN_S)
    assert value["f"].result(WITHIN_S) == bytes(size_bytes)


def test_the_sets_that_wait_returns_may_be_returned(client: ciel.Client) -> None:
    def first_done() -> Any:
        return ciel.wait([ciel.spawn(abs, -n) for n in range(3)], return_when="FIRST_COMPLETED")

    done, rest = client.submit(first_done).result(WITHIN_S)
    assert sorted(client.gather([*done, *rest])) == [0, 1, 2]


def test_a_future_of_a_generator_within_a_value_gives_its_items(client: ciel.Client) -> None:
    def items() -> Iterator[int]:
        yield from range(3)

    value = client.submit(lambda: {"f": ciel.spawn(items)}).result(WITHIN_S)
    assert list(value["f"].result(WITHIN_S)) == [0, 1, 2]


def test_a_future_of_a_failed_child_raises_its_exception(client: ciel.Client) -> None:
    def parent() -> Any:
        @ciel.task(retries=1)
        def alone(text: str) -> int:
            return int(text)

        children = [ciel.spawn(int, "x"), alone.spawn("y")]
        ciel.wait(children)
        return children

    for child in client.submit(parent).result(WITHIN_S):
        with pytest.raises(ValueError, match="invalid literal"):
            child.result(WITHIN_S)


def test_a_put_value_may_contain_a_future_that_is_done(client: ciel.Client) -> None:
    done = client.submit(abs, -5)
    assert done.result(WITHIN_S) == 5
    assert client.put([done]).result()[0].result(WITHIN_S) == 5


@pytest.mark.slow
def test_an_object_stays_as_long_as_a_future_or_value_refers_to_it(client: ciel.Client) -> None:
    large = client.submit(bytes, 1_000_000)
    assert large.exception(WITHIN_S) is None
    value = client.put([large]).result()
    del value
    send_what_was_dropped(client)
    assert client.submit(len, large).result(WITHIN_S) == 1_000_000
    held = client.put([large])
    del large
    send_what_was_dropped(client)
    assert client.submit(lambda held: held[0].result()[:3], held).result(WITHIN_S) == bytes(3)
    assert len(held.result()[0].result(WITHIN_S)) == 1_000_000


def send_what_was_dropped(client: ciel.Client) -> None:
    gc.collect()
    for _ in range(2):
        assert client.submit(abs, -1).result(WITHIN_S) == 1


# --- cancellation ---------------------------------------------------------------------------------


def cancel_all(client: ciel.Client) -> None:
    futures = [client.submit(time.sleep, 1) for _ in range(60)]
    time.sleep(0.2)
    client.cancel(futures)


def shut_down(client: ciel.Client) -> None:
    with ciel.Executor(client=client) as executor:
        futures = [executor.submit(time.sleep, 1) for _ in range(60)]
        time.sleep(0.2)
        executor.shutdown(wait=False, cancel_futures=True)
    assert all(future.cancelled() for future in futures)


def stop_gathering(client: ciel.Client) -> None:
    async def gather() -> None:
        futures = [client.submit(time.sleep, 1) for _ in range(60)]
        async with asyncio.timeout(0.2):
            await asyncio.gather(*futures)

    with pytest.raises(TimeoutError):
        asyncio.run(gather())


@pytest.mark.parametrize("call_off", [cancel_all, shut_down, stop_gathering])
def test_bundled_calls_stop_when_all_of_them_are_cancelled(
    client: ciel.Client, call_off: Callable[[ciel.Client], None]
) -> None:
    call_off(client)
    began_s = time.monotonic()
    assert client.submit(abs, -1).result(60) == 1
    assert time.monotonic() - began_s < 10  # the cancelled calls would take 30 s


def test_bundled_calls_run_if_only_others_of_the_bundle_are_cancelled(
    client: ciel.Client,
) -> None:
    futures = [client.submit(pow, n, 2) for n in range(200)]
    client.cancel(futures[::2])
    assert client.gather(futures[1::2]) == [n * n for n in range(1, 200, 2)]


@pytest.mark.parametrize("is_sent", [False, True])
def test_a_call_with_a_cancelled_argument_is_cancelled(client: ciel.Client, is_sent: bool) -> None:
    # so the next call waits to be sent
    running = [client.submit(time.sleep, 0.5) for _ in range(3)]
    future: Any = client.submit(time.sleep, 60)
    if is_sent:
        wait_for(lambda: future.object_id is not None, "the call to be sent", WITHIN_S)
    assert future.cancel()
    for ask in (
        lambda: client.submit(passed_on, future).result(WITHIN_S),
        lambda: client.submit(passed_on, client.submit(passed_on, [future])).result(WITHIN_S),
        lambda: list(client.map(passed_on, [future])),
        lambda: client.put([future]),
        lambda: client.run(["cat"], stdin=future),
    ):
        with pytest.raises(CANCELLED):
            ask()
    program = client.run(["sleep", "60"])
    program.cancel()
    with pytest.raises(CANCELLED):
        client.run(["cat"], stdin=program)
    client.gather(running)


def test_a_cancelled_call_that_another_call_needs_still_runs(client: ciel.Client) -> None:
    for _ in range(20):
        futures = [client.submit(abs, -n) for n in range(10)]
        total = client.submit(sum, futures)
        client.cancel(futures)
        assert total.result(WITHIN_S) == 45


@pytest.mark.slow
def test_a_call_cancelled_while_it_is_passed_on_gives_a_value_or_is_cancelled(
    client: ciel.Client,
) -> None:
    given: list[Any] = []
    is_over = threading.Event()

    def cancel() -> None:
        while not is_over.wait(0.0003):
            while given:
                given.pop().cancel()

    canceller = threading.Thread(target=cancel)
    canceller.start()
    try:
        for _ in range(500):
            future = client.submit(abs, -1)
            given.append(future)
            taker = client.submit(abs, future)
            try:
                assert taker.result(WITHIN_S) == 1
            except CANCELLED:
                pass
    finally:
        is_over.set()
        canceller.join()


# --- futures of other clients ---------------------------------------------------------------------


def test_futures_of_another_client_of_the_cluster_are_arguments(
    client: ciel.Client, other: ciel.Client
) -> None:
    futures = [other.submit(pow, n, 2) for n in range(20)]
    assert client.submit(sum, futures).result(WITHIN_S) == 2470
    assert client.submit(sum, futures).result(WITHIN_S) == 2470
    large = other.submit(bytes, 100_000)
    assert client.submit(len, large).result(WITHIN_S) == 100_000
    assert client.put([large]).result()[0].result(WITHIN_S) == bytes(100_000)
    assert client.run(["wc", "-c"], stdin=other.submit(str, 123)).result(WITHIN_S) == b"3\n"
    assert client.wait([other.submit(abs, -1)], WITHIN_S)[1] == set()
    off = other.submit(time.sleep, 60)
    off.cancel()
    with pytest.raises(CANCELLED):
        client.submit(passed_on, off).result(WITHIN_S)


def test_a_future_received_by_another_client_is_read_through_that_client(
    client: ciel.Client, other: ciel.Client
) -> None:
    value = other.submit(made, -3).result(WITHIN_S)
    assert client.gather([value["f"]]) == [3]


def test_a_callback_that_passes_on_an_unsent_future_raises(
    client: ciel.Client, other: ciel.Client
) -> None:
    said: list[BaseException] = []
    is_called = threading.Event()

    def called(_: Any) -> None:
        running = other.submit(time.sleep, 0.1)
        future = other.submit(abs, -1)
        for give in (lambda: client.submit(abs, future), lambda: other.put([future])):
            try:
                give()
            except BaseException as error:
                said.append(error)
        running.cancel()
        is_called.set()

    other.submit(abs, -1).add_done_callback(called)
    assert is_called.wait(WITHIN_S)
    assert [type(error) for error in said] == [CallbackWaitError] * 2, said


@pytest.mark.slow
def test_a_future_of_another_cluster_is_refused(client: ciel.Client) -> None:
    with ciel.LocalCluster(workers=1, slots=1) as cluster, ciel.Client(cluster) as other:
        future = other.submit(abs, -1)
        for give in (
            lambda: client.submit(abs, future),
            lambda: client.submit(sum, [[future]]),
            lambda: client.put({"f": future}),
            lambda: client.run(["cat"], stdin=other.run(["true"])),
        ):
            with pytest.raises(ForeignFutureError) as caught:
                give()
            assert other.location.url in str(caught.value)
            assert "pass the value, 'future.result()', instead" in str(caught.value)
        assert client.submit(abs, future.result(WITHIN_S)).result(WITHIN_S) == 1
