"""Measures what a table of Arrow costs, step by step as in the thesis (POOL-8).

The benchmark rewrites the tables and plots of docs/measured/arrow.md: the steps of a table of 1
GiB, a table that a task passes on against a copy, and the speed of memory of the store. Expected
cost: all steps take microseconds, except for the writing of the values and for the pages, which the
kernel clears when they are allocated.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial

import cloudpickle
import pyarrow as pa

import ciel
import ciel.arrow
from benchmarks.plots import line_chart, table, write_down
from benchmarks.storage.arrow import ROWS, allocation_us, made, median_s, rows_of
from ciel.python import arrow_tables
from ciel.testing.c_programs import compiled

cloudpickle.register_pickle_by_value(sys.modules[__name__])
cloudpickle.register_pickle_by_value(sys.modules["benchmarks.storage.arrow"])

STEP_ROWS = 1 << 27  # of 8 bytes: 1 GiB
RUNS = 5
SWEEP = tuple(ROWS >> shift for shift in range(8, -1, -1))
BANDWIDTH_BYTES = 256 << 20
SIZES_BYTES = (128, 4096, 1 << 20)
ALLOCATIONS = 500

Steps = dict[str, float]


def steps(rows: int) -> tuple[pa.Table, Steps]:
    """Make a table; return it with the time of each step in milliseconds, and its end."""
    begun_s = time.perf_counter()
    draft = ciel.arrow.empty(pa.schema({"n": pa.uint64()}), rows)
    allocated_s = time.perf_counter()
    draft["n"][:] = 1
    written_s = time.perf_counter()
    whole = draft.table()
    here = arrow_tables.Locator(arrow_tables.Place(lambda context, address, size_bytes: 4096))
    arrow_tables.describe(whole, 0.0, here)
    described_s = time.perf_counter()
    return whole, {
        "allocate": (allocated_s - begun_s) * 1e3,
        "write": (written_s - allocated_s) * 1e3,
        "describe": (described_s - written_s) * 1e3,
        "ended": time.time(),
    }


def arrived(made_table: tuple[pa.Table, Steps]) -> Steps:
    """Return the steps of a table that has reached another task."""
    whole, taken = made_table
    now = time.time()
    assert whole.num_rows
    return {**taken, "announce": (now - taken.pop("ended")) * 1e3}


def step_medians(client: ciel.Client) -> Steps:
    """Return the medians of the steps of several tables, in milliseconds."""
    runs = [client.submit(arrived, client.submit(steps, STEP_ROWS)).result() for _ in range(RUNS)]
    names = ("allocate", "write", "describe", "announce")
    return {name: statistics.median(run[name] for run in runs) for name in names}


RECEIVE = """
import socket, sys
import pyarrow as pa
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as connection:
    table = pa.ipc.open_stream(connection.makefile("rb")).read_all()
    connection.sendall(b"x")
"""


def copied_ms(whole: pa.Table) -> float:
    """Return how long a copy of a table takes to another process, by Arrow's stream format."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        command = [sys.executable, "-c", RECEIVE, str(server.getsockname()[1])]
        with subprocess.Popen(command):
            connection, _ = server.accept()
            with connection, connection.makefile("wb") as file:
                begun_s = time.perf_counter()
                with pa.ipc.new_stream(file, whole.schema) as writer:
                    writer.write_table(whole)
                file.flush()
                connection.recv(1)
                return (time.perf_counter() - begun_s) * 1e3


def passed_on(client: ciel.Client, whole: ciel.Future[pa.Table]) -> int:
    """Pass a table to a task; return its number of rows."""
    return client.submit(rows_of, whole).result()


def sweep(client: ciel.Client) -> dict[int, tuple[float, float]]:
    """Return the times to pass a table on and to copy it, in milliseconds, by rows."""
    found: dict[int, tuple[float, float]] = {}
    without_s = median_s(lambda: client.submit(rows_of, 5).result())
    for rows in SWEEP:
        whole = client.submit(made, rows)
        ciel.wait([whole])
        client.submit(rows_of, whole).result()
        with_table_s = median_s(partial(passed_on, client, whole))
        found[rows] = (max(with_table_s - without_s, 0.0) * 1e3, copied_ms(whole.result()))
        del whole  # its space is needed
    return found


def bandwidths() -> dict[tuple[str, str, int, int, int], float]:
    """Return GB/s by memory, kind of access, threads, bytes of a value and stride."""
    program = str(
        compiled("bandwidth", ("../benchmarks/storage/bandwidth.c",), (), ("-O3", "-pthread"))
    )
    found = {}
    with tempfile.NamedTemporaryFile(prefix="ciel-bench-", dir="/dev/shm") as file:
        os.posix_fallocate(file.fileno(), 0, BANDWIDTH_BYTES)
        for where, arguments in (("store", [file.name]), ("private", [])):
            lines = subprocess.run(
                [program, *arguments], check=True, capture_output=True, text=True
            ).stdout.splitlines()
            for line in lines:
                kind, threads, width, stride, rate = line.split()
                found[where, kind, int(threads), int(width), int(stride)] = float(rate)
    return found


# --- the page -------------------------------------------------------------------------------------


def show_steps(taken: Steps, pools: dict[int, tuple[float, float]]) -> None:
    """Write the steps, and the times of allocations."""
    texts = {
        "allocate": "allocate the column in the store, with its pages",
        "write": "write the values",
        "describe": "write the descriptor",
        "announce": "end the task, announce the table, start a task that maps it",
    }
    rows = [[text, f"{taken[name]:.3f}"] for name, text in texts.items()]
    rows.append(["all", f"{sum(taken.values()):.3f}"])
    write_down("arrow", "steps", table(["step", "ms"], rows), {})
    sizes = [
        [f"{size:,}", f"{ours:.2f}", f"{theirs:.2f}"] for size, (ours, theirs) in pools.items()
    ]
    head = ["bytes", "in the store, us", "pyarrow's own pool, us"]
    write_down("arrow", "allocations", table(head, sizes), {})


def show_sweep(found: dict[int, tuple[float, float]]) -> None:
    """Write and plot the times to pass tables on and to copy them."""
    rows = [
        [f"{count:,}", f"{count * 11 / 2**20:.0f}", f"{passed:.3f}", f"{copied:.1f}"]
        for count, (passed, copied) in found.items()
    ]
    content = table(["rows", "MiB", "passed on, ms", "copied, ms"], rows)
    chart = line_chart(
        "A table of three columns reaches another process", "million rows", "milliseconds",
        {
            "copied": [(count / 1e6, copied) for count, (_, copied) in found.items()],
            "passed on": [(count / 1e6, passed) for count, (passed, _) in found.items()],
        },
        by_doubling=True,
    )  # fmt: skip
    write_down("arrow", "sweep", content, {"arrow-copies": chart})


def show_bandwidths(found: dict[tuple[str, str, int, int, int], float]) -> None:
    """Write and plot how fast memory is read and written."""
    threads = sorted({key[2] for key in found})
    cases = [(kind, count) for kind in ("read", "write") for count in threads]
    rows = [
        [f"{width * 8} bits"]
        + [
            f"{found[where, kind, count, width, 1]:.1f}"
            for kind, count in cases
            for where in ("store", "private")
        ]
        for width in (1, 2, 4, 8)
    ]
    head = ["values of"]
    for kind, count in cases:
        with_threads = f"{kind}, {count} thread" + "s" * (count > 1)
        head += [f"{with_threads}, store", "private"]
    strides = sorted({key[4] for key in found})
    chart = line_chart(
        "Every n-th value of 8 bytes, one thread", "stride", "GB/s of values",
        {
            f"{kind}, {where}": [(s, found[where, kind, 1, 8, s]) for s in strides]
            for kind in ("read", "write")
            for where in ("store", "private")
        },
        by_doubling=True,
    )  # fmt: skip
    write_down("arrow", "bandwidths", table(head, rows), {"arrow-strides": chart})


def measure() -> dict[str, float]:
    """Measure, write the page, and return the figures of the steps."""
    with ciel.Client(cluster_options={"workers": 2, "slots": 1, "store": "shm"}) as client:
        taken = step_medians(client)
        pools = {
            size: client.submit(allocation_us, size, ALLOCATIONS).result() for size in SIZES_BYTES
        }
        copies = sweep(client)
    show_steps(taken, pools)
    show_sweep(copies)
    show_bandwidths(bandwidths())
    passed_ms, copied = copies[ROWS]
    found = {f"{name}_ms": took for name, took in taken.items()}
    return found | {"passed_ms": passed_ms, "copied_ms": copied}


if __name__ == "__main__":
    print(json.dumps(measure(), indent=2))
