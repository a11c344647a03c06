"""Runs the standard library's own tests of `multiprocessing.Pool` on `ciel.multiprocessing.Pool`;
and further tests of it.
"""

from __future__ import annotations

import importlib
import itertools
import multiprocessing
import os
import sys
import threading
import unittest
from collections.abc import Iterator
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any
from unittest import mock

import cloudpickle
import pytest

import ciel.multiprocessing
from ciel import Client
from ciel.client.pools.feed import ITEMS_AHEAD
from ciel.multiprocessing import Pool
from ciel_tests.installed import borrowed

cloudpickle.register_pickle_by_value(sys.modules[__name__])

CLASSES = ("_TestPool", "_TestPoolWorkerErrors", "_TestPoolWorkerLifetime")
PROCESSES = "looks at a pool's own processes; here they are the cluster's"
LEFT_OUT = {
    "_TestPool.test_make_pool": PROCESSES,
    "_TestPool.test_traceback": "the cause is a class of ours; see test_executor.py",
    "_TestPool.test_wrapped_exception": "sends the class of these tests, which holds a pool",
    "_TestPool.test_map_no_failfast": "of an error of a MiB only the text survives",
    "_TestPool.test_map_unplicklable": "what cannot be sent raises PackingError, which names it",
    "_TestPoolWorkerErrors.test_unpickleable_result": "a lambda can be returned here",
    "_TestPoolWorkerLifetime.test_pool_worker_lifetime": PROCESSES,
}
THEIRS = borrowed.methods("_test_multiprocessing.py", CLASSES)
needs_theirs = pytest.mark.skipif(not THEIRS, reason=borrowed.MISSING)


@pytest.fixture(scope="module")
def made(client: Client) -> Iterator[Any]:
    """Return a factory for test cases of the library; they share a pool, which is created at its
    first use.
    """
    theirs: Any = importlib.import_module("test._test_multiprocessing")
    classes = {}
    for name in CLASSES:
        kind: Any = type(name, (getattr(theirs, name), unittest.TestCase), {"TYPE": "processes"})
        kind.Pool = staticmethod(Pool)
        kind.setUpClass()
        classes[name] = kind
    with mock.patch.object(multiprocessing, "Pool", Pool):
        yield lambda name: classes[name.split(".")[0]](name.split(".")[1])
    for kind in classes.values():
        kind.tearDownClass()


@needs_theirs
@pytest.mark.parametrize("name", [name for name in THEIRS if name not in LEFT_OUT])
def test_the_standard_librarys_test(name: str, made: Any) -> None:
    wrong = borrowed.outcome(made(name))
    assert not wrong, wrong


@needs_theirs
@pytest.mark.parametrize("name", LEFT_OUT)
def test_a_left_out_test_still_exists(name: str) -> None:
    assert name in THEIRS


def process_id(_: object) -> int:
    return os.getpid()


def remember(value: str) -> None:
    os.environ["REMEMBERED"] = value


def remembered(_: object) -> str | None:
    return os.environ.get("REMEMBERED")


def in_a_task() -> list[int]:
    with Pool(2) as pool:
        return pool.map(abs, [-1, -2]) + list(pool.imap(abs, [-3]))


def test_a_pool_runs_calls_in_processes_of_the_cluster(client: Client) -> None:
    with Pool(2) as pool:
        assert os.getpid() not in pool.map(process_id, range(4))


def test_an_initializer_runs_in_every_process_before_its_first_call(client: Client) -> None:
    with Pool(initializer=remember, initargs=("this",)) as pool:
        assert set(pool.map(remembered, range(50), chunksize=1)) == {"this"}


def test_a_pool_works_within_a_task(client: Client) -> None:
    assert client.submit(in_a_task).result(60) == [1, 2, 3]


def test_cpu_count_is_the_number_of_slots_of_the_cluster(client: Client) -> None:
    assert ciel.multiprocessing.cpu_count() == client.slot_count()


def test_the_repr_of_a_pool_shows_its_state(client: Client) -> None:
    pool = Pool(3)
    assert repr(pool) == "<ciel.multiprocessing.Pool state=RUN pool_size=3>"
    pool.close()
    with pytest.raises(ValueError, match="not running"):
        pool.apply(abs, (1,))
    pool.join()


class Endless:
    """Counts, and records how far it was read and whether it was closed."""

    def __init__(self) -> None:
        self.read = 0
        self.dropped = threading.Event()

    def __iter__(self) -> Iterator[int]:
        try:
            for number in itertools.count():
                self.read = number
                yield number
        finally:
            self.dropped.set()


@pytest.mark.slow
@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("chunksize", [1, 100])
def test_an_iterable_is_read_only_a_limited_number_of_items_ahead(
    client: Client, in_order: bool, chunksize: int
) -> None:
    numbers = Endless()
    with Pool() as pool:
        imap = pool.imap if in_order else pool.imap_unordered
        results = imap(abs, numbers, chunksize)
        for taken in range(3 * ITEMS_AHEAD):
            value = next(results)
            assert value == taken or not in_order
            assert numbers.read <= taken + ITEMS_AHEAD + 16 * client.slot_count() * chunksize
        del results
        assert numbers.dropped.wait(20)


def test_leaving_a_loop_closes_the_iterable(client: Client) -> None:
    numbers = Endless()
    with Pool() as pool:
        for value in pool.imap_unordered(abs, numbers):
            if value > 10:
                break
        assert numbers.dropped.wait(20)


def count_in(place: tuple[str, int]) -> None:
    with open(place[0], "ab") as file:
        file.write(b"x")


@pytest.mark.parametrize("is_kept", [True, False])
def test_calls_run_even_if_their_results_are_not_read(
    client: Client, tmp_path: Path, is_kept: bool
) -> None:
    path, count = tmp_path / "calls", 2 * ITEMS_AHEAD
    with Pool() as pool:
        results = pool.imap_unordered(count_in, ((str(path), n) for n in range(count)))
        if not is_kept:
            del results
        pool.close()
        pool.join()
    assert path.stat().st_size == count
    if is_kept:
        assert len(list(results)) == count


def test_an_item_that_cannot_be_sent_fails_at_its_position(client: Client) -> None:
    items = [-1, threading.Lock(), -3]
    cases: list[tuple[int, list[Any]]] = [(1, [1, "argument 1", 3]), (2, ["arguments of abs", 3])]
    for chunksize, expected in cases:
        with Pool() as pool:
            results = pool.imap(abs, items, chunksize)
            for wanted in expected:
                if isinstance(wanted, int):
                    assert next(results) == wanted
                else:
                    with pytest.raises(ciel.PackingError, match=wanted):
                        next(results)
            assert list(results) == []


def test_an_exception_of_the_iterable_is_the_last_result(client: Client) -> None:
    with Pool() as pool:
        results = pool.imap(abs, (1 // (3 - number) for number in range(9)))
        assert [next(results), next(results), next(results)] == [0, 0, 1]
        with pytest.raises(ZeroDivisionError):
            next(results)
        assert list(results) == []


def test_reading_results_after_the_end_of_the_pool_raises(client: Client) -> None:
    with Pool() as pool:
        results = pool.imap(abs, itertools.count())
        assert next(results) == 0
    with pytest.raises(CancelledError):
        list(results)


def far_in_a_task() -> int:
    with Pool() as pool:
        assert next(pool.imap(abs, itertools.count())) == 0
        kept = pool.imap(abs, range(3000), 7)
        pool.close()
        pool.join()
        return sum(kept)


def test_an_iterable_is_read_ahead_within_a_task(client: Client) -> None:
    assert client.submit(far_in_a_task).result(60) == sum(range(3000))
