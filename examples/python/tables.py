"""Read Parquet files by several tasks as one table, which no process copies.

    python examples/python/tables.py [ROWS [FILES]]

Tasks decode a file each, into the memory of their workers' stores. This program queries all of them
as one table by DuckDB, or by Arrow where DuckDB is not installed. Then a task reads two columns of
it: on the host of the files in place, on another host only these columns travel.

Starts its own cluster, unless a cluster runs (`ciel up`).
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import ciel
import ciel.arrow

ROWS, FILES = 200_000, 4


@ciel.task
def load(path: str) -> pa.Table:
    """Decode a file; Arrow allocates the columns in the store."""
    with ciel.arrow.in_store():
        return pq.read_table(path)


def model(table: pa.Table) -> list[float]:
    """Fit a line to two columns; return its slope and where it starts."""
    return [float(number) for number in np.polyfit(table["k"], table["v"], 1)]


def private_bytes(table: pa.Table) -> int:
    """Return how many bytes of a table lie in memory that belongs to this process alone."""
    stored = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, *_, path = line.split(maxsplit=5)
        if path.startswith("/") and not path.startswith("/dev/zero"):  # not a file
            stored.append(tuple(int(end, 16) for end in span.split("-")))
    buffers = [
        buffer
        for column in table.columns
        for chunk in column.chunks
        for buffer in chunk.buffers()
        if buffer is not None
    ]
    return sum(b.size for b in buffers if not any(a <= b.address < z for a, z in stored))


def sums(whole: pa.Table) -> list[tuple[int, float]]:
    """Return the sum of `v` for each `k`."""
    try:
        import duckdb
    except ImportError:
        found = whole.group_by("k").aggregate([("v", "sum")]).sort_by("k")
        return list(zip(found["k"].to_pylist(), found["v_sum"].to_pylist(), strict=True))
    with duckdb.connect() as connection:
        connection.register("whole", whole)
        query = "select k, sum(v) from whole group by k order by k"
        return connection.execute(query).fetchall()


def write_files(directory: str, rows: int, files: int) -> list[str]:
    """Write Parquet files with a column more than this program needs; return their paths."""
    paths = [f"{directory}/{number}.parquet" for number in range(files)]
    for number, path in enumerate(paths):
        numbers = np.arange(number * rows, (number + 1) * rows)
        texts = pa.array([f"row {n % 1000}" for n in numbers])
        pq.write_table(pa.table({"k": numbers % 5, "v": numbers * 0.5, "t": texts}), path)
    return paths


def main(rows: int = ROWS, files: int = FILES) -> None:
    """Print the sums, the fit, and how many bytes were copied."""
    with tempfile.TemporaryDirectory() as directory, ciel.Client() as client:
        parts = [load.spawn(path) for path in write_files(directory, rows, files)]
        table = ciel.arrow.concat(parts).result()
        for k, total in sums(table):
            print(k, total)
        fit = client.submit(model, ciel.arrow.concat(parts, columns=["k", "v"]))
        print("fit:", *[f"{number:.6g}" for number in fit.result()])
        print(f"{table.num_rows} rows in {table['v'].num_chunks} chunks;", end=" ")
        print(f"{private_bytes(table)} bytes were copied, the sum of v is {pc.sum(table['v'])}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
