"""Compares ciel's Python API on two slots with other systems that run Python functions.

The systems run in alternation, with a client in the same process and the same functions; ratios are
medians of the ratios of pairs. The lower bound for the array is in `shared_map.c`. Expected cost of
a no-op: one task carries hundreds of calls, so nearly all of the cost is to pack a call and read
its result in the client (10 us together), and to run it in the program (5 us).
"""

from __future__ import annotations

import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ciel
from benchmarks.languages import python_calls as calls
from benchmarks.languages import python_peers as peers
from ciel.testing.c_programs import compiled
from ciel.testing.homes import fields_of

PAIRS = 3
SLOW_TASKS = 2000
"""The number of calls for other systems with a graph, which need a minute for `peers.TASKS`."""
ARRAY_PAIRS = 5
ARGUMENT_BYTES = 1 << 20
ARGUMENT_TASKS = 2000
FIB = 19
STARTS = 5
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
SOURCE = ("../benchmarks/languages/shared_map.c",)
START = """
import time
start_s = time.perf_counter()
import ciel
ciel.Client, ciel.task
import_s = time.perf_counter()
client = ciel.Client(cluster_options={"slots": 2})
client_s = time.perf_counter()
assert client.submit(abs, -1).result() == 1
result_s = time.perf_counter()
client.close()
print(import_s - start_s, client_s - import_s, result_s - client_s)
"""


def tree_cpu_s() -> float:
    """Return the CPU time so far of this process and of all its descendants.

    It includes descendants that have ended and were reaped.
    """
    used, parents = {}, {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = fields_of(entry)
        except OSError:
            continue
        parents[int(entry.name)] = int(fields[1])
        used[int(entry.name)] = sum(map(int, fields[11:15])) / TICKS_PER_S
    ours = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return sum(used.get(pid, 0) for pid in ours)


@contextmanager
def opened(store: str = "disk") -> Iterator[peers.Pool]:
    """Start a cluster of ciel with a worker of two slots, and connect a client."""
    with (
        ciel.LocalCluster(workers=1, slots=peers.PROCESSES, store=store) as cluster,
        ciel.Client(cluster) as client,
    ):

        def mapped(function: Callable[[int], int], numbers: Any) -> int:
            return sum(1 for _ in client.map(function, numbers))

        yield peers.Pool("ciel", client.submit, client.gather, map=mapped)


def median_of(measured: Callable[[], float], count: int = PAIRS) -> float:
    """Return the median of some values."""
    return statistics.median(measured() for _ in range(count))


def small(ours: peers.Pool) -> dict[str, float]:
    """Return the times of many small tasks, compared with the pool's and joblib's."""
    found: dict[str, float] = {}
    with peers.standard() as pool:
        peers.no_ops_s(ours)
        peers.no_ops_s(pool, 1000)
        for name, asked in (("cpu_us", ours), ("pool_cpu_us", pool)):
            before_s = tree_cpu_s()
            peers.no_ops_s(asked)
            found[name] = (tree_cpu_s() - before_s) / peers.TASKS * 1e6
        for name, workload, count in (
            ("no_ops", peers.no_ops_s, peers.TASKS),
            ("kibibytes", peers.kibibytes_s, peers.TASKS),
            ("hops", peers.chain_s, peers.HOPS),
            ("fan_in", peers.fan_in_s, 1),
            ("map", peers.map_s, peers.MAPPED),
        ):
            pairs = [(workload(ours), workload(pool)) for _ in range(PAIRS)]
            for who, times_s in zip(("", "pool_"), zip(*pairs, strict=True), strict=True):
                found[f"{who}{name}_per_s"] = count / statistics.median(times_s)
            ratios = [theirs / mine for mine, theirs in pairs]
            found[f"{name}_to_pool"] = statistics.median(ratios)
    found["hop_us"] = 1e6 / found["hops_per_s"]
    found["fan_in_s"] = 1 / found["fan_in_per_s"]
    found["pool_hop_us"] = 1e6 / found["pool_hops_per_s"]
    found["pool_fan_in_s"] = 1 / found["pool_fan_in_per_s"]
    with peers.joblib() as joblib:
        peers.map_s(joblib, 1000)
        found["joblib_map_per_s"] = peers.MAPPED / median_of(lambda: peers.map_s(joblib))
    return found


def captured(ours: peers.Pool) -> dict[str, float]:
    """Compare calls of functions that capture a small dictionary with calls of other functions.

    The other functions capture nothing; the client pickles all of them by value.
    """
    settings: dict[str, Any] = {"rate": 1, "name": "x", "steps": [1, 2, 3]}

    def free(number: int) -> int:
        return number + 1

    def bound(number: int) -> Any:
        return number + settings["rate"]

    def submitted_s(function: Callable[[int], Any]) -> float:
        return peers.elapsed_s(
            lambda: ours.gather([ours.submit(function, n) for n in range(peers.TASKS)])
        )

    def chained_s(function: Callable[[int], Any]) -> float:
        def chain() -> None:
            last: Any = 0
            for _ in range(10 * peers.HOPS):
                last = ours.submit(function, last)
            ours.gather([last])

        return peers.elapsed_s(chain)

    def called_s(function: Callable[[int], Any]) -> float:
        return peers.elapsed_s(
            lambda: [ours.gather([ours.submit(function, n)]) for n in range(peers.HOPS)]
        )

    workloads = {"no_ops": submitted_s, "hops": chained_s, "calls": called_s}
    return {
        f"captured_{name}_to_free": median_of(lambda timed=timed: timed(free) / timed(bound))  # type: ignore[misc]  # a default binds it now
        for name, timed in workloads.items()
    }


def graphs(ours: peers.Pool) -> dict[str, float]:
    """Return the comparison with other systems that have a graph, if they are installed."""
    found: dict[str, float] = {}
    for peer in peers.graph_peers():
        with peer() as theirs:
            peers.no_ops_s(theirs, 1000)
            pairs = [
                (peers.no_ops_s(ours, SLOW_TASKS), peers.no_ops_s(theirs, SLOW_TASKS))
                for _ in range(PAIRS)
            ]
            found[f"no_ops_to_{theirs.name}"] = statistics.median(
                their_s / our_s for our_s, their_s in pairs
            )
            found[f"{theirs.name}_hop_us"] = peers.chain_s(theirs) / peers.HOPS * 1e6
            found[f"{theirs.name}_fan_in_s"] = peers.fan_in_s(theirs)
            kibibytes_s = peers.kibibytes_s(theirs, SLOW_TASKS)
            found[f"{theirs.name}_kibibytes_per_s"] = SLOW_TASKS / kibibytes_s
            found[f"{theirs.name}_array_s"] = peers.array_s(theirs, library(), 1.0)
    return found


def trees(ours: peers.Pool) -> dict[str, float]:
    """Return the rates at which tasks spawn tasks and wait for them, or delegate to them."""
    count = calls.calls_of_fib(FIB)
    found: dict[str, float] = {}
    for name, task in (("fib", calls.fib), ("delegated_fib", calls.delegated_fib)):

        def tree_s(task: Any = task) -> float:
            start_s = time.perf_counter()
            assert ours.submit(task, FIB).result() == calls.plain_fib(FIB)
            return time.perf_counter() - start_s

        tree_s()
        found[f"{name}_per_s"] = count / median_of(tree_s)
    return found


def large_arguments(client: ciel.Client) -> dict[str, float]:
    """Compare tasks that all read an object of 1 MiB with tasks that read an empty value.

    The empty value is an object in one case, and part of the call in the other.
    """

    def tasks_s(content: Any, size_bytes: int) -> float:
        start_s = time.perf_counter()
        futures = [client.submit(calls.size_of, content, n) for n in range(ARGUMENT_TASKS)]
        assert set(client.gather(futures)) == {size_bytes}
        return time.perf_counter() - start_s

    large, empty = client.put(os.urandom(ARGUMENT_BYTES)), client.put(b"")
    tasks_s(large, ARGUMENT_BYTES)
    rows = [
        (tasks_s(large, ARGUMENT_BYTES), tasks_s(empty, 0), tasks_s(b"", 0))
        for _ in range(2 * PAIRS)
    ]
    return {
        "large_argument_per_s": ARGUMENT_TASKS / statistics.median(row[0] for row in rows),
        "large_to_empty": statistics.median(row[1] / row[0] for row in rows),
        "large_to_inline": statistics.median(row[2] / row[0] for row in rows),
    }


def library() -> str:
    """Return the C library with which tasks add numbers."""
    return str(compiled("shared_map.so", SOURCE, (), ("-O3", "-fPIC", "-shared")))


def arrays() -> dict[str, float]:
    """Return the time of producing an array and reading it four times, and the lower bound.

    Measure a store with huge pages that recycles memory, and a store with small pages.
    """
    found = arrays_in("shm:capacity=2GiB,arena=yes", "")
    return found | arrays_in("shm:capacity=2GiB", "small_pages_")


def arrays_in(store: str, prefix: str) -> dict[str, float]:
    """Return all figures on arrays in one store.

    Some readers sum as fast as memory can be read, so that all other costs are visible. Other
    readers use a plain loop.
    """
    found: dict[str, float] = {}
    with opened(store) as ours:
        for way, add, options in (
            ("", calls.total, ()),
            ("one_by_one_", calls.total_one_by_one, ("one-by-one",)),
        ):
            pairs = array_pairs(ours, add, options)
            found.setdefault(f"{prefix}cold_array_s", pairs[0][0])
            warm, name = pairs[2:], f"{prefix}{way}"
            ratio = statistics.median(ours_s / bare_s for ours_s, bare_s in warm)
            found[f"{name}array_to_floor"] = ratio
            found[f"{name}array_s"] = statistics.median(ours_s for ours_s, _ in warm)
            found[f"{name}floor_s"] = statistics.median(bare_s for _, bare_s in warm)
    return found


def array_pairs(
    ours: peers.Pool, add: Callable[..., float], options: Sequence[str]
) -> list[tuple[float, float]]:
    """Return the times of an array that readers sum in one way, each with the lower bound."""
    program = [str(compiled("shared_map", SOURCE, (), ("-O3",))), str(peers.ARRAY_BYTES), *options]
    pairs: list[tuple[float, float]] = []
    with subprocess.Popen(
        program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as floor:
        assert floor.stdin is not None
        assert floor.stdout is not None
        asked, answers = floor.stdin, floor.stdout

        def floor_s() -> float:
            asked.write("\n")
            return float(answers.readline())

        for number in range(2 + ARRAY_PAIRS):
            array_s = peers.array_s(ours, library(), float(number), calls.array_in_store, add)
            pairs.append((array_s, floor_s()))
        asked.close()
    return pairs


def starts() -> dict[str, float]:
    """Return the times that a program needs to start.

    It loads ciel, then starts a client with its own cluster, and then gets a first result.
    """
    rows = []
    with tempfile.TemporaryDirectory() as state:
        environ = {"PATH": os.environ["PATH"], "HOME": state, "XDG_STATE_HOME": state}
        for _ in range(STARTS):
            done = subprocess.run(
                [sys.executable, "-c", START], env=environ, check=True, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )  # fmt: skip
            rows.append([float(word) for word in done.stdout.split()])
    names = ("import_s", "client_s", "first_result_s")
    return {
        name: statistics.median(times_s)
        for name, times_s in zip(names, zip(*rows, strict=True), strict=True)
    }


def measure() -> dict[str, float]:
    """Measure everything."""
    found = starts()
    with opened() as ours:
        found |= small(ours) | captured(ours) | trees(ours) | graphs(ours)
    gc.collect()
    # otherwise the collector might scan the objects of the peers during one of the two kinds
    gc.freeze()
    with ciel.LocalCluster(workers=1, slots=2) as cluster, ciel.Client(cluster) as client:
        found |= large_arguments(client)
    return found | arrays()


if __name__ == "__main__":
    print(json.dumps(measure(), indent=2))
