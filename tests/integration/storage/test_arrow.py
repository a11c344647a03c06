"""Tests that tables of Arrow are made in the store and read there, without a copy (POOL-1, POOL-2):
by real programs, in each store, and on two hosts.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

pytest.importorskip("pyarrow")

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import ciel
import ciel.arrow
from ciel.arrow.pool import why_not
from ciel.testing.homes import private_bytes, wait_for
from ciel_tests.clusters.hosts import Hosts, TwoHosts

if reason := why_not():
    pytest.skip(f"no buffers in the store here: {reason}", allow_module_level=True)

cloudpickle.register_pickle_by_value(sys.modules[__name__])

PARTS, ROWS = 3, 200_000
SCC = f"scc:capacity=256MiB,cores=3,instance=arrow-{os.getpid()}"
STORES = {
    "disk": "disk",
    "shm": "shm:capacity=256MiB",
    "scc": SCC,
    "flushing": f"{SCC}-flushing,build=flushing",
}
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


@pytest.fixture(scope="module", params=STORES)
def client(request: pytest.FixtureRequest) -> Iterator[ciel.Client]:
    options = {"workers": 2, "slots": 1, "store": STORES[request.param]}
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
    """Return how many bytes of a table do not lie in files of a store."""
    stored = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, *_, path = line.split(maxsplit=5)
        if path.startswith("/") and not path.startswith(("/memfd:", "/dev/zero")):
            start, _, end = span.partition("-")
            stored.append((int(start, 16), int(end, 16)))
    return sum(
        buffer.size
        for column in table.columns
        for chunk in column.chunks
        for buffer in chunk.buffers()
        if buffer is not None and not any(a <= buffer.address < b for a, b in stored)
    )


def describe(table: pa.Table) -> tuple[int, float, int]:
    return table.num_rows, pc.sum(table[0]).as_py(), copied_bytes(table)


def gained_bytes(table: pa.Table) -> int:
    """Read each buffer of a table; return how much private memory the process gained by it."""
    before = private_bytes(os.getpid())
    for column in table.columns:
        for chunk in column.chunks:
            for buffer in chunk.buffers():
                if buffer is not None:
                    np.frombuffer(buffer, "uint8").max()
    return private_bytes(os.getpid()) - before


def counted(client: ciel.Client, name: str) -> int:
    """Return the sum of a counter of all stores of the cluster."""
    return sum(int(level[name]) for level in client.ask("stores"))


def programs(client: ciel.Client) -> dict[int, int]:
    """Return what each program of the cluster has written so far."""
    found: dict[int, int] = {}
    while len(found) < 2:
        found |= dict(client.gather([client.submit(written_bytes) for _ in range(4)]))
    return found


@pytest.mark.requirement("POOL-1", "POOL-5")
@pytest.mark.slow
def test_tables_are_made_and_read_in_the_store(
    client: ciel.Client, paths: list[str], expected: pa.Table
) -> None:
    before, copied_before = programs(client), counted(client, "copied_bytes")
    used_before = counted(client, "used_bytes")
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
    assert gained_bytes(found) < SMALL_BYTES
    assert client.submit(gained_bytes, whole).result() < SMALL_BYTES
    rows, total, copied = client.submit(describe, whole).result()
    assert (rows, total, copied) == (PARTS * ROWS, pc.sum(expected["k"]).as_py(), 0)
    selected = ciel.arrow.concat(parts, columns=["v"])
    assert client.submit(describe, selected).result()[1] == pc.sum(expected["v"]).as_py()
    grown = used_before + found.nbytes
    wait_for(lambda: counted(client, "used_bytes") >= grown, "the stores' counters")
    assert counted(client, "copied_bytes") - copied_before < SMALL_BYTES


@pytest.mark.requirement("POOL-1", "POOL-3")
@pytest.mark.slow
def test_stores_copy_nothing_in_the_strict_build(paths: list[str], expected: pa.Table) -> None:
    """There each process has copies, which stand for the caches of its core."""
    options = {"workers": 2, "slots": 1, "store": f"{SCC}-strict,build=strict"}
    with ciel.Client(cluster_options=options) as client:
        parts = [client.submit(load, path) for path in paths]
        whole = ciel.arrow.concat(parts)
        assert whole.result(timeout=60).equals(expected)
        found = [client.submit(describe, whole).result() for _ in range(2)]
        assert found[0][:2] == (PARTS * ROWS, pc.sum(expected["k"]).as_py())
        wait_for(lambda: counted(client, "used_bytes") >= expected.nbytes, "the stores' counters")
        assert counted(client, "copied_bytes") < SMALL_BYTES


@pytest.mark.requirement("POOL-1")
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


def keep_buffer(rows: int) -> int:
    """Keep a buffer of the store in this program, after its task has returned something else."""
    with ciel.arrow.in_store():
        vars(sys)["kept"] = pc.add(np.arange(rows), 0)
    return os.getpid()


def sum_of_kept() -> tuple[int, int]:
    kept = getattr(sys, "kept", None)
    return os.getpid(), 0 if kept is None else pc.sum(kept).as_py()


def drop_buffer() -> tuple[int, None]:
    vars(sys)["kept"] = None
    return os.getpid(), None


def done_by(pid: int, client: ciel.Client, function: Callable[[], tuple[int, Any]]) -> Any:
    """Call a function until the program of this id has run it; return its result."""
    found: dict[int, Any] = {}
    while pid not in found:
        found |= dict(client.gather([client.submit(function) for _ in range(4)]))
    return found[pid]


@pytest.mark.slow
def test_a_buffer_may_outlive_its_task(client: ciel.Client) -> None:
    rows = 4_000_000
    time.sleep(1.5)  # what other tests had is not counted any more
    used = counted(client, "used_bytes")
    pid = client.submit(keep_buffer, rows).result()
    alone = ciel.task(fill, slots=1)
    others = [client.submit(alone, rows) for _ in range(6)]  # they take its place if it is free
    assert [other.exception() for other in others] == [None] * 6
    assert done_by(pid, client, sum_of_kept) == sum(range(rows))
    del others
    done_by(pid, client, drop_buffer)

    def is_free() -> bool:
        done_by(
            pid, client, drop_buffer
        )  # the program frees space with its next task at the latest
        return counted(client, "used_bytes") <= used + SMALL_BYTES

    wait_for(is_free, "the space to be free")


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
