"""Counts copied bytes of Arrow tables (POOL-3, POOL-5), and crashes of their readers (POOL-7).

The tables lie in memory without coherent caches, or on another host. For the crashes, 100,000
stored tables are changed and read.

A network card counts the bytes between hosts. The hosts are namespaces, so this
needs root; without it, the row is missing.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import cloudpickle
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import ciel
import ciel.arrow
from ciel.testing.homes import wait_for
from ciel.testing.hosts import Hosts, HostsUnavailableError, TwoHosts

cloudpickle.register_pickle_by_value(sys.modules[__name__])

ROWS = 4_000_000  # of two columns of 64 bits
WIDE_ROWS, COLUMNS = 1_000_000, 20
MUTANTS = 100_000
BUILDS = ("coherent", "flushing", "strict")


def filled(rows: int) -> pa.Table:
    """Return a table that lies in the store from the start."""
    draft = ciel.arrow.empty(pa.schema({"a": pa.int64(), "b": pa.int64()}), rows)
    draft["a"][:] = draft["b"][:] = np.arange(rows)
    return draft.table()


def total(table: pa.Table) -> int:
    """Sum a column."""
    return int(pc.sum(table["a"]).as_py())


def counted(client: ciel.Client, name: str) -> int:
    """Return the sum of a counter of all stores."""
    return sum(int(level[name]) for level in client.ask("stores"))


def copied_bytes(build: str) -> int:
    """Let two tasks read what two others have made; return how many bytes the stores copied."""
    store = f"scc:capacity=512MiB,build={build},instance=bench-{os.getpid()}-{build}"
    with ciel.Client(cluster_options={"workers": 2, "slots": 1, "store": store}) as client:
        alone = ciel.task(filled, slots=1)
        parts = [client.submit(alone, ROWS) for _ in range(2)]
        sums = [client.submit(ciel.task(total, slots=1), part).result() for part in parts]
        whole = ciel.arrow.concat(parts).result()
        assert [*sums, total(whole)] == [sum(range(ROWS))] * 2 + [2 * sum(range(ROWS))]
        size_bytes = whole.nbytes
        wait_for(lambda: counted(client, "used_bytes") >= size_bytes, "the reports of the stores")
        return counted(client, "copied_bytes")


WIDE = f"""
import sys
import ciel, ciel.arrow
import numpy as np
import pyarrow as pa, pyarrow.compute as pc

def load():
    draft = ciel.arrow.empty(
        pa.schema([(f"c{{n}}", pa.int64()) for n in range({COLUMNS})]), {WIDE_ROWS}
    )
    for n in range({COLUMNS}):
        draft[f"c{{n}}"][:] = np.arange({WIDE_ROWS}) + n
    return draft.table()

with ciel.Client() as client:
    part = client.submit(load)
    ciel.wait([part])
    print("loaded", flush=True)
    sys.stdin.readline()
    print(pc.sum(ciel.arrow.concat([part], columns=["c3"]).result()["c3"]).as_py())
"""


def wire_to_column() -> float:
    """Return the bytes that a client reads from another host for one column, to its size."""
    with tempfile.TemporaryDirectory() as directory, Hosts(Path(directory)) as (here, there):
        TwoHosts(here, there).start_worker(here)
        program = there.start("python", "-c", WIDE, stdin=subprocess.PIPE)
        assert program.stdout is not None
        assert program.stdout.readline() == "loaded\n"
        before = sum(there.traffic_bytes())
        output, _ = program.communicate("go\n", timeout=120)
        assert int(output) == sum(range(WIDE_ROWS)) + 3 * WIDE_ROWS
        sent_bytes: int = sum(there.traffic_bytes()) - before
    return sent_bytes / (8 * WIDE_ROWS)


def crashes() -> int:
    """Read changed tables in two processes; return how many of these died."""
    command = [sys.executable, "-m", "ciel.testing.arrow_mutants"]
    readers = [
        subprocess.Popen([*command, f"{MUTANTS // 2}", f"{seed}"], stdout=subprocess.PIPE)
        for seed in range(2)
    ]
    read = [sum(map(int, reader.communicate()[0].split() or (0,))) for reader in readers]
    crashed = len([reader for reader in readers if reader.returncode != 0])
    assert crashed or sum(read) == MUTANTS
    return crashed


def measure() -> dict[str, float]:
    """Count all of it."""
    found: dict[str, float] = {"scc_copied_bytes": sum(map(copied_bytes, BUILDS))}
    try:
        found["wire_to_column"] = wire_to_column()
    except HostsUnavailableError as error:
        print(f"not measured between hosts: {error}", file=sys.stderr)
    begun_s = time.perf_counter()
    found["mutants_crashed"] = crashes()
    found["mutants_s"] = time.perf_counter() - begun_s
    return found


if __name__ == "__main__":
    os.environ.setdefault("CIEL_QUIET", "1")
    for key, value in measure().items():
        print(f"{key:22} {value:10.3f}")
