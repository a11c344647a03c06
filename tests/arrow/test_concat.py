"""Tests of tables that consist of several parts (POOL-5), and of drafts of tables (POOL-1)."""

from __future__ import annotations

import contextlib
import pickle
import random
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import pytest

pytest.importorskip("pyarrow")

import numpy as np
import pyarrow as pa

import ciel.arrow
from ciel.arrow.concat import SchemasDifferError, concatenated
from ciel.python.arrow_tables import TableError
from ciel.python.elsewhere import ObjectElsewhere, Part
from ciel.testing.arrow_mutants import COLUMNS, mutated, stored


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


@pytest.mark.requirement("POOL-5")
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


@pytest.mark.requirement("POOL-5")
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

    found = pickle.loads(pickle.dumps(ciel.arrow.concat([Part(), Part()])))
    assert found.equals(concatenated([a_table(5), a_table(5)]))


def test_rows_are_counted_over_all_parts() -> None:
    parts = [future_of(a_table(start)) for start in (0, 3, 6)]
    expected = pa.concat_tables([a_table(start) for start in (0, 3, 6)])
    for rows in (slice(1, 2), slice(2, 7), slice(4, None), slice(-2, None), slice(5, 5), slice(99)):
        found = ciel.arrow.concat(parts, rows=rows).result()
        assert found.equals(expected[rows])
    with pytest.raises(TypeError, match="rows must be a slice without a step, not 5"):
        ciel.arrow.concat(parts, rows=5)  # type: ignore[arg-type]  # on purpose


# --- parts on other hosts -------------------------------------------------------------------------


class OtherHost:
    """Objects of another host. `fetched`: how many bytes of them were requested."""

    def __init__(self) -> None:
        self.objects: dict[int, bytes] = {}
        self.fetched = 0
        self.rounds = 0
        self._copies: dict[int, bytearray] = {}

    def hold(self, content: bytes, value: object = None) -> ObjectElsewhere:
        ref = len(self.objects)
        self.objects[ref], self._copies[ref] = content, bytearray(len(content))
        return ObjectElsewhere(ref, len(content), self.fetch, lambda: value)

    def fetch(self, wanted: Sequence[tuple[Any, Sequence[Part]]]) -> list[memoryview]:
        self.rounds += 1
        for ref, parts in wanted:
            for offset, size_bytes in parts:
                assert 0 <= offset < offset + size_bytes <= len(self.objects[ref])
                part = slice(offset, offset + size_bytes)
                self._copies[ref][part] = self.objects[ref][part]
                self.fetched += size_bytes
        return [memoryview(self._copies[ref]) for ref, _ in wanted]


def several_chunks(column: str) -> pa.Table:
    long = pa.concat_arrays([COLUMNS[column]] * 100)
    other = pa.array(np.arange(len(long)))
    table = pa.table({"other": other, "chosen": long})
    return pa.concat_tables([table, table.slice(37, 200), table.slice(5, 1)])


@pytest.mark.parametrize("column", sorted(COLUMNS.keys() - {"dictionary of lists"}))
def test_columns_and_rows_of_each_type_come_from_another_host(column: str) -> None:
    table = several_chunks(column)
    count = table.num_rows
    for first, end in ((0, count), (3, 9), (90, 190), (count - 1, count), (7, 7)):
        host = OtherHost()
        found = concatenated([host.hold(stored(table))], ["chosen"], slice(first, end))
        found.validate(full=True)
        assert found.equals(table.select(["chosen"]).slice(first, end - first))
        assert host.rounds <= 3


def test_only_what_was_chosen_is_fetched() -> None:
    rows = 100_000
    kinds = (pa.int64(), pa.int8(), pa.bool_(), pa.timestamp("us"), pa.binary(5))
    numbers = np.arange(rows) % 2
    values = [numbers, numbers, numbers == 1, numbers, [b"abcde"] * rows]
    columns = {str(kind): pa.array(value, kind) for kind, value in zip(kinds, values, strict=True)}
    content = stored(pa.table(columns))
    for (name, column), width_bits in zip(columns.items(), (64, 8, 1, 64, 40), strict=True):
        for first, end in ((0, rows), (40_000, 60_000)):
            host = OtherHost()
            found = concatenated([host.hold(content)], [name], slice(first, end))
            assert found[name].combine_chunks().equals(column.slice(first, end - first))
            assert host.fetched <= (end - first) * width_bits // 8 + 4200


def test_parts_here_and_elsewhere_are_one_table() -> None:
    host = OtherHost()
    small = host.hold(b"a pickle" * 100, a_table(3))  # calls that share an object
    parts = [a_table(0), small, host.hold(stored(a_table(6)))]
    found = concatenated(parts, ["t", "k"])
    assert found.equals(pa.concat_tables([a_table(n) for n in (0, 3, 6)]).select(["t", "k"]))
    assert host.rounds == 2
    with pytest.raises(KeyError, match="the table has no column 'x'; it has k, t"):
        concatenated(parts, ["x"])
    with pytest.raises(SchemasDifferError, match="part 1"):
        concatenated([a_table(0), host.hold(stored(pa.table({"k": ["x"]})))], ["k"])


def test_a_descriptor_anywhere_in_the_object_is_found() -> None:
    content = stored(a_table(0, 3))
    host = OtherHost()
    assert concatenated([host.hold(content + bytes(10_000))], ["k"]).equals(
        a_table(0, 3).select(["k"])
    )


def test_a_table_of_another_host_may_be_damaged() -> None:
    host = OtherHost()
    chance = random.Random(3)
    original = bytes(stored(a_table(0, 50)))
    for _ in range(300):
        damaged = host.hold(mutated(chance, original))
        with contextlib.suppress(TableError, KeyError, SchemasDifferError, pa.ArrowException):
            concatenated([damaged], ["k"], slice(10, 20))


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
