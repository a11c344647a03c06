"""The standard library's own tests of executors on `ciel.Executor`; and what is ours alone."""

from __future__ import annotations

import importlib
import os
import unittest
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import ModuleType
from typing import Any
from unittest import mock

import pytest

import ciel
from ciel import Client, Executor
from ciel.testing import borrowed
from ciel.testing.homes import HandCluster

AT_ONCE = 12
"""So many of their tests run beside each other: nearly all sleep."""
SLOTS = 16

# Those that say what every executor does, and those of process pools that are not about processes.
CLASSES = (
    "ExecutorShutdownTest", "WaitTests", "AsCompletedTests", "ExecutorTest", "InitializerMixin",
    "FailingInitializerMixin", "ProcessPoolExecutorTest", "ExecutorDeadlockTest",
)  # fmt: skip
PROCESSES = "looks at a pool's own processes; here they are the cluster's"
LIVES_ON = "expects that the whole pool is broken by a call that kills its process"
LEFT_OUT = {
    "ProcessPoolExecutorTest.test_max_workers_too_large": "of Windows",
    "ProcessPoolExecutorTest.test_killed_child": LIVES_ON,
    "ProcessPoolExecutorTest.test_traceback": "the cause is a class of ours; see below",
    "ProcessPoolExecutorTest.test_ressources_gced_in_workers": "of multiprocessing's managers",
    "ProcessPoolExecutorTest.test_saturation": PROCESSES,
    "ProcessPoolExecutorTest.test_idle_process_reuse_one": PROCESSES,
    "ProcessPoolExecutorTest.test_idle_process_reuse_multiple": PROCESSES,
    "ProcessPoolExecutorTest.test_max_tasks_per_child": PROCESSES,
    "ProcessPoolExecutorTest.test_max_tasks_per_child_defaults_to_spawn_context": PROCESSES,
    "ProcessPoolExecutorTest.test_max_tasks_early_shutdown": PROCESSES,
    "ExecutorDeadlockTest.test_shutdown_deadlock_pickle": "looks at a thread of a process pool",
}
THEIRS = borrowed.methods(borrowed.find("test_concurrent_futures.py"), CLASSES)


class OnCiel(Executor):
    """As their tests make executors: of processes, in some context."""

    def __init__(self, max_workers: int | None = None, mp_context: Any = None, **rest: Any) -> None:
        super().__init__(max_workers, **rest)


def test_case(theirs: ModuleType, name: str) -> unittest.TestCase:
    """Return one of their tests, of a class made as they make it for each kind of executor."""
    class_name, method = name.split(".")
    tests: Any = getattr(theirs, class_name)
    mixin: Any = theirs.ExecutorMixin

    class OfExecutor(tests, *(() if issubclass(tests, mixin) else (mixin,)), unittest.TestCase):  # type: ignore[misc]  # their classes are not typed
        executor_type = OnCiel
        get_context = lambda self: None  # noqa: E731

    case: unittest.TestCase = OfExecutor(method)
    return case


test_case.__test__ = False  # type: ignore[attr-defined]  # it makes them


@pytest.fixture(scope="module")
def large_worker(cluster: HandCluster) -> Iterator[None]:
    """A worker on which much may sleep."""
    worker = cluster.start_worker("--slots", str(SLOTS))
    yield
    worker.terminate()
    worker.communicate(timeout=20)
    cluster.workers.remove(worker)


@pytest.fixture(scope="module")
def outcomes(client: Client, large_worker: None) -> Iterator[dict[str, Future[str]]]:
    """What came of each of their tests, which run beside each other."""
    theirs = importlib.import_module("test.test_concurrent_futures")

    def run_script(*argv: str, **environ: str) -> Any:
        *options, script = argv
        ours = script.replace("from concurrent.futures import OnCiel", "from ciel import Executor")
        ours = ours.replace("OnCiel", "Executor")
        path = os.environ["PYTHONPATH"]
        return run_python(*options, ours, __isolated=False, PYTHONPATH=path)

    run_python = theirs.assert_python_ok
    with (
        mock.patch.multiple(theirs, assert_python_ok=run_script, BrokenProcessPool=ciel.TaskError),
        ThreadPoolExecutor(AT_ONCE) as beside_each_other,
    ):
        yield {
            name: beside_each_other.submit(borrowed.outcome, test_case(theirs, name))
            for name in THEIRS
            if name not in LEFT_OUT
        }


@pytest.mark.parametrize("name", [name for name in THEIRS if name not in LEFT_OUT])
def test_of_the_standard_library(name: str, outcomes: dict[str, Future[str]]) -> None:
    wrong = outcomes[name].result()
    assert not wrong, wrong


@pytest.mark.parametrize("name", LEFT_OUT)
def test_what_is_left_out_is_still_there(name: str) -> None:
    assert name in THEIRS
