"""DuckDB, polars, pandas and Acero read a table of 64 tasks as they read one table (POOL-5)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import cloudpickle
import pytest

pytest.importorskip("pyarrow")

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import acero

import ciel
import ciel.arrow
from ciel.arrow.pool import why_not

if reason := why_not():
    pytest.skip(f"no buffers in the store here: {reason}", allow_module_level=True)

cloudpickle.register_pickle_by_value(sys.modules[__name__])

PARTS, ROWS = 64, 1000
Rows = list[tuple[Any, ...]]


def part(number: int) -> pa.Table:
    numbers = np.arange(number * ROWS, (number + 1) * ROWS)
    with ciel.arrow.in_store():
        texts = pa.array([None if n % 11 == 0 else f"text {n % 97}" for n in numbers])
        return pa.table({"k": pa.array(numbers % 7), "v": pa.array(numbers * 0.5), "t": texts})


@pytest.fixture(scope="module")
def tables() -> Iterator[tuple[pa.Table, pa.Table]]:
    """Return the table of 64 tasks, and the same rows in one chunk of this process."""
    with ciel.Client(cluster_options={"workers": 2, "slots": 1}) as client:
        parts = [ciel.task(part, slots=1).spawn(number) for number in range(PARTS)]
        whole = ciel.arrow.concat(parts).result(timeout=60)
        assert whole["k"].num_chunks == PARTS
        yield whole, pa.concat_tables([part(n) for n in range(PARTS)]).combine_chunks()
        del whole
        client.close()


def by_duckdb(table: pa.Table) -> list[Rows]:
    duckdb = pytest.importorskip("duckdb")
    queries = (
        "select k, sum(v) from found group by k order by k",
        "select t, count(*) from found where v > 1000 and t is not null group by t order by t",
        "select a.k, b.t from found a join found b on a.v = b.v where a.v < 20 order by a.v",
    )
    with duckdb.connect() as connection:
        connection.register("found", table)
        return [connection.execute(query).fetchall() for query in queries]


def by_polars(table: pa.Table) -> list[Rows]:
    pl = pytest.importorskip("polars")
    found = pl.from_arrow(table)
    counted = found.filter((pl.col("v") > 1000) & pl.col("t").is_not_null()).group_by("t").len()
    joined = found.join(found, on="v").filter(pl.col("v") < 20).sort("v")
    return [
        found.group_by("k").agg(pl.col("v").sum()).sort("k").rows(),
        counted.sort("t").rows(),
        joined.select("k", "t_right").rows(),
    ]


def by_pandas(table: pa.Table) -> list[Rows]:
    found = table.to_pandas()
    sums = found.groupby("k")["v"].sum().sort_index()
    counts = found[found["v"] > 1000].dropna().groupby("t").size().sort_index()
    joined = found.merge(found, on="v").query("v < 20").sort_values("v")
    texts = [None if text != text else text for text in joined["t_y"]]
    return [list(sums.items()), list(counts.items()), list(zip(joined["k_x"], texts, strict=True))]


def by_acero(table: pa.Table) -> list[Rows]:
    def run(*steps: acero.Declaration) -> Rows:
        source = acero.Declaration("table_source", acero.TableSourceNodeOptions(table))
        found = acero.Declaration.from_sequence([source, *steps]).to_table(use_threads=True)
        return [tuple(row.values()) for row in found.to_pylist()]

    def grouped(by: str, what: Any, how: str) -> acero.Declaration:
        options = acero.AggregateNodeOptions([(what, how, None, "found")], [by])
        return acero.Declaration("aggregate", options)

    def filtered(condition: pc.Expression) -> acero.Declaration:
        return acero.Declaration("filter", acero.FilterNodeOptions(condition))

    def sorted_by(name: str) -> acero.Declaration:
        return acero.Declaration("order_by", acero.OrderByNodeOptions([(name, "ascending")]))

    low = filtered(pc.field("v") < 20)
    source = acero.Declaration("table_source", acero.TableSourceNodeOptions(table))
    sides = [acero.Declaration.from_sequence([source, low]) for _ in range(2)]
    options = acero.HashJoinNodeOptions("inner", ["v"], ["v"], ["v", "k"], ["t"])
    joined = acero.Declaration("hashjoin", options, inputs=sides)
    found = acero.Declaration.from_sequence([joined, sorted_by("v")]).to_table()
    chosen = (pc.field("v") > 1000) & pc.field("t").is_valid()
    return [
        run(grouped("k", "v", "hash_sum"), sorted_by("k")),
        run(filtered(chosen), grouped("t", "t", "hash_count"), sorted_by("t")),
        [(row["k"], row["t"]) for row in found.to_pylist()],
    ]


ENGINES = {"duckdb": by_duckdb, "polars": by_polars, "pandas": by_pandas, "acero": by_acero}


@pytest.mark.requirement("POOL-5")
@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_gives_the_same_answers(name: str, tables: tuple[pa.Table, pa.Table]) -> None:
    of_tasks, of_one = tables
    found = ENGINES[name](of_tasks)
    assert found == ENGINES[name](of_one)
    assert found == by_acero(of_one)
    assert [len(rows) for rows in found] == [7, 97, 40]
