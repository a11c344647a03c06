"""The standard library's own tests of `multiprocessing.Pool` on ours; and what is ours alone."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import sys
import unittest
from collections.abc import Iterator
from typing import Any
from unittest import mock

import cloudpickle
import pytest

import ciel.multiprocessing
from ciel import Client
from ciel.multiprocessing import Pool
from ciel.testing import borrowed

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
THEIRS = borrowed.methods(borrowed.find("_test_multiprocessing.py"), CLASSES)


@pytest.fixture(scope="module")
def made(client: Client) -> Iterator[Any]:
    """Make a test case of one of theirs; the pool that they share is made when it is first used."""
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


@pytest.mark.parametrize("name", [name for name in THEIRS if name not in LEFT_OUT])
def test_of_the_standard_library(name: str, made: Any) -> None:
    wrong = borrowed.outcome(made(name))
    assert not wrong, wrong


@pytest.mark.parametrize("name", LEFT_OUT)
def test_what_is_left_out_is_still_there(name: str) -> None:
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


def test_a_pool_needs_no_processes_of_its_own(client: Client) -> None:
    with Pool(2) as pool:
        assert os.getpid() not in pool.map(process_id, range(4))


def test_an_initializer_runs_in_every_process_before_its_first_call(client: Client) -> None:
    with Pool(initializer=remember, initargs=("this",)) as pool:
        assert set(pool.map(remembered, range(50), chunksize=1)) == {"this"}


def test_a_pool_is_as_good_in_a_task(client: Client) -> None:
    assert client.submit(in_a_task).result(60) == [1, 2, 3]


def test_the_cluster_says_how_many_run_at_a_time(client: Client) -> None:
    assert ciel.multiprocessing.cpu_count() == client.slot_count()


def test_a_pool_says_what_state_it_is_in(client: Client) -> None:
    pool = Pool(3)
    assert repr(pool) == "<ciel.multiprocessing.Pool state=RUN pool_size=3>"
    pool.close()
    with pytest.raises(ValueError, match="not running"):
        pool.apply(abs, (1,))
    pool.join()
