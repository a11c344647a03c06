"""Other systems that run Python functions in two processes, and the workloads to compare.

Each system is wrapped in the same interface, `Pool`.
The standard library's pool is always available; joblib, dask (in its best configuration, with
`worker-saturation: inf`) and ray are used if they are installed.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from benchmarks.languages import python_calls as calls

PROCESSES = 2
TASKS = 10_000
MAPPED = 100_000
HOPS = 1000
JOINED = 1000
ARRAY_BYTES = 256 << 20
READERS = 4


@dataclass(frozen=True)
class Pool:
    """Two processes that execute calls.

    If `takes_futures` is false, the workloads pass results as arguments instead of futures.
    """

    name: str
    submit: Callable[..., Any]
    gather: Callable[[list[Any]], list[Any]]
    takes_futures: bool = True
    map: Callable[[Callable[[int], int], Sequence[int]], int] | None = None
    """Calls a function for each element; returns the number of results."""


# --- workloads ------------------------------------------------------------------------------------


def no_ops_s(pool: Pool, count: int = TASKS) -> float:
    """Return the time of many calls that do nothing, each submitted separately."""
    return _submitted_s(pool, calls.same, range(count))


def kibibytes_s(pool: Pool, count: int = TASKS) -> float:
    """Return the time of many calls that each return 1 KiB."""
    return _submitted_s(pool, calls.kibibyte, range(count))


def elapsed_s(do: Callable[[], object]) -> float:
    """Return the duration of a call."""
    start_s = time.perf_counter()
    do()
    return time.perf_counter() - start_s


def _submitted_s(pool: Pool, function: Callable[[int], Any], numbers: Sequence[int]) -> float:
    start_s = time.perf_counter()
    found = pool.gather([pool.submit(function, number) for number in numbers])
    took_s = time.perf_counter() - start_s
    expected = (function(numbers[0]), function(numbers[-1]), len(numbers))
    assert (found[0], found[-1], len(found)) == expected
    return took_s


def chain_s(pool: Pool, hops: int = HOPS) -> float:
    """Return the time of calls that each need the result of the previous one."""
    start_s = time.perf_counter()
    last: Any = 0
    for _ in range(hops):
        last = pool.submit(calls.next_of, last)
        if not pool.takes_futures:
            last = last.result()
    (found,) = pool.gather([last]) if pool.takes_futures else (last,)
    assert found == hops
    return time.perf_counter() - start_s


def fan_in_s(pool: Pool, count: int = JOINED) -> float:
    """Return the time until one call has the results of many calls."""
    start_s = time.perf_counter()
    parts = [pool.submit(calls.same, number) for number in range(count)]
    if pool.takes_futures:
        (found,) = pool.gather([pool.submit(calls.add_up, *parts)])
    else:
        found = sum(pool.gather(parts))
    assert found == sum(range(count))
    return time.perf_counter() - start_s


def map_s(pool: Pool, count: int = MAPPED) -> float:
    """Return the time of a map of a function that does nothing."""
    assert pool.map is not None
    start_s = time.perf_counter()
    assert pool.map(calls.same, range(count)) == count
    return time.perf_counter() - start_s


def array_s(
    pool: Pool,
    library: str,
    value: float,
    make: Callable[..., Any] = calls.array,
    add: Callable[..., float] = calls.total,
) -> float:
    """Return the time until four calls have summed the array of a first one."""
    count = ARRAY_BYTES // 8
    start_s = time.perf_counter()
    made = pool.submit(make, count, value)
    if not pool.takes_futures:
        made = made.result()
    found = pool.gather([pool.submit(add, made, library) for _ in range(READERS)])
    took_s = time.perf_counter() - start_s
    assert found == [add(calls.array(1, value), library) * count] * READERS
    return took_s


# --- peers ----------------------------------------------------------------------------------------


@contextmanager
def standard() -> Iterator[Pool]:
    """Use `concurrent.futures.ProcessPoolExecutor`, which has no graph."""
    with ProcessPoolExecutor(PROCESSES) as executor:

        def mapped(function: Callable[[int], int], numbers: Sequence[int]) -> int:
            return sum(1 for _ in executor.map(function, numbers, chunksize=1000))

        def gathered(futures: list[Any]) -> list[Any]:
            return [future.result() for future in futures]

        yield Pool("pool", executor.submit, gathered, takes_futures=False, map=mapped)


@contextmanager
def joblib() -> Iterator[Pool]:
    """Use joblib's own backend, which only maps."""
    joblib = importlib.import_module("joblib")
    with joblib.Parallel(n_jobs=PROCESSES) as parallel:

        def mapped(function: Callable[[int], int], numbers: Sequence[int]) -> int:
            return len(parallel(joblib.delayed(function)(number) for number in numbers))

        def refuse(*_: Any) -> Any:
            raise NotImplementedError

        yield Pool("joblib", refuse, refuse, map=mapped)
    importlib.import_module("joblib.externals.loky").get_reusable_executor().shutdown()


@contextmanager
def dask() -> Iterator[Pool]:
    """Use a `distributed.LocalCluster` of two processes with a thread each."""
    config: Any = importlib.import_module("dask").config
    distributed = importlib.import_module("distributed")
    settings = {"distributed.scheduler.worker-saturation": float("inf"), "logging": {}}
    with (
        config.set(settings),
        distributed.LocalCluster(
            n_workers=PROCESSES, threads_per_worker=1, dashboard_address=None,
            silence_logs=logging.ERROR,
        ) as cluster,
        distributed.Client(cluster) as client,
    ):  # fmt: skip

        def submit(function: Callable[..., Any], *args: Any) -> Any:
            return client.submit(function, *args, pure=False)

        yield Pool("dask", submit, client.gather)


@contextmanager
def ray() -> Iterator[Pool]:
    """Use ray, with two processors."""
    ray = importlib.import_module("ray")
    ray.init(num_cpus=PROCESSES, include_dashboard=False, log_to_driver=False)
    remote: dict[Any, Any] = {}

    def submit(function: Callable[..., Any], *args: Any) -> Any:
        if function not in remote:
            remote[function] = ray.remote(function)
        return remote[function].remote(*args)

    try:
        yield Pool("ray", submit, ray.get)
    finally:
        ray.shutdown()


def graph_peers() -> list[Any]:
    """Return the installed systems with a graph; print which are missing."""
    found = []
    for peer, module in ((dask, "distributed"), (ray, "ray")):
        if importlib.util.find_spec(module) is None:
            print(f"not compared with {peer.__name__}: it is not installed", file=sys.stderr)
        else:
            found.append(peer)
    return found
