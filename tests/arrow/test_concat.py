"""Tests of tables that consist of several parts (POOL-5), and of drafts of tables (POOL-1)."""

from __future__ import annotations

import pickle
from concurrent.futures import Future

import pytest

pytest.importorskip("pyarrow")

import numpy as np
import pyarrow as pa

import ciel.arrow
from ciel.arrow.concat import SchemasDifferError, concatenated


def future_of(value: object) -> Future[object]:
    future: Future[object] = Future()
    future.set_result(value)
    return future


def a_table(start: int, rows: int = 3) -> pa.Table:
    numbers = np.arange(start, start + rows)
    texts = pa.array([f"row {n}" for n in numbers], "string")
    return pa.table({"k": numbers, "t": texts})


def addresses(table: pa.Table) -> list[int]:
    return [
        buffer.address
        for column in table.columns
        for chunk in column.chunks
        for buffer in chunk.buffers()
        if buffer is not None
    ]


def test_the_parts_follow_each_other_and_are_not_copied() -> None:
    tables = [a_table(0), a_table(3, 5), a_table(8, 0), a_table(8)]
    found = ciel.arrow.concat(map(future_of, tables)).result()
    assert found["k"].to_pylist() == list(range(11))
    assert set(addresses(found)) <= {at for table in tables for at in addresses(table)}


def test_only_the_selected_columns_are_there_in_their_order() -> None:
    parts = [future_of(a_table(0)), future_of(a_table(3))]
    assert ciel.arrow.concat(parts, columns=["t"]).result().column_names == ["t"]
    assert ciel.arrow.concat(parts, columns=["t", "k"]).result().column_names == ["t", "k"]
    with pytest.raises(KeyError, match="the table has no column 'x'; it has k, t"):
        ciel.arrow.concat(parts, columns=["k", "x"]).result()


def test_record_batches_are_parts_too() -> None:
    batch = pa.record_batch({"k": [1, 2]})
    assert ciel.arrow.concat([future_of(batch)] * 2).result()["k"].to_pylist() == [1, 2, 1, 2]


@pytest.mark.parametrize(
    "other, difference",
    [
        (pa.table({"k": [1]}), "k instead of k, t"),
        (pa.table({"k": pa.array([1], "int8"), "t": ["x"]}), "int8> instead of"),
    ],
)
def test_a_part_with_other_columns_is_named(other: pa.Table, difference: str) -> None:
    with pytest.raises(SchemasDifferError, match="part 1 of the table has other columns") as failed:
        ciel.arrow.concat([future_of(a_table(0)), future_of(other)]).result()
    assert difference.partition(" instead")[0] in str(failed.value)


def test_what_is_no_table_is_named() -> None:
    with pytest.raises(ValueError, match="at least one part"):
        ciel.arrow.concat([])
    with pytest.raises(TypeError, match="part 0 is no future, but Table"):
        ciel.arrow.concat([a_table(0)])
    with pytest.raises(TypeError, match=r"part 1 is no table of pyarrow, but builtins\.dict"):
        ciel.arrow.concat([future_of(a_table(0)), future_of({})]).result()


def test_a_timeout_counts_for_all_parts() -> None:
    with pytest.raises(TimeoutError):
        ciel.arrow.concat([future_of(a_table(0)), Future()]).result(timeout=0.01)


def test_in_a_pickle_it_is_the_table() -> None:
    class Part:  # futures of ciel become values when a task unpickles its arguments
        def result(self) -> None: ...

        def __reduce__(self) -> tuple[object, ...]:
            return a_table, (5,)

    found = pickle.loads(pickle.dumps(ciel.arrow.concat([Part(), Part()], columns=["k"])))
    assert found.equals(concatenated([a_table(5), a_table(5)], ["k"]))


# --- drafts ---------------------------------------------------------------------------------------

SCHEMA = pa.schema({"a": pa.int64(), "b": pa.float32(), "c": pa.uint16(), "t": pa.timestamp("us")})


def test_a_draft_is_filled_column_by_column() -> None:
    draft = ciel.arrow.empty(SCHEMA, 1000)
    for name in SCHEMA.names:
        draft[name][:] = np.arange(1000).astype(draft[name].dtype)
    at = {draft[name].__array_interface__["data"][0] for name in SCHEMA.names}
    table = draft.table()
    table.validate(full=True)
    assert (table.schema, table.num_rows) == (SCHEMA, 1000)
    assert set(addresses(table)) == at
    assert table["c"].to_pylist() == list(range(1000))
    with pytest.raises(ValueError, match="read-only"):
        draft["a"][0] = 1


def test_a_draft_may_have_no_rows() -> None:
    assert ciel.arrow.empty(SCHEMA, 0).table().num_rows == 0
    with pytest.raises(ValueError, match="at least 0 rows, not -1"):
        ciel.arrow.empty(SCHEMA, -1)


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.bool_(), pa.list_(pa.int8()), pa.dictionary(pa.int8(), pa.string())]
)
def test_a_type_without_a_fixed_width_is_named(kind: pa.DataType) -> None:
    with pytest.raises(TypeError, match="the column 'x' has the type"):
        ciel.arrow.empty(pa.schema({"x": kind}), 10)
