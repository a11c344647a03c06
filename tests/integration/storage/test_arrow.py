"""Tests that tables of Arrow are made in the store and read there, without a copy (POOL-1, POOL-2):
by real programs, in each store, and on two hosts.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

pytest.importorskip("pyarrow")

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import ciel
import ciel.arrow
from ciel.arrow.pool import why_not
from ciel_tests.clusters.hosts import Hosts, TwoHosts

if reason := why_not():
    pytest.skip(f"no buffers in the store here: {reason}", allow_module_level=True)

cloudpickle.register_pickle_by_value(sys.modules[__name__])

PARTS, ROWS = 3, 200_000
STORES = (
    "disk",
    "shm:capacity=256MiB",
    f"scc:capacity=256MiB,cores=3,instance=arrow-{os.getpid()}",
)
SMALL_BYTES = 200_000
"""Room for messages and pickles, but not for a column."""


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    directory = tmp_path_factory.mktemp("parquet")
    for part in range(PARTS):
        numbers = np.arange(part * ROWS, (part + 1) * ROWS)
        texts = [f"row {n % 1000}" for n in numbers]
        table = pa.table({"k": numbers % 7, "v": numbers * 0.5, "t": texts})
        pq.write_table(table, directory / f"{part}.parquet")
    return [str(directory / f"{part}.parquet") for part in range(PARTS)]


@pytest.fixture(scope="module")
def expected(paths: list[str]) -> pa.Table:
    return pa.concat_tables([pq.read_table(path) for path in paths])


@pytest.fixture(scope="module", params=STORES, ids=["disk", "shm", "scc"])
def client(request: pytest.FixtureRequest) -> Iterator[ciel.Client]:
    options = {"workers": 2, "slots": 1, "store": request.param}
    with ciel.Client(cluster_options=options) as client:
        yield client


def written_bytes() -> tuple[int, int]:
    """Return this program's id, and how many bytes it has written by system calls."""
    counted = Path("/proc/self/io").read_text().split()
    return os.getpid(), int(counted[counted.index("wchar:") + 1])


def load(path: str) -> pa.Table:
    with ciel.arrow.in_store():
        return pq.read_table(path)


def fill(rows: int) -> pa.Table:
    draft = ciel.arrow.empty(pa.schema({"a": pa.int64(), "b": pa.float32()}), rows)
    draft["a"][:] = np.arange(rows)
    draft["b"][:] = 1
    return draft.table()


def copied_bytes(table: pa.Table) -> int:
    """Return how many bytes of a table lie in memory of this process alone."""
    anonymous = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, _, _, device, inode, *_ = line.split()
        if inode == "0" and device == "00:00":
            start, _, end = span.partition("-")
            anonymous.append((int(start, 16), int(end, 16)))
    return sum(
        buffer.size
        for column in table.columns
        for chunk in column.chunks
        for buffer in chunk.buffers()
        if buffer is not None and any(a <= buffer.address < b for a, b in anonymous)
    )


def describe(table: pa.Table) -> tuple[int, float, int]:
    return table.num_rows, pa.compute.sum(table[0]).as_py(), copied_bytes(table)


def programs(client: ciel.Client) -> dict[int, int]:
    """Return what each program of the cluster has written so far."""
    found: dict[int, int] = {}
    while len(found) < 2:
        found |= dict(client.gather([client.submit(written_bytes) for _ in range(4)]))
    return found


@pytest.mark.slow
def test_tables_are_made_and_read_in_the_store(
    client: ciel.Client, paths: list[str], expected: pa.Table
) -> None:
    before = programs(client)
    parts = [client.submit(load, path) for path in paths]
    ciel.wait(parts)
    after = programs(client)
    for pid, count in before.items():
        assert after[pid] - count < SMALL_BYTES
    whole = ciel.arrow.concat(parts)
    found = whole.result(timeout=60)
    found.validate(full=True)
    assert found.equals(expected)
    assert copied_bytes(found) == 0
    rows, total, copied = client.submit(describe, whole).result()
    assert (rows, total, copied) == (PARTS * ROWS, pa.compute.sum(expected["k"]).as_py(), 0)
    selected = ciel.arrow.concat(parts, columns=["v"])
    assert client.submit(describe, selected).result()[1] == pa.compute.sum(expected["v"]).as_py()


def test_a_draft_is_filled_in_the_store(client: ciel.Client) -> None:
    before = programs(client)
    table = client.submit(fill, 500_000).result()
    after = programs(client)
    assert all(after[pid] - count < SMALL_BYTES for pid, count in before.items())
    assert table["a"].to_numpy().tolist()[-1] == 499_999
    assert copied_bytes(table) == 0


def mixed(rows: int) -> tuple[Any, Any, Any]:
    """Return a table and an array of the store, and a table of elsewhere."""
    array = ciel.empty(1000, "int64")
    array[:] = 5
    table = fill(rows)
    later = ciel.empty(1000, "int64")
    later[:] = 6
    return table, [array, later], pa.table({"x": [1, 2, 3]})


def test_arrays_and_tables_share_an_output(client: ciel.Client) -> None:
    table, arrays, other = client.submit(mixed, 10_000).result()
    assert table["a"].to_numpy().tolist() == list(range(10_000))
    assert [array.tolist() for array in arrays] == [[5] * 1000, [6] * 1000]
    assert other["x"].to_pylist() == [1, 2, 3]


def fail_after(rows: int) -> None:
    kept = fill(rows)
    raise ValueError(f"a table of {kept.num_rows} rows")


def test_calls_that_run_together_share_a_table(
    client: ciel.Client, paths: list[str], tmp_path: Path
) -> None:
    """The client sends calls of fast functions as one task, in which each has its own output."""
    pq.write_table(pa.table({"k": [1], "v": [0.5]}), tmp_path / "small")
    client.gather([client.submit(load, str(tmp_path / "small")) for _ in range(4)])
    parts = [client.submit(load, path) for path in paths]
    found = client.gather([client.submit(describe, part) for part in parts])
    assert [(rows, copied) for rows, _, copied in found] == [(ROWS, 0)] * PARTS
    assert sum(part.result().num_rows for part in parts) == PARTS * ROWS


def test_a_task_that_fails_leaves_no_table(client: ciel.Client) -> None:
    with pytest.raises(ValueError, match="a table of 1000 rows"):
        client.submit(fail_after, 1000).result()
    assert client.submit(fill, 10).result().num_rows == 10


REMOTE = """
import sys
import ciel, ciel.arrow
import pyarrow as pa, pyarrow.compute, pyarrow.parquet as pq

def load(path):
    with ciel.arrow.in_store():
        return pq.read_table(path)

with ciel.Client() as client:
    parts = [client.submit(load, path) for path in sys.argv[1:]]
    whole = ciel.arrow.concat(parts).result(timeout=60)
    whole.validate(full=True)
    print(whole.equals(pa.concat_tables([pq.read_table(path) for path in sys.argv[1:]])))
"""


def within_a_task(paths: list[str]) -> list[tuple[int, float, int]]:
    parts = [ciel.spawn(load, path) for path in paths]
    ciel.wait(parts[1:])
    chosen = ciel.arrow.concat(parts, columns=["v"], rows=slice(ROWS - 1, ROWS + 2))
    held = ciel.put(ciel.arrow.concat(parts, columns=["v"]))
    return [ciel.spawn(describe, each).result() for each in (chosen, held.result().result())]


def test_a_task_gives_parts_to_its_children(client: ciel.Client, paths: list[str]) -> None:
    chosen, held = client.submit(within_a_task, paths).result(timeout=60)
    assert chosen[:2] == (3, 1.5 * ROWS)
    assert held[0] == PARTS * ROWS


def test_a_stored_value_may_contain_a_table_of_parts(client: ciel.Client, paths: list[str]) -> None:
    parts = [client.submit(load, path) for path in paths]
    chosen = ciel.arrow.concat(parts, columns=["v"], rows=slice(ROWS - 1, ROWS + 2))
    found = client.put(chosen).result().result(timeout=60)
    assert found.equals(chosen.result())


@pytest.mark.slow
def test_tables_reach_another_host(tmp_path: Path, paths: list[str]) -> None:
    with Hosts(tmp_path) as (here, there):
        cluster = TwoHosts(here, there)
        for host in (here, there):
            for path in paths:
                shutil.copy2(path, host.path / Path(path).name)
            cluster.start_worker(host)
        names = [Path(path).name for path in paths]
        done: subprocess.CompletedProcess[str] = there.run("python", "-c", REMOTE, *names)
        assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


WIDE = """
import sys
import ciel, ciel.arrow
import numpy as np
import pyarrow as pa, pyarrow.compute as pc

ROWS = 1_000_000

def load(part):
    draft = ciel.arrow.empty(pa.schema([(f"c{n}", pa.int64()) for n in range(20)]), ROWS)
    for n in range(20):
        draft[f"c{n}"][:] = np.arange(ROWS) * part + n
    return draft.table()

def hold(table):
    import time
    time.sleep(600)

def total(table):
    return table.num_columns, pc.sum(table["c3"]).as_py(), table.num_rows

with ciel.Client() as client:
    parts = [client.submit(load, part) for part in (1, 2)]
    ciel.wait(parts)
    print("loaded", flush=True)
    sys.stdin.readline()
    column = ciel.arrow.concat(parts, columns=["c3"])
    print(*total(column.result(timeout=60)), flush=True)
    sys.stdin.readline()
    held = client.submit(hold, parts[0])
    print(*client.submit(total, column).result(timeout=60), flush=True)
    sys.stdin.readline()
    rows = ciel.arrow.concat(parts, columns=["c3"], rows=slice(999_999, 1_000_001))
    print(*client.submit(total, rows).result(timeout=60), flush=True)
    held.cancel()
"""


@pytest.mark.slow
def test_only_the_chosen_columns_travel_and_are_recomputed_if_lost(tmp_path: Path) -> None:
    with Hosts(tmp_path) as (here, there):
        cluster = TwoHosts(here, there)
        cluster.start_worker(here)
        program = there.start("python", "-c", WIDE, stdin=subprocess.PIPE)
        assert program.stdin is not None
        assert program.stdout is not None
        assert program.stdout.readline() == "loaded\n"
        traffic = []
        for reader in ("client", "task"):
            if reader == "task":
                cluster.start_worker(there)
            before = sum(there.traffic_bytes())
            print(reader, file=program.stdin, flush=True)
            sums = [sum(range(1_000_000)) * part + 3_000_000 for part in (1, 2)]
            assert program.stdout.readline() == f"1 {sum(sums)} 2000000\n"
            traffic.append(sum(there.traffic_bytes()) - before)
        for path in here.path.glob("spool/store/objects/*"):
            path.unlink()  # the tables are computed again
        print("lost", file=program.stdin, flush=True)
        assert program.stdout.readline() == "1 1000005 2\n"
        assert program.wait(60) == 0
    column_bytes = 2 * 8_000_000
    assert all(column_bytes < each < 1.02 * column_bytes for each in traffic)
