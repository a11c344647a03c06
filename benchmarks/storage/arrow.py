"""Measures tables of Arrow: descriptors, allocation, and the ways between tasks (POOL-8).

The floor of the Parquet figure is two processes that use pyarrow alone.
"""

from __future__ import annotations

import importlib.util
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import ciel
import ciel.arrow
from benchmarks.languages.python_peers import Pool, ray
from ciel.python import arrow_tables

cloudpickle.register_pickle_by_value(sys.modules[__name__])

KINDS = pa.schema({"a": pa.int64(), "b": pa.int8(), "c": pa.uint16()})
ROWS = 157_286_400  # 1.6 GiB, as in the thesis
BATCHES, TASKS = 10_000, 64
ALLOCATIONS = 10_000
LENT_ALLOCATIONS = 500  # of one output: the owner frees their memory while the next one begins
BARRIERS = 5_000
PARQUET_ROWS = 33_554_432  # of each of two files: 512 MiB of random numbers in two columns
PARQUET_ROUNDS = 7
REPEATS = 31
VERIFIED_WITHIN_S = 3.0


def median_s(run: Callable[[], object], repeats: int = REPEATS) -> float:
    """Return the median time of a call."""
    times = []
    for _ in range(repeats):
        begun_s = time.perf_counter()
        run()
        times.append(time.perf_counter() - begun_s)
    return statistics.median(times)


def descriptors() -> dict[str, float]:
    """Measure how long the descriptor of a table of three columns is written and read."""
    table = pa.table({name: np.zeros(1000, kind.to_pandas_dtype()) for name, kind in
                      zip(KINDS.names, KINDS.types, strict=True)})  # fmt: skip
    placed = arrow_tables.Locator(arrow_tables.Place(lambda context, address, size_bytes: 4096))
    content = memoryview(b"".join(map(bytes, arrow_tables.encode(table, 0.0))))
    write_s = median_s(lambda: arrow_tables.describe(table, 0.0, placed), 2001)
    return {
        "write_us": write_s * 1e6,
        "read_us": median_s(lambda: arrow_tables.read(content), 2001) * 1e6,
    }


def made(rows: int) -> pa.Table:
    """Return a table that lies in the store from the start."""
    draft = ciel.arrow.empty(KINDS, rows)
    for name in KINDS.names:
        draft[name][:] = 1
    return draft.table()


def rows_of(table: Any) -> int:
    """Return the number of rows, without reading them."""
    return table.num_rows if isinstance(table, pa.Table) else 0


def private_bytes(table: pa.Table) -> int:
    """Read a table; return by how much that has increased the private memory of this process."""

    def resident() -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        (anonymous,) = [line for line in lines if line.startswith("RssAnon:")]
        return int(anonymous.split()[1]) << 10

    before = resident()
    total = pc.sum(table["a"]).as_py()
    assert total == table.num_rows
    return resident() - before


def warm_up(client: ciel.Client, argument: object) -> None:
    """Call a function for some seconds; meanwhile each worker verifies its objects."""
    until_s = time.monotonic() + VERIFIED_WITHIN_S
    while time.monotonic() < until_s:
        client.gather([client.submit(ciel.task(rows_of, slots=1), argument) for _ in range(4)])


def whole_table(client: ciel.Client) -> dict[str, float]:
    """Measure how long a task waits for a table of 1.6 GiB that another task has made.

    Each worker verifies the table before its first task reads it, which is measured apart.
    """
    table = client.submit(made, ROWS)
    ciel.wait([table])
    warm_up(client, 5)  # until its checksum is known
    begun_s = time.perf_counter()
    assert client.submit(rows_of, table).result() == ROWS
    first_s = time.perf_counter() - begun_s
    warm_up(client, table)
    taken: dict[str, list[float]] = {"table": [], "number": []}
    for _ in range(REPEATS):  # in turn: the speed of the machine changes
        for what, argument in (("table", table), ("number", 5)):
            begun_s = time.perf_counter()
            client.submit(rows_of, argument).result()
            taken[what].append(time.perf_counter() - begun_s)
    with_table_s, without_s = (statistics.median(times) for times in taken.values())
    private_mib = client.submit(private_bytes, table).result() / 2**20
    return {
        "table_ms": (with_table_s - without_s) * 1e3,
        "first_table_ms": first_s * 1e3,
        "private_mib": private_mib,
    }


def allocation_us(size_bytes: int, count: int = ALLOCATIONS) -> tuple[float, float]:
    """Return the time of an allocation in the store and in pyarrow's own pool, in microseconds.

    The pages of the store are allocated then, those of the other pool at the first access.
    """
    found = []
    for pool in (ciel.arrow.memory_pool(), pa.default_memory_pool()):
        begun_s = time.perf_counter()
        kept = [pa.allocate_buffer(size_bytes, pool) for _ in range(count)]
        found.append((time.perf_counter() - begun_s) / count * 1e6)
        del kept
    return found[0], found[1]


def lent_us(at: str, size_bytes: int) -> dict[str, float]:
    """Return the times to get memory of the worker at an address, and for a buffer in it."""
    begun_s = time.perf_counter()
    pool = ciel.arrow.memory_pool(at)
    opened_s = time.perf_counter()
    kept = [pa.allocate_buffer(size_bytes, pool) for _ in range(LENT_ALLOCATIONS)]
    ended_s = time.perf_counter()
    del kept
    return {
        "lent_memory_us": (opened_s - begun_s) * 1e6,
        "lent_allocation_us": (ended_s - opened_s) / LENT_ALLOCATIONS * 1e6,
    }


def lending(client: ciel.Client) -> dict[str, float]:
    """Measure allocation in the memory of a worker that does not run the task."""
    addresses = {row["worker"]: row["netloc"] for row in client.ask("workers")}
    times: dict[str, list[float]] = {"lent_memory_us": [], "lent_allocation_us": []}
    for at in addresses.values():
        calls: list[Any] = [client.submit(lent_us, at, 4096) for _ in range(REPEATS)]
        for call in calls:
            found = call.result()
            task = client.ask("object", {"object": call.object_id})["made_by"]
            rows = client.ask("tasks", {"job": "last"})["tasks"]
            (ran_on,) = [row["worker"] for row in rows if row["task"] == task]
            if addresses[ran_on] != at:
                for name, took_us in found.items():
                    times[name].append(took_us)
    return {name: statistics.median(taken) for name, taken in times.items()}


def batches(count: int) -> pa.Table:
    """Return a table of many batches in the store."""
    whole = made(count * 10)
    return pa.concat_tables([whole.slice(n * 10, 10) for n in range(count)])


def concatenation(client: ciel.Client) -> dict[str, float]:
    """Measure how long 10,000 batches of 64 tasks are read as one table and validated."""
    counts = [BATCHES // TASKS + (n < BATCHES % TASKS) for n in range(TASKS)]
    times = []
    for _ in range(5):
        parts = [ciel.task(batches, slots=1).spawn(count) for count in counts]
        ciel.wait(parts)
        begun_s = time.perf_counter()
        table = ciel.arrow.concat(parts).result()
        table.validate()
        times.append(time.perf_counter() - begun_s)
        assert table["a"].num_chunks == BATCHES
    return {"concat_ms": statistics.median(times) * 1e3}


def barriers_us(number: int) -> float:
    """Return the time of a barrier with another task, in microseconds."""
    states = ciel.arrow.States("barriers", number=number, size=2)
    for _ in range(100):
        states.barrier(timeout=60)
    begun_s = time.perf_counter()
    for _ in range(BARRIERS):
        states.barrier(timeout=60)
    return (time.perf_counter() - begun_s) / BARRIERS * 1e6


def load(path: str) -> pa.Table:
    """Decode a Parquet file into the store."""
    with ciel.arrow.in_store():
        return pq.read_table(path)


def total(table: pa.Table, column: str) -> int:
    """Sum a column."""
    return int(pc.sum(table[column]).as_py())


PLAIN = """
import sys
import pyarrow.compute as pc, pyarrow.parquet as pq
pq.read_table(sys.argv[2])
print(flush=True)
sys.stdin.readline()
table = pq.read_table(sys.argv[1])
print(*[pc.sum(table[name]).as_py() for name in ("x", "y")], flush=True)
sys.stdin.readline()
"""


def plain_s(paths: list[str], small: str) -> float:
    """Return the time in which two processes with pyarrow alone decode and sum a file each."""
    processes: list[Any] = [
        subprocess.Popen(
            [sys.executable, "-c", PLAIN, path, small], text=True, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for path in paths
    ]  # fmt: skip
    for process in processes:
        process.stdout.readline()
    begun_s = time.perf_counter()
    for process in processes:
        print(file=process.stdin, flush=True)
    for process in processes:
        assert process.stdout.readline().strip()
    took_s = time.perf_counter() - begun_s
    for process in processes:
        process.communicate("\n")
    return took_s


def tasks_s(pool: Pool, decode: Callable[[str], pa.Table], paths: list[str]) -> float:
    """Return the time in which two tasks decode a file each, and four sum their columns."""
    begun_s = time.perf_counter()
    parts = [pool.submit(decode, path) for path in paths]
    sums = [pool.submit(total, part, name) for part in parts for name in ("x", "y")]
    pool.gather(sums)
    return time.perf_counter() - begun_s


@contextmanager
def ray_if_installed() -> Iterator[Pool | None]:
    """Use ray if it is installed."""
    if importlib.util.find_spec("ray") is None:
        print("not compared with ray: it is not installed", file=sys.stderr)
        yield None
        return
    with ray() as pool:
        yield pool


def parquet(client: ciel.Client) -> dict[str, float]:
    """Compare the decoding of 1 GiB of Parquet by tasks with plain processes, and with ray."""
    ours = Pool("ciel", client.submit, client.gather)
    with tempfile.TemporaryDirectory() as directory, ray_if_installed() as theirs:
        chance = np.random.default_rng(1)
        paths = [f"{directory}/{part}.parquet" for part in range(2)]
        for path, rows in (*((path, PARQUET_ROWS) for path in paths), (f"{directory}/small", 9)):
            numbers = {name: chance.integers(0, 2**62, rows) for name in ("x", "y")}
            pq.write_table(pa.table(numbers), path, compression="NONE", use_dictionary=False)
        small = f"{directory}/small"
        for pool, warm in ((ours, load), (theirs, pq.read_table)):
            if pool is not None:
                pool.gather([pool.submit(warm, small) for _ in range(4)])
        times: list[list[float]] = [[], [], []]
        for _ in range(PARQUET_ROUNDS):
            times[0].append(tasks_s(ours, load, paths))
            times[1].append(plain_s(paths, small))
            if theirs is not None:
                times[2].append(tasks_s(theirs, pq.read_table, paths))
    ours_s, plain_median_s = statistics.median(times[0]), statistics.median(times[1])
    found = {"parquet_s": ours_s, "parquet_to_plain": ours_s / plain_median_s}
    if theirs is not None:
        found |= {"parquet_to_ray": statistics.median(times[2]) / ours_s}
    return found


def measure() -> dict[str, float]:
    """Measure each figure."""
    found = descriptors()
    with ciel.Client(cluster_options={"workers": 2, "slots": 1, "store": "shm"}) as client:
        found |= whole_table(client)
        found |= concatenation(client)
        ours_us, theirs_us = client.submit(allocation_us, 4096).result()
        found |= {"allocation_us": ours_us, "pyarrow_allocation_us": theirs_us}
        found |= lending(client)
        member = ciel.task(barriers_us, slots=1)
        found["barrier_us"] = max(client.gather([client.submit(member, n) for n in range(2)]))
        found |= parquet(client)
    return found


if __name__ == "__main__":
    os.environ.setdefault("CIEL_QUIET", "1")
    for key, value in measure().items():
        print(f"{key:22} {value:10.3f}")
