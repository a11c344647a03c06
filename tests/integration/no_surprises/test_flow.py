"""Tests expectations of pool users for the flow of calls: short jobs do not wait for long ones,
results arrive as they are ready, unwanted calls do not run, and time-outs hold.
"""

from __future__ import annotations

import gc
import itertools
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError
from pathlib import Path

import cloudpickle
import pytest

import ciel
from ciel.multiprocessing import Pool
from ciel.testing.homes import wait_for
from ciel.wire.descriptors import read_summary

cloudpickle.register_pickle_by_value(sys.modules[__name__])

WITHIN_S = 60.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[ciel.LocalCluster]:
    with ciel.LocalCluster(workers=1, slots=2) as found:
        yield found


@pytest.fixture
def client(cluster: ciel.LocalCluster) -> Iterator[ciel.Client]:
    with ciel.Client(cluster, environ={}) as found:
        yield found


def same(value: int) -> int:
    return value


def wait_for_file(path: str) -> bool:
    while not os.path.exists(path):
        time.sleep(0.01)
    return True


# --- short calls and long ones --------------------------------------------------------------------


def test_a_call_waits_only_for_running_calls(
    cluster: ciel.LocalCluster, client: ciel.Client
) -> None:
    def nap(number: int) -> int:
        time.sleep(0.3)
        return number

    with ciel.Client(cluster, environ={}) as other:
        long = [client.submit(nap, number) for number in range(60)]
        assert long[0].result() == 0
        for number in range(5):
            before = sum(future.done() for future in long)
            assert other.submit(same, number).result(WITHIN_S) == number
            assert sum(future.done() for future in long) - before <= 4  # two slots, each one round
        client.cancel(long)


def test_calls_of_a_quick_function_are_bundled_once_one_has_ended(
    client: ciel.Client,
) -> None:
    def quick(value: int) -> int:
        return value

    assert client.submit(quick, -1).result(WITHIN_S) == -1
    futures = [client.submit(quick, value) for value in range(2000)]
    assert client.gather(futures) == list(range(2000))
    job = client.calls.job
    assert job is not None
    assert sum(read_summary(client.ask("jobs", {"job": job.id})[0]).counts.values()) < 500


def test_calls_that_fail_do_not_delay_others(client: ciel.Client) -> None:
    def bad(value: int) -> int:
        raise KeyError(value)

    futures = [client.submit(bad, value) for value in range(60)]
    ciel.wait(futures, WITHIN_S)
    errors = [future.exception(WITHIN_S) for future in futures]
    assert [repr(error) for error in errors] == [f"KeyError({number})" for number in range(60)]


def test_queued_calls_can_be_arguments_of_another_client(
    cluster: ciel.LocalCluster, client: ciel.Client, tmp_path: Path
) -> None:
    flag = str(tmp_path / "flag")

    def slow(number: int) -> int:
        wait_for_file(flag)
        return number

    with ciel.Client(cluster, environ={}) as other:
        futures = [client.submit(slow, number) for number in range(40)]
        total = other.submit(sum, futures)
        Path(flag).touch()
        assert total.result(WITHIN_S) == sum(range(40))


# --- results of a map, as they are ready ----------------------------------------------------------


def nap_on_the_clock(number: int) -> tuple[int, float]:
    time.sleep(0.02)
    return number, time.time()


def late_s(results: Iterator[tuple[int, float]]) -> list[float]:
    """Return the delay between each call and the arrival of its result, in the order of results."""
    found = []
    for place, (number, ended_s) in enumerate(results):
        assert number == place
        found.append(time.time() - ended_s)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("how", ["client", "executor", "imap"])
def test_results_of_a_map_arrive_as_they_are_ready(client: ciel.Client, how: str) -> None:
    started_s = time.monotonic()
    if how == "client":
        late = late_s(client.map(nap_on_the_clock, range(200)))
    elif how == "executor":
        with ciel.Executor(client=client) as executor:
            late = late_s(executor.map(nap_on_the_clock, range(200)))
    else:
        with Pool() as pool:
            late = late_s(pool.imap(nap_on_the_clock, range(200)))
    assert len(late) == 200
    # With large chunks half of the results would wait for half of the time.
    assert sorted(late)[100] < (time.monotonic() - started_s) / 5


@pytest.mark.slow
def test_a_map_that_becomes_slow_is_divided_again(client: ciel.Client) -> None:
    def mixed(number: int) -> int:
        if number >= 100:
            time.sleep(0.02)
        return number

    assert list(client.map(mixed, range(250))) == list(range(250))
    with Pool() as pool:
        assert pool.map(mixed, range(90, 190)) == list(range(90, 190))
        assert pool.map_async(mixed, range(150)).get(WITHIN_S) == list(range(150))


def test_an_exception_in_a_map_is_raised_at_its_position(client: ciel.Client) -> None:
    def risky(number: int) -> int:
        time.sleep(0.01)
        if number == 70:
            raise KeyError(number)
        return number

    results = client.map(risky, range(200))
    assert list(itertools.islice(results, 70)) == list(range(70))
    with pytest.raises(KeyError):
        next(results)


def test_queued_rows_have_the_values_at_the_moment_of_the_call(client: ciel.Client) -> None:
    def first(items: list[int]) -> int:
        time.sleep(0.01)
        return items[0]

    rows = [[number] for number in range(100)]
    results = client.map(first, rows)
    for row in rows:
        row[0] = -1
    assert list(results) == list(range(100))


def test_a_given_chunksize_is_used(client: ciel.Client) -> None:
    def where(_: int) -> str:
        time.sleep(0.02)
        return os.environ.get("CIEL_TASK", "") + str(time.perf_counter_ns())

    parts = client.map_parts(where, [(number,) for number in range(20)], 10)
    assert [len(part.result(WITHIN_S).values) for part in parts] == [10, 10]
    assert not any(getattr(part, "rest", ()) for part in parts)


# --- calls that nothing needs ---------------------------------------------------------------------


def test_calls_whose_futures_were_dropped_do_not_run(client: ciel.Client, tmp_path: Path) -> None:
    flag = str(tmp_path / "flag")

    def mark(number: int) -> None:
        wait_for_file(flag)
        (tmp_path / str(number)).touch()

    futures = [client.submit(mark, number) for number in range(300)]
    last = futures[-1]
    del futures
    gc.collect()
    client.submit(same, 1)  # this call releases the futures dropped before it
    Path(flag).touch()
    last.result(WITHIN_S)
    time.sleep(0.1)
    assert (tmp_path / "299").exists()
    assert len(list(tmp_path.iterdir())) < 40  # except the calls that workers already had


@pytest.mark.slow
def test_the_call_of_a_dropped_future_runs_if_another_call_needs_it(client: ciel.Client) -> None:
    def slow(number: int) -> int:
        time.sleep(0.01)
        return number

    total = client.submit(sum, [client.submit(slow, number) for number in range(50)])
    gc.collect()
    assert total.result(WITHIN_S) == sum(range(50))


def test_fire_and_forget_or_a_callback_keeps_a_call_running(
    client: ciel.Client, tmp_path: Path
) -> None:
    told: list[int] = []

    def mark(number: int) -> int:
        time.sleep(0.01)
        (tmp_path / str(number)).touch()
        return number

    ciel.fire_and_forget([client.submit(mark, number) for number in range(30)])
    ciel.fire_and_forget(client.submit(mark, 30))
    client.submit(mark, 31).add_done_callback(lambda future: told.append(future.result()))
    gc.collect()
    wait_for(lambda: len(list(tmp_path.iterdir())) == 32, "all calls")
    wait_for(lambda: told == [31], "the callback")


@pytest.mark.slow
def test_dropped_calls_of_an_executor_or_a_pool_run_as_in_the_standard_library(
    client: ciel.Client, tmp_path: Path
) -> None:
    def mark(number: int) -> None:
        time.sleep(0.01)
        (tmp_path / str(number)).touch()

    with ciel.Executor(client=client) as executor:
        for number in range(30):
            executor.submit(mark, number)
        executor.map(mark, range(30, 60))
        gc.collect()
    assert len(list(tmp_path.iterdir())) == 60
    with Pool() as pool:
        for number in range(60, 90):
            pool.apply_async(mark, (number,))
        gc.collect()
        pool.close()
        pool.join()
    assert len(list(tmp_path.iterdir())) == 90


def test_the_result_of_a_running_call_is_released_if_its_future_was_dropped(
    client: ciel.Client,
) -> None:
    def large() -> bytes:
        time.sleep(0.3)
        return bytes(5_000_000)

    future = client.submit(large)
    time.sleep(0.1)  # it is running
    del future
    gc.collect()
    client.submit(same, 1).result(WITHIN_S)
    job = client.calls.job
    assert job is not None

    def is_released() -> bool:
        client.submit(same, 2).result(WITHIN_S)
        summary = read_summary(client.ask("jobs", {"job": job.id})[0])
        return summary.unsettled == 0 and summary.wanted <= 1

    wait_for(is_released, "the release of the result")


@pytest.mark.slow
def test_calls_that_are_cancelled_while_they_are_sent_do_not_run(client: ciel.Client) -> None:
    client.submit(time.sleep, 0.001).result(WITHIN_S)  # quick, so that all are sent at once
    for _ in range(5):
        futures = [client.submit(time.sleep, 300.0) for _ in range(3000)]
        for future in futures:
            future.cancel()
        del future, futures
        assert client.submit(same, 1).result(WITHIN_S) == 1


# --- generators -----------------------------------------------------------------------------------


def test_items_that_a_task_yields_arrive_one_by_one(client: ciel.Client, tmp_path: Path) -> None:
    def items() -> Iterator[int]:
        for number in range(4):
            wait_for_file(str(tmp_path / str(number)))
            yield number

    found = []
    (tmp_path / "0").touch()
    for item in client.submit(items):  # the next item is produced only when this one was seen
        found.append(item)
        (tmp_path / str(item + 1)).touch()
    assert found == [0, 1, 2, 3]


def test_an_exception_of_a_generator_is_raised_after_its_items(
    client: ciel.Client, tmp_path: Path
) -> None:
    def items() -> Iterator[int]:
        yield 1
        wait_for_file(str(tmp_path / "seen"))
        raise KeyError("no more")

    reading = iter(client.submit(items))
    assert next(reading) == 1
    (tmp_path / "seen").touch()
    with pytest.raises(KeyError, match="no more"):
        next(reading)


@pytest.mark.slow
def test_no_item_is_lost_or_repeated_when_the_worker_is_lost(tmp_path: Path) -> None:
    def items() -> Iterator[int]:
        for number in range(6):
            if number == 3:
                wait_for_file(str(tmp_path / "go"))
            yield number

    with (
        ciel.LocalCluster(workers=1, slots=1) as cluster,
        ciel.Client(cluster, environ={}) as client,
    ):
        reading = iter(client.submit(items))
        assert [next(reading) for _ in range(3)] == [0, 1, 2]
        cluster.restart(0)
        (tmp_path / "go").touch()
        assert list(reading) == [3, 4, 5]


def test_a_generator_can_be_cancelled_and_may_yield_no_items(
    client: ciel.Client,
) -> None:
    def endless() -> Iterator[int]:
        yield 1
        while True:
            time.sleep(0.01)
            yield 2

    def none() -> Iterator[int]:
        return
        yield

    future = client.submit(endless)
    assert next(iter(future)) == 1
    reading = iter(future)
    assert future.cancel()
    with pytest.raises(CancelledError):
        list(reading)
    assert list(client.submit(none)) == []


# --- time-outs ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_timeout_holds_while_a_lost_result_is_recomputed(tmp_path: Path) -> None:
    def large(flag: str) -> bytes:
        while not os.path.exists(flag):
            time.sleep(0.01)
        return bytes(1_000_000)

    flag = tmp_path / "flag"
    flag.touch()
    with (
        ciel.LocalCluster(workers=1, slots=1, store="shm:capacity=100MiB") as cluster,
        ciel.Client(cluster, environ={}) as client,
    ):
        futures = [client.submit(large, str(flag)) for _ in range(3)]
        ciel.wait(futures)
        flag.unlink()  # now it takes as long as it likes
        cluster.restart(0)
        begun_s = time.monotonic()
        with pytest.raises(TimeoutError):
            futures[0].result(timeout=0.5)
        with pytest.raises(TimeoutError):
            futures[1].exception(timeout=0.5)
        with pytest.raises(TimeoutError):
            client.get(futures[2:], timeout=0.5)
        assert time.monotonic() - begun_s < WITHIN_S / 2
        flag.touch()
        assert len(futures[0].result(timeout=WITHIN_S)) == 1_000_000
