"""The format of objects that are tables of Arrow (POOL-2, POOL-6, docs/protocol/tables.md)."""

from __future__ import annotations

import gc
import os
import random
import struct
import subprocess
import sys
import weakref

import numpy as np
import pyarrow as pa
import pytest

from ciel.python import arrow_tables
from ciel.python.arrow_tables import TableError
from ciel.python.contents import ERROR, VALUE, Outcome, decode, encode
from ciel.python.packing import Packed, PackedTable, pack, unpack
from ciel.testing import arrow_mutants
from ciel.testing.arrow_mutants import COLUMNS, mutated, stored


def whole(column: str) -> pa.Table:
    field = pa.field(column, COLUMNS[column].type, metadata={"unit": "m"})
    return pa.Table.from_arrays([COLUMNS[column]], schema=pa.schema([field], {"pandas": "{}"}))


def in_chunks(table: pa.Table) -> pa.Table:
    return pa.concat_tables([table, table.slice(2), table.slice(0, 1)])


@pytest.mark.requirement("POOL-7")
@pytest.mark.parametrize("column", COLUMNS)
def test_a_table_of_each_type_survives(column: str) -> None:
    table = whole(column)
    parts = [table, table.slice(1, 2), table.slice(0, 0), in_chunks(table)]
    for value in (*parts, *table.to_batches()):
        found = arrow_tables.read(memoryview(stored(value)))
        found.validate(full=True)
        assert type(found) is type(value)
        assert found.schema.equals(value.schema, check_metadata=True)
        assert found.equals(value)


def test_a_table_of_all_types_survives() -> None:
    table = pa.table(COLUMNS)
    assert arrow_tables.read(memoryview(stored(table))).equals(table)


def test_a_table_without_columns_survives() -> None:
    table = pa.table({"a": [1, 2, 3]}).select([])
    assert arrow_tables.read(memoryview(stored(table))).num_rows == 3


def test_a_slice_does_not_contain_what_precedes_it() -> None:
    table = pa.table({"a": np.arange(100_000), "t": [f"row {n}" for n in range(100_000)]})
    slices = [table.slice(n * 10_000, 10_000) for n in range(10)]
    whole_bytes = len(stored(table))
    assert len(stored(slices[9].select(["a"]))) < 10_100 * 8
    assert len(stored(pa.concat_tables(slices))) < 1.02 * whole_bytes
    for part in slices:
        assert arrow_tables.read(memoryview(stored(part))).equals(part)


@pytest.mark.parametrize("column", sorted(COLUMNS.keys() - {"dictionary of lists"}))
def test_a_slice_of_a_long_column_of_each_type_survives(column: str) -> None:
    three = COLUMNS[column].slice(0, 3)  # 64 is not a multiple of 3
    long = pa.concat_arrays([three] * 80)
    value = pa.RecordBatch.from_arrays([long], ["a"])
    for start, length in ((1, 3), (64, 64), (131, 100), (239, 1)):
        part = value.slice(start, length)
        found = arrow_tables.read(memoryview(stored(part)))
        found.validate(full=True)
        assert found.equals(part)


@pytest.mark.requirement("POOL-1")
def test_reading_copies_nothing() -> None:
    content = memoryview(stored(pa.table({"a": np.arange(1000)})))
    start = pa.py_buffer(content).address
    (_, values) = arrow_tables.read(content)["a"].chunk(0).buffers()
    assert start <= values.address < start + content.nbytes


def test_what_is_read_keeps_the_content() -> None:
    class Content(bytearray):
        pass

    owner = Content(stored(pa.table({"a": [1, 2], "b": ["x", "y"]})))
    alive = weakref.ref(owner)
    column = arrow_tables.read(memoryview(owner))["b"].chunk(0)
    del owner
    gc.collect()
    assert alive() is not None
    assert column.to_pylist() == ["x", "y"]
    del column
    gc.collect()
    assert alive() is None


@pytest.mark.requirement("POOL-2")
def test_a_descriptor_of_three_columns_has_some_hundred_bytes() -> None:
    kinds = {"a": pa.int64(), "b": pa.int8(), "c": pa.uint16()}
    table = pa.table({name: pa.array([1], kind) for name, kind in kinds.items()})
    description = arrow_tables.describe(table, 0.0)
    assert len(description.descriptor) <= 400


@pytest.mark.requirement("POOL-2")
def test_buffers_that_lie_in_the_object_are_not_written_again() -> None:
    table = pa.table({"a": np.arange(100), "b": np.arange(100)})
    start = table["a"].chunk(0).buffers()[1].address

    def place(context: None, address: int, size_bytes: int) -> int:
        return 4096 if address == start else -1

    locator = arrow_tables.Locator(arrow_tables.Place(place))
    description = arrow_tables.describe(table, 0.0, locator)
    assert (description.placed_count, len(description.absent)) == (1, 1)


class Money(pa.ExtensionType):  # type: ignore[misc]  # pyarrow is not typed
    def __init__(self) -> None:
        super().__init__(pa.int64(), "tests.money")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""


MONEY = Money()  # pyarrow keeps only a weak reference


@pytest.mark.parametrize("kind", [MONEY, pa.list_(MONEY), pa.struct([("m", MONEY)])])
def test_types_that_python_defines_are_pickled(kind: pa.DataType) -> None:
    assert not arrow_tables.is_table(pa.table({"money": pa.nulls(2, kind)}))


def test_only_whole_tables_are_not_pickled() -> None:
    table = pa.table({"a": [1, 2]})
    assert isinstance(pack(table), PackedTable)
    assert not isinstance(pack([table]), PackedTable)


# --- as the outcome of a task ---------------------------------------------------------------------


def test_an_object_with_one_table_has_its_own_format() -> None:
    table = pa.table({"a": [1, 2]})
    content = b"".join(map(bytes, encode([Outcome(VALUE, pack(table))], 0.25)))
    assert content.startswith(b"ciel.ar1")
    contents = decode(content)
    (outcome,) = contents.outcomes
    assert (outcome.kind, contents.took_s) == (VALUE, 0.25)
    assert unpack(outcome.packed.head, outcome.packed.buffers).equals(table)


def test_a_table_beside_other_outcomes_is_pickled() -> None:
    table = pa.table({"a": [1, 2]})
    outcomes = [Outcome(VALUE, pack(table)), Outcome(ERROR, Packed(b"no"))]
    content = b"".join(map(bytes, encode(outcomes)))
    assert content.startswith(b"ciel.py1")
    first = decode(content).outcomes[0].packed
    assert unpack(first.head, first.buffers).equals(table)


# --- bad objects ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "place, value, reason",
    [
        (8, 1 << 40, "its descriptor lies outside of the object"),
        (16, 8, "its descriptor is incomplete"),
        ("kind", 7, "later version"),
        ("length", 1 << 60, "impossible length"),
        ("length", 1000, "too short"),
        ("offset", 1 << 40, "a buffer lies outside"),
        ("offset", 3, "multiple of 8"),
    ],
)
def test_a_wrong_descriptor_is_refused(place: int | str, value: int, reason: str) -> None:
    content = bytearray(stored(pa.table({"a": [1, 2]})))
    start = int.from_bytes(content[8:16], "little")
    # The last column: length, nulls, offset, number of buffers, and two places.
    last = len(content) - 3 * 8 - 4 - 2 * 16
    places = {"kind": start, "length": last, "offset": len(content) - 16}
    at = places[place] if isinstance(place, str) else place
    width = 4 if place == "kind" else 8
    content[at : at + width] = value.to_bytes(width, "little")
    with pytest.raises(TableError, match=reason):
        arrow_tables.read(memoryview(content))


@pytest.mark.requirement("POOL-7")
def test_offsets_that_point_outside_are_refused() -> None:
    table = pa.table({"a": ["abc", "de"]})
    content = bytearray(stored(table))
    offsets = struct.pack("<iii", 0, 3, 5)
    at = content.index(offsets)
    content[at : at + 12] = struct.pack("<iii", 0, 3, 5000)
    with pytest.raises(TableError, match="the offsets of a column are wrong"):
        arrow_tables.read(memoryview(content))


@pytest.mark.parametrize("content", [b"", b"ciel.ar1", b"ciel.py1" + bytes(100), bytes(100)])
def test_other_objects_are_no_tables(content: bytes) -> None:
    with pytest.raises(TableError):
        arrow_tables.read(memoryview(content))


MUTANTS = 100_000 if os.environ.get("CIEL_LONG") else 2_000


@pytest.mark.requirement("POOL-7")
def test_mutated_objects_give_an_error_or_a_valid_table() -> None:
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-m", arrow_mutants.__name__, str(MUTANTS)],
        capture_output=True, text=True, timeout=3600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    refused, valid, invalid = map(int, done.stdout.split())
    assert refused + valid + invalid == MUTANTS
    assert min(refused, valid, invalid) > 0


# --- the layout -----------------------------------------------------------------------------------


def layout_in(content: bytes | bytearray) -> arrow_tables.Layout:
    start, length = arrow_tables.place_of_descriptor(bytes(content), len(content))
    return arrow_tables.layout_of(bytes(content[start : start + length]), len(content))


@pytest.mark.parametrize("column", COLUMNS)
def test_the_layout_has_the_columns_and_chunks_of_each_type(column: str) -> None:
    value = in_chunks(whole(column))
    content = stored(value)
    layout = layout_in(content)
    assert layout.columns == [(column, str(value.schema.field(0).type))]
    assert [chunk.rows for chunk in layout.chunks] == [4, 2, 1]
    for chunk in layout.chunks:
        assert 0 <= sum(chunk.sizes_bytes) <= len(content)


def test_the_layout_has_the_bytes_of_each_column() -> None:
    layout = layout_in(stored(pa.table({"a": np.arange(10), "b": ["ab"] * 10})))
    (chunk,) = layout.chunks
    assert (chunk.rows, chunk.sizes_bytes) == (10, [80, 44 + 20])
    assert (layout.rows, layout.names) == (10, ["a", "b"])
    assert not layout.is_batch
    assert layout_in(stored(pa.record_batch({"a": [1]}))).is_batch


def test_the_layout_of_mutated_objects_is_an_error_or_within_the_object() -> None:
    chance = random.Random(2)
    originals = [stored(pa.table({name: column})) for name, column in COLUMNS.items()]
    refused = 0
    for _ in range(MUTANTS):
        content = mutated(chance, chance.choice(originals))
        try:
            layout = layout_in(content)
        except TableError:
            refused += 1
            continue
        assert all(chunk.rows >= 0 <= min(chunk.sizes_bytes, default=0) for chunk in layout.chunks)
    assert 0 < refused < MUTANTS


@pytest.mark.parametrize(
    "place, value, reason",
    [
        (0, 0, "it is no table of ciel"),
        (8, 1 << 40, "its descriptor lies outside of the object"),
        (16, 8, "its descriptor is incomplete"),
        ("kind", 7, "later version"),
        ("length", -1, "impossible length"),
        ("offset", 1 << 40, "a buffer lies outside"),
        ("offset", -1, "a buffer lies outside"),
        ("size", -1, "a buffer lies outside"),
    ],
)
def test_a_layout_is_not_trusted(place: int | str, value: int, reason: str) -> None:
    content = bytearray(stored(pa.table({"a": [1, 2]})))
    start = int.from_bytes(content[8:16], "little")
    last = len(content) - 3 * 8 - 4 - 2 * 16  # as in the test of wrong descriptors
    places = {
        "kind": start, "length": last, "offset": len(content) - 16, "size": len(content) - 8,
    }  # fmt: skip
    at = places[place] if isinstance(place, str) else place
    width = 4 if place == "kind" else 8
    content[at : at + width] = value.to_bytes(width, "little", signed=True)
    with pytest.raises(TableError, match=reason):
        layout_in(content)


def test_deeply_nested_types_are_refused() -> None:
    kind = pa.int8()
    for _ in range(60):
        kind = pa.list_(kind)
    encoded = bytearray(stored(pa.table({"a": pa.nulls(1, kind)})))
    assert len(layout_in(encoded).columns) == 1
    deep = struct.pack("<qIIII", 2, 3, 1, 0, 2) + b"+l\0\0"
    descriptor = struct.pack("<IdII", 0, 0.0, 0, len(deep) * 2000) + deep * 2000
    with pytest.raises(TableError, match="nested too deeply"):
        arrow_tables.layout_of(descriptor, 1 << 20)
