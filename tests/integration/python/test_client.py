"""Tests the Python API from outside: calls, futures, programs and values, on a temporary
cluster.
"""

import asyncio
import concurrent.futures
import gc
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest

import ciel
from ciel.client.errors import CallbackWaitError, ClientClosedError
from ciel.python.options import OptionError
from ciel.testing.homes import wait_for


@pytest.fixture(scope="module")
def client() -> Iterator[ciel.Client]:
    with ciel.Client(cluster_options={"workers": 1, "slots": 2}, environ={}) as found:
        yield found


def add(one: Any, other: Any) -> Any:
    return one + other


def increment(number: int) -> int:
    return number + 1


def total(numbers: list[int]) -> int:
    return sum(numbers)


def fail(text: str) -> None:
    raise LookupError(text)


def test_a_call_returns_its_value(client: ciel.Client) -> None:
    assert client.submit(add, 2, other=3).result(20) == 5


def test_two_thousand_calls_return_their_own_values(client: ciel.Client) -> None:
    futures = [client.submit(increment, n) for n in range(2000)]
    assert [future.result(60) for future in futures] == list(range(1, 2001))


def test_a_chain_of_three_hundred_calls_returns_the_right_value(client: ciel.Client) -> None:
    future = client.submit(increment, 0)
    for _ in range(299):
        future = client.submit(increment, future)
    assert future.result(60) == 300


def test_futures_in_lists_are_arguments(client: ciel.Client) -> None:
    parts = [client.submit(increment, n) for n in range(200)]
    assert client.submit(total, parts).result(60) == sum(range(1, 201))
    nested: ciel.Future[Any] = client.submit(dict, a=[parts[0], {"b": (parts[1],)}])
    assert nested.result(20) == {"a": [1, {"b": (2,)}]}


def test_a_future_that_is_done_can_be_an_argument(client: ciel.Client) -> None:
    first = client.submit(bytes, 5000)
    assert len(first.result(20)) == 5000
    assert client.submit(len, first).result(20) == 5000


def test_an_exception_keeps_its_type_alone_and_in_a_bundle(client: ciel.Client) -> None:
    with pytest.raises(LookupError, match="alone") as caught:
        client.submit(fail, "alone").result(20)
    assert "in fail" in str(caught.value.__cause__)
    good = [client.submit(increment, n) for n in range(200)]
    bad = [client.submit(fail, f"number {n}") for n in range(50)]
    more = [client.submit(increment, n) for n in range(200)]
    for number, future in enumerate(bad):
        with pytest.raises(LookupError, match=f"number {number}"):
            future.result(60)
    assert [future.result(60) for future in good + more] == [*range(1, 201)] * 2


def test_a_call_whose_argument_failed_raises_the_same_exception(client: ciel.Client) -> None:
    failed = client.submit(fail, "the first")
    last = client.submit(add, client.submit(increment, failed), 1)
    assert isinstance(last.exception(20), LookupError)


def test_several_return_values_are_separate_futures(client: ciel.Client) -> None:
    quotient, rest = client.call(divmod, (17, 5), {}, ciel.task(returns=2)(divmod).task_options)
    assert client.submit(add, quotient, rest).result(20) == 5


def test_map_keeps_the_order_and_raises_at_the_right_position(client: ciel.Client) -> None:
    assert list(client.map(add, range(1000), range(1000, 2000))) == [
        n + n + 1000 for n in range(1000)
    ]
    results = client.map(lambda n: 1 // n, [1, 1, 0, 1], chunksize=2)
    assert [next(results), next(results)] == [1, 1]
    with pytest.raises(ZeroDivisionError):
        next(results)
    assert list(client.map(increment, [])) == []


def test_wait_and_as_completed_work_like_the_standard_librarys(client: ciel.Client) -> None:
    futures: list[Any] = [client.submit(increment, n) for n in range(20)]
    assert {future.result() for future in client.as_completed(futures, 60)} == set(range(1, 21))
    done, others = client.wait(futures, 60)
    assert (len(done), others) == (20, set())
    assert set(concurrent.futures.as_completed(futures)) == set(futures)
    assert client.gather(futures[0], futures[1]) == [1, 2]
    assert client.get({"x": futures[2]}) == {"x": 3}


def test_a_future_can_be_awaited(client: ciel.Client) -> None:
    async def both() -> list[int]:
        return await asyncio.gather(
            *[_value(client.submit(increment, n)) for n in range(3)],
            _value(client.submit(add, 1, 1)),
        )

    assert asyncio.run(both()) == [1, 2, 3, 2]


async def _value(future: ciel.Future[Any]) -> Any:
    return await future


class Homesick:
    """A value that can be read only in the process that created it."""

    def __init__(self) -> None:
        self.pid = os.getpid()

    def __setstate__(self, state: dict[str, int]) -> None:
        if state["pid"] != os.getpid():
            raise LookupError("not at home")


def raise_it(kind: type[BaseException]) -> None:
    raise kind("as it is")


def test_a_result_that_cannot_be_unpickled_raises_in_every_way_of_reading_it(
    client: ciel.Client,
) -> None:
    future = client.submit(Homesick)
    assert isinstance(future.exception(20), ciel.PackingError)
    with pytest.raises(ciel.PackingError, match="LookupError: not at home"):
        future.result(20)

    async def within(waited: Any) -> Any:
        async with asyncio.timeout(20):
            return await waited

    async def wrapped() -> Any:  # as `run_in_executor` does
        future: Any = client.submit(Homesick)
        return await asyncio.wrap_future(future)

    for waited in (_value(future), _value(client.submit(Homesick)), wrapped()):
        with pytest.raises(ciel.PackingError, match="LookupError: not at home"):
            asyncio.run(within(waited))


def test_awaiting_a_future_raises_the_exception_of_its_result(client: ciel.Client) -> None:
    async def within(future: Any) -> Any:
        async with asyncio.timeout(20):
            return await future

    with pytest.raises(RuntimeError, match="StopIteration"):  # as in every coroutine
        asyncio.run(within(client.submit(raise_it, StopIteration)))
    with pytest.raises(TimeoutError, match="as it is") as caught:
        asyncio.run(within(client.submit(raise_it, TimeoutError)))
    assert isinstance(caught.value.__cause__, ciel.RemoteTraceback)


def test_ending_the_await_of_a_future_cancels_it(client: ciel.Client) -> None:
    futures: list[Any] = []

    async def impatient() -> None:
        futures.append(client.submit(time.sleep, 60))
        async with asyncio.timeout(0.2):
            await futures[0]

    with pytest.raises(TimeoutError):
        asyncio.run(impatient())
    assert futures[0].cancelled()

    async def called_off() -> None:
        future: Any = client.submit(time.sleep, 60)
        asyncio.get_running_loop().call_later(0.2, future.cancel)
        await future

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(called_off())


def test_a_callback_may_submit(client: ciel.Client) -> None:
    seen: list[Any] = []
    told = threading.Event()

    def go_on(future: Any) -> None:
        seen.append(client.submit(increment, future.result()))
        told.set()

    client.submit(increment, 1).add_done_callback(go_on)
    assert told.wait(20)
    assert seen[0].result(20) == 3


@pytest.mark.parametrize(
    "ask",
    [
        lambda client, other, done: other.result(),
        lambda client, other, done: other.result(5),
        lambda client, other, done: other.exception(),
        lambda client, other, done: client.get([done, other]),
        lambda client, other, done: ciel.wait([done, other]),
        lambda client, other, done: ciel.wait([other], return_when="FIRST_COMPLETED"),
        lambda client, other, done: ciel.wait([done, other], return_when="FIRST_EXCEPTION"),
        lambda client, other, done: list(client.as_completed([done, other])),
        lambda client, other, done: list(client.map(increment, [1, 2], chunksize=1)),
        lambda client, other, done: client.slot_count(),
    ],
)
def test_a_callback_that_would_wait_forever_raises_with_advice(
    client: ciel.Client, ask: Callable[[ciel.Client, Any, Any], Any]
) -> None:
    caught = in_a_callback(client, ask)
    assert isinstance(caught, CallbackWaitError), caught
    assert "add callbacks to other" in str(caught)
    assert client.submit(increment, 1).result(20) == 2


@pytest.mark.parametrize(
    "ask, answer",
    [
        (lambda client, other, done: done.result(), 2),
        (lambda client, other, done: done.exception(), None),
        (lambda client, other, done: client.get([done, done]), [2, 2]),
        (lambda client, other, done: ciel.gather(done), [2]),
        (lambda client, other, done: ciel.wait([done, other], timeout=0)[0] == {done}, True),
        (
            lambda client, other, done: (
                ciel.wait([done, other], None, "FIRST_COMPLETED")[0] == {done}
            ),
            True,
        ),
        (lambda client, other, done: next(client.as_completed([other, done])) is done, True),
        (lambda client, other, done: list(client.as_completed([done])) == [done], True),
    ],
)
def test_a_callback_may_read_futures_that_are_done(
    client: ciel.Client, ask: Callable[[ciel.Client, Any, Any], Any], answer: Any
) -> None:
    assert in_a_callback(client, ask) == answer


def in_a_callback(client: ciel.Client, ask: Callable[[ciel.Client, Any, Any], Any]) -> Any:
    """Call `ask` when one future is done and another is not; return its result or exception."""
    said: queue.Queue[Any] = queue.Queue()
    other = client.submit(time.sleep, 60)

    def called(done: Any) -> None:
        try:
            said.put(ask(client, other, done))
        except Exception as error:
            said.put(error)

    client.submit(increment, 1).add_done_callback(called)
    found = said.get(timeout=20)
    assert other.cancel()
    return found


@pytest.mark.parametrize(
    "ask",
    [
        lambda client, future: client.get(3),
        lambda client, future: client.get([future, 3]),
        lambda client, future: client.get({"a": 3}),
        lambda client, future: client.gather(3),
        lambda client, future: client.gather(future, 3),
        lambda client, future: client.wait(3),
        lambda client, future: client.wait([future, 3]),
        lambda client, future: client.as_completed([3]),
        lambda client, future: client.cancel(3),
        lambda client, future: client.cancel([3]),
        lambda client, future: ciel.gather(3),
        lambda client, future: ciel.gather([future, 3]),
        lambda client, future: ciel.wait([3]),
        lambda client, future: ciel.as_completed({3}),
    ],
)
def test_a_value_that_is_not_a_future_is_named(
    client: ciel.Client, ask: Callable[[ciel.Client, Any], Any]
) -> None:
    with pytest.raises(TypeError, match=r"expected .*future.* not 3"):
        ask(client, client.submit(increment, 1))


def test_a_single_future_is_refused_where_several_are_expected(client: ciel.Client) -> None:
    future: Any = client.submit(list, [1, 2])
    for ask in (client.wait, client.as_completed, ciel.wait, ciel.as_completed):
        with pytest.raises(TypeError, match=r"in a list or another iterable, not <.*Future list"):
            ask(future)
    assert client.gather(future) == ciel.gather(future) == [[1, 2]]
    assert client.gather(item for item in [future]) == [[1, 2]]


def test_a_value_that_is_not_a_future_is_named_in_a_task(client: ciel.Client) -> None:
    def ask(number: int) -> list[str]:
        said = []
        for wait in (ciel.wait, ciel.gather, lambda given: list(ciel.as_completed(given))):
            given: Any
            for given in (number, [number]):
                with pytest.raises(TypeError) as caught:
                    wait(given)
                said.append(str(caught.value))
        return said

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    try:
        said = client.submit(ask, 3).result(20)
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    assert all(text.endswith("not 3") for text in said), said


def test_a_cancelled_call_stops(client: ciel.Client, tmp_path: Path) -> None:
    sign = tmp_path / "sign"

    def wait_long(path: str) -> None:
        Path(path).touch()
        time.sleep(600)

    futures = [client.submit(wait_long, str(sign)) for _ in range(2)]
    while not sign.exists():
        time.sleep(0.01)
    client.cancel(futures)
    assert all(future.cancelled() for future in futures)
    with pytest.raises(concurrent.futures.CancelledError):
        futures[0].result()
    assert client.submit(increment, 1).result(30) == 2  # in the slots of the cancelled calls


def read_slowly(text: str) -> str:
    time.sleep(0.3)
    return text


class ReadSlowly(str):
    """A text that takes a while to unpickle, and so to convert into bytes for a program."""

    def __reduce__(self) -> Any:
        return read_slowly, (str(self),)


def test_what_a_program_reads_is_not_released_before_the_program_is_added(
    client: ciel.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = client.calls.run

    def run_late(*args: Any) -> Any:
        time.sleep(0.1)  # a worker converts the text
        client.calls._job.release_dropped()  # as the thread of the calls does at any time
        time.sleep(0.5)  # the text is converted, and released if nothing refers to it
        return run(*args)

    text = client.submit(ReadSlowly, "is 7")
    client.wait([text])
    monkeypatch.setattr(client.calls, "run", run_late)
    assert client.run(["cat"], stdin=text).result(20) == b"is 7"


def test_programs_and_functions_read_each_others_results(client: ciel.Client) -> None:
    text = client.submit("\n".join, ["pear", "apple", "pear"])
    out = client.run(["sort", "-u"], stdin=text, outputs=1)
    assert out.result(20) == b"apple\npear\n"
    assert client.submit(len, out).result(20) == 11
    assert client.run(["cat", "-", client.submit(str, 7)], stdin=b"is ").result(20) == b"is 7"


def test_a_program_may_have_several_outputs(client: ciel.Client) -> None:
    script = 'set -- $(cat "$OUTPUT_FILES"); echo a > "$1"; echo b > "$2"'
    one, other = client.run(["sh", "-c", script], outputs=2)
    assert (one.result(20), other.result(20)) == (b"a\n", b"b\n")


@pytest.mark.parametrize(
    "argv, outputs",
    [([], 1), ("sort -u", 1), (iter(["true"]), 1), ({"true"}, 1), (["true"], 0), (["true"], -1)],
)
def test_an_invalid_program_is_refused_without_side_effects(
    client: ciel.Client, argv: Any, outputs: int
) -> None:
    with pytest.raises(OptionError, match=r"argv: it must be a list|outputs: it must be at"):
        client.run(argv, outputs=outputs)
    assert client.submit(increment, 1).result(20) == 2


@pytest.mark.parametrize("option", [{"returns": 2}, {"python": "python3.12"}])
def test_options_of_functions_are_refused_for_programs(
    client: ciel.Client, option: dict[str, Any]
) -> None:
    with pytest.raises(OptionError, match="it is for functions; for a program use"):
        client.run(["true"], **option)


@pytest.mark.requirement("CIB-42")
def test_a_task_names_the_disk_that_bounds_it(client: ciel.Client) -> None:
    @ciel.task(io=True)
    def parent() -> int:
        child = ciel.task(io=True)(increment)
        return sum(ciel.spawn(child, number).result() for number in range(3))

    assert client.gather(*[client.submit(parent) for _ in range(3)]) == [6, 6, 6]
    assert client.run(["echo", "x"], io="/tmp").result(20) == b"x\n"
    wrong: Any
    for wrong in ("relative", "/nul\0", 1):
        with pytest.raises(OptionError, match=r"^io: "):
            ciel.task(io=wrong)(increment)


def test_a_value_is_put_once_and_read_by_many(client: ciel.Client) -> None:
    array = np.arange(200_000)
    there = client.put(array)
    assert client.gather(*[client.submit(np.sum, there) for _ in range(4)]) == [array.sum()] * 4
    assert (there.result() == array).all()


def test_a_large_argument_is_sent_as_a_separate_object(client: ciel.Client) -> None:
    array = np.ones(1 << 20)
    assert client.submit(np.sum, array).result(20) == 1 << 20


def test_a_large_result_is_writable(client: ciel.Client) -> None:
    array = client.submit(np.zeros, 100_000).result(20)
    array[3] = 1.0
    assert array.sum() == 1.0


def test_threads_may_share_a_client(client: ciel.Client) -> None:
    found: list[list[int]] = []

    def work(start: int) -> None:
        futures = [client.submit(increment, n) for n in range(start, start + 100)]
        found.append([future.result(60) for future in futures])

    threads = [threading.Thread(target=work, args=(n * 100,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(n for part in found for n in part) == list(range(1, 401))


def test_results_of_dropped_futures_are_released(client: ciel.Client) -> None:
    def held() -> int:
        job = client.calls.job
        assert job is not None
        return int(client.ask("job", {"job": job.id})["summary"][8])  # wanted

    futures = [client.submit(bytes, 2000 + n) for n in range(40)]
    for future in futures:
        future.result(60)
    before = held()
    del futures, future
    gc.collect()
    client.submit(increment, 1).result(20)
    assert held() < before - 5


def test_results_of_dropped_futures_are_released_without_further_calls(client: ciel.Client) -> None:
    with ciel.Client(client.location) as idle:
        futures = [idle.submit(bytes, 200_000 + n) for n in range(4)]
        for future in futures:
            future.result(60)
        job = idle.calls.job
        assert job is not None
        job_id = job.id

        def wanted() -> int:
            return int(client.ask("job", {"job": job_id})["summary"][8])

        assert wanted() == 4
        del futures, future
        gc.collect()
        wait_for(lambda: wanted() == 0, "the results to be let go of")


def test_an_argument_or_function_that_cannot_be_sent_is_named(client: ciel.Client) -> None:
    with pytest.raises(
        ciel.PackingError, match=r"arguments of add: argument 2 _thread\.lock cannot"
    ):
        client.submit(add, 1, threading.Lock())
    lock = threading.Lock()
    with pytest.raises(ciel.PackingError, match=r"function .*<lambda>: lock _thread\.lock cannot"):
        client.submit(lambda: lock)


def test_a_task_is_spawned_at_the_innermost_client(client: ciel.Client) -> None:
    @ciel.task(name="twice")
    def twice(n: int) -> int:
        return 2 * n

    assert twice(4) == 8
    assert ciel.gather([twice.spawn(n) for n in range(5)]) == [0, 2, 4, 6, 8]
    assert ciel.spawn(increment, ciel.put(1)).result(20) == 2


def test_a_future_that_is_not_done_when_its_client_closes_raises() -> None:
    client = ciel.Client(cluster_options={"slots": 1}, environ={})
    future = client.submit(time.sleep, 600)
    client.close()
    with pytest.raises(ClientClosedError):
        future.result(20)
    with pytest.raises(ClientClosedError):
        client.submit(increment, 1)
