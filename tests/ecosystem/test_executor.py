"""Runs the standard library's own tests of executors on `ciel.Executor`; and further tests of
it.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
import unittest
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor, Future, ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import cloudpickle
import pytest

import ciel
from ciel import Client, Executor
from ciel.testing.homes import HandCluster, Home, wait_for
from ciel_tests.installed import borrowed

cloudpickle.register_pickle_by_value(sys.modules[__name__])

AT_ONCE = 12
"""The number of library tests that run at the same time, which is high because nearly all sleep."""
WITHIN_SECONDS = {
    "ExecutorTest.test_map_timeout",
    "WaitTests.test_first_exception",
    "WaitTests.test_timeout",
}
"""Library tests in which calls must be done within seconds: each runs first, and alone."""
SLOTS = 16

# Tests of every executor, and tests of process pools that do not depend on processes.
CLASSES = (
    "ExecutorShutdownTest", "WaitTests", "AsCompletedTests", "ExecutorTest", "InitializerMixin",
    "FailingInitializerMixin", "ProcessPoolExecutorTest", "ExecutorDeadlockTest",
)  # fmt: skip
PROCESSES = "looks at a pool's own processes; here they are the cluster's"
ALONE = "the pool lives on"
LIVES_ON = "a call that kills its process fails alone; " + ALONE
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
    "ExecutorDeadlockTest.test_exit_at_task_unpickle": "SystemExit is raised for that call; "
    + ALONE,
    "ExecutorDeadlockTest.test_error_at_task_unpickle": "the error is raised for that call; "
    + ALONE,
    "ExecutorDeadlockTest.test_exit_during_result_pickle_on_worker": "raises PackingError",
    "ExecutorDeadlockTest.test_exit_during_func_exec_on_worker": "raises RemoteError: what a task "
    "calls sys.exit for must not end the program that waits",
    "ExecutorDeadlockTest.test_shutdown_deadlock_pickle": "looks at a thread of a process pool",
}
THEIRS = borrowed.methods("test_concurrent_futures.py", CLASSES)
needs_theirs = pytest.mark.skipif(not THEIRS, reason=borrowed.MISSING)


class OnCiel(Executor):
    """Creates executors with the arguments that the library's tests pass."""

    def __init__(self, max_workers: int | None = None, mp_context: Any = None, **rest: Any) -> None:
        super().__init__(max_workers, **rest)


def test_case(theirs: ModuleType, name: str) -> unittest.TestCase:
    """Return a library test, in a class that is built as the library builds it for each kind of
    executor.
    """
    class_name, method = name.split(".")
    tests: Any = getattr(theirs, class_name)
    mixin: Any = theirs.ExecutorMixin

    class OfExecutor(tests, *(() if issubclass(tests, mixin) else (mixin,)), unittest.TestCase):  # type: ignore[misc]  # their classes are not typed
        executor_type = OnCiel
        get_context = lambda self: None  # noqa: E731

    case: unittest.TestCase = OfExecutor(method)
    return case


test_case.__test__ = False  # type: ignore[attr-defined]  # a factory of tests


def warm_up() -> None:
    importlib.import_module("test.test_concurrent_futures")
    time.sleep(0.5)


@pytest.fixture(scope="module")
def large_worker(client: Client, cluster: HandCluster) -> Iterator[None]:
    """Start a worker with many slots, whose processes run already: the library's tests order events
    by seconds.
    """
    worker = cluster.start_worker("--slots", str(SLOTS))
    client.gather([client.submit(warm_up) for _ in range(client.slot_count())])
    yield
    worker.terminate()
    worker.communicate(timeout=20)
    cluster.workers.remove(worker)


@pytest.fixture(scope="module")
def outcomes(large_worker: None) -> Iterator[dict[str, Future[str]]]:
    """Run the library's tests concurrently; return their outcomes."""
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
        longest_first = sorted(THEIRS, key=lambda name: not name.startswith("WaitTests."))
        started = {}
        for name in sorted(longest_first, key=lambda name: name not in WITHIN_SECONDS):
            if name not in LEFT_OUT:
                started[name] = beside_each_other.submit(borrowed.outcome, test_case(theirs, name))
            if name in WITHIN_SECONDS:
                started[name].result()
        yield started


@pytest.mark.slow
@needs_theirs
@pytest.mark.parametrize("name", [name for name in THEIRS if name not in LEFT_OUT])
def test_the_standard_librarys_test(name: str, outcomes: dict[str, Future[str]]) -> None:
    wrong = outcomes[name].result()
    assert not wrong, wrong


@needs_theirs
@pytest.mark.parametrize("name", LEFT_OUT)
def test_a_left_out_test_still_exists(name: str) -> None:
    assert name in THEIRS


# --- tests of ciel.Executor -----------------------------------------------------------------------


def fail(text: str) -> None:
    raise ValueError(text)  # some comment


def process_id(_: object = None) -> int:
    return os.getpid()


def test_an_exception_has_the_remote_traceback_as_its_cause(client: Client) -> None:
    with Executor() as executor, pytest.raises(ValueError, match="this") as found:
        executor.submit(fail, "this").result()
    assert isinstance(found.value.__cause__, ciel.RemoteTraceback)
    assert "raise ValueError(text)  # some comment" in str(found.value.__cause__)


def test_futures_may_be_arguments(client: Client) -> None:
    with Executor() as executor:
        assert (
            executor.submit(sum, [executor.submit(abs, -1), executor.submit(abs, -2)]).result() == 3
        )


def test_no_more_calls_run_at_once_than_workers(client: Client, tmp_path: Path) -> None:
    def run(number: int) -> int:
        (tmp_path / str(number)).touch()
        found = len(list(tmp_path.iterdir()))
        time.sleep(0.02)
        (tmp_path / str(number)).unlink()
        return found

    with Executor(2) as executor:
        assert max(executor.map(run, range(12))) <= 2


def test_the_iterables_of_a_map_are_read_ahead_only_as_far_as_buffersize(client: Client) -> None:
    read: list[int] = []

    def numbers() -> Iterator[int]:
        for number in range(10):
            read.append(number)
            yield number

    with Executor() as executor:
        results = executor.map(abs, numbers(), buffersize=3)
        assert (next(results), len(read)) == (0, 4)
        assert list(results) == list(range(1, 10))


def test_a_map_in_chunks_returns_results_up_to_the_one_that_fails(client: Client) -> None:
    with Executor() as executor:
        results = executor.map(divmod, [1, 2, 3, 4], [1, 1, 0, 1], chunksize=4)
        assert [next(results), next(results)] == [(1, 0), (2, 0)]
        with pytest.raises(ZeroDivisionError):
            next(results)


def test_an_initializer_that_fails_breaks_the_executor(client: Client) -> None:
    executor = Executor(initializer=fail, initargs=("no",))
    with pytest.raises(BrokenExecutor, match="initializer of the executor raised ValueError: no"):
        executor.submit(abs, -1).result()
    wait_for(lambda: executor._broken, "the end of the executor")
    with pytest.raises(BrokenExecutor):
        executor.submit(abs, -1)
    executor.shutdown()


def test_options_apply_to_every_call(client: Client) -> None:
    with pytest.raises(ValueError, match="slots"):
        Executor(slots=0)
    with Executor(timeout_s=0.5) as executor, pytest.raises(ciel.TaskTimeoutError):
        executor.submit(time.sleep, 60).result()


def in_a_task() -> list[int]:
    with Executor(2) as executor:
        found = executor.submit(abs, -3)
        return [*executor.map(abs, [-1, -2]), found.result()]


def test_an_executor_works_within_a_task(client: Client) -> None:
    assert client.submit(in_a_task).result(60) == [1, 2, 3]


@pytest.mark.slow
def test_without_a_cluster_an_executor_starts_its_own(tmp_path: Path) -> None:
    script = (
        "import ciel\n"
        "ex = ciel.Executor(2)\n"
        "print(sum(ex.map(abs, range(-4, 0))), ciel.Executor.__module__, flush=True)\n"
    )
    home = Home(tmp_path)
    ended = home.run(sys.executable, "-c", script)
    assert (ended.stdout, ended.returncode) == ("10 ciel.client.pools.executor\n", 0)
    assert "so this command starts one: 1 worker with 2 slots" in ended.stderr
    home.expect_nothing_left()
