"""Tests how the command line describes and converts tables of Arrow."""

from __future__ import annotations

import datetime
import decimal
import io
import json
import pickle
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

pytest.importorskip("pyarrow")

import pyarrow as pa
import pyarrow.parquet as pq

from ciel.arrow import formats
from ciel.arrow.formats import FormatError, write_table
from ciel.cli.arrow.getting import (
    FORMATS,
    NoSuchTableError,
    TableUnreadableError,
    check_options,
    get_table,
)
from ciel.cli.arrow.showing import describe_table, render_table
from ciel.cli.outcome import UsageError
from ciel.core.ids import ObjectId
from ciel.core.refs import Concrete, Future, Reference
from ciel.python.contents import ERROR, MOVED, STREAM_MAGIC, VALUE, Outcome, encode
from ciel.python.failures import pack_error
from ciel.python.packing import Packed, pack
from ciel.wire.references import to_array, to_json


class OwnType(pa.ExtensionType):  # type: ignore[misc]  # pyarrow has no types
    """A type that is defined in Python."""

    def __init__(self) -> None:
        super().__init__(pa.int64(), "ciel.test")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: Any, encoded: bytes) -> OwnType:
        return cls()


def written(table: pa.Table, form: str) -> bytes:
    file = io.BytesIO()
    write_table(table, form, file.write)
    return file.getvalue()


VARIED = pa.table(
    {
        "n": [1, 2, None],
        "text": ["a", "ü", None],
        "list": [[1], [], None],
        "word": pa.array(["x", "y", "x"]).dictionary_encode(),
        "when": pa.array([datetime.datetime(2026, 1, 2)] * 3, pa.timestamp("ns", "UTC")),
        "price": [decimal.Decimal("1.50")] * 3,
        "record": [{"a": 1, "b": "x"}] * 3,
        "map": pa.array([[("k", 1)]] * 3, pa.map_(pa.string(), pa.int64())),
        "same": pa.RunEndEncodedArray.from_arrays([3], ["a"]),
        "bytes": pa.array([b"ab"] * 3, pa.binary(2)),
    }
)


# --- what people see ------------------------------------------------------------------------------


def lines(**changed: Any) -> Sequence[str]:
    facts = {
        "kind": "table", "rows": 3,
        "columns": [{"name": "k", "type": "int64", "size_bytes": 24}],
        "chunks": [{"rows": 2, "size_bytes": 16}, {"rows": 1, "size_bytes": 8}],
    }  # fmt: skip
    return render_table(facts | changed).splitlines()


def test_people_see_rows_columns_and_chunks() -> None:
    assert lines() == [
        "table: 3 rows, 1 column, 2 chunks",
        "COLUMN  TYPE   SIZE",
        "k       int64  24B",
        "CHUNK  ROWS  SIZE",
        "    1     2  16B",
        "    2     1  8B",
    ]


def test_people_see_only_the_first_of_many_chunks() -> None:
    shown = lines(chunks=[{"rows": 1, "size_bytes": 8}] * 1000)
    assert shown[-1] == "950 more; --json shows all"
    assert len(shown) == 3 + 1 + 50 + 1


# --- formats --------------------------------------------------------------------------------------


def test_arrow_and_parquet_give_the_table_back() -> None:
    with pa.ipc.open_file(written(VARIED, "arrow")) as file:
        assert file.read_all().equals(VARIED)
    kept = VARIED.drop_columns(["same"])
    assert pq.read_table(io.BytesIO(written(kept, "parquet"))).equals(kept)


def test_chunks_with_different_dictionaries_can_be_written() -> None:
    words = [pa.array(["x"]).dictionary_encode(), pa.array(["y", "x"]).dictionary_encode()]
    table = pa.table({"w": pa.chunked_array(words)})
    with pa.ipc.open_file(written(table, "arrow")) as file:
        assert file.read_all()["w"].to_pylist() == ["x", "y", "x"]


def test_csv_has_a_line_for_each_row() -> None:
    assert written(VARIED.select(["n", "text", "word"]), "csv").decode().splitlines() == [
        '"n","text","word"', '1,"a","x"', '2,"ü","y"', ',,"x"',
    ]  # fmt: skip


def test_jsonl_has_an_object_for_each_row() -> None:
    table = VARIED.drop_columns(["bytes", "same"])
    first, *_, last = [json.loads(line) for line in written(table, "jsonl").splitlines()]
    assert first == {
        "n": 1, "text": "a", "list": [1], "word": "x", "when": "2026-01-02T00:00:00+00:00",
        "price": "1.50", "record": {"a": 1, "b": "x"}, "map": [["k", 1]],
    }  # fmt: skip
    assert (last["n"], last["list"]) == (None, None)


def test_jsonl_has_null_for_numbers_that_json_lacks() -> None:
    table = pa.table({"x": [1.5, float("nan")], "y": [[float("inf"), 2.0], None]})
    assert written(table, "jsonl").decode().splitlines() == [
        '{"x": 1.5, "y": [null, 2.0]}',
        '{"x": null, "y": null}',
    ]


@pytest.mark.parametrize(
    "form, column, text",
    [
        ("csv", "list", "csv cannot hold the column list, whose type is list<"),
        ("csv", "same", "csv cannot hold the column same, whose type is run_end_encoded<"),
        ("parquet", "same", "parquet cannot hold the table: "),
        ("jsonl", "bytes", "jsonl cannot hold values of type bytes; parquet and arrow can"),
    ],
)
def test_an_error_says_what_a_format_cannot_hold(form: str, column: str, text: str) -> None:
    with pytest.raises(FormatError) as caught:
        written(VARIED.select([column]), form)
    assert str(caught.value).startswith(text)
    assert "\n" not in str(caught.value)


def test_jsonl_refuses_two_columns_of_one_name() -> None:
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"])
    with pytest.raises(FormatError, match="two columns of the name a"):
        written(table, "jsonl")


def test_an_error_of_the_output_reaches_the_caller() -> None:
    def refuse(_: bytes) -> None:
        raise BrokenPipeError("the reader has gone")

    for form in ("parquet", "csv", "arrow", "jsonl"):
        with pytest.raises(BrokenPipeError):
            write_table(pa.table({"a": [1]}), form, refuse)


# --- objects --------------------------------------------------------------------------------------


class FakeClient:
    """A client of a cluster with these objects; it counts the bytes that it reads."""

    def __init__(self) -> None:
        self._contents: dict[str, bytes] = {}
        self.read_bytes = 0

    def add(self, object_id: str, *outcomes: Outcome) -> Concrete:
        return self.add_content(object_id, b"".join(map(bytes, encode(outcomes))))

    def add_content(self, object_id: str, content: bytes) -> Concrete:
        self._contents[object_id] = content
        return Concrete(ObjectId(object_id), len(content), frozenset(("127.0.0.1:8001",)))

    def ask(self, topic: str, argument: Any) -> Any:
        assert topic == "object"
        object_id = argument["object"]
        ref = Concrete(
            ObjectId(object_id), len(self._contents[object_id]), frozenset(("127.0.0.1:8001",))
        )
        return {
            "object": object_id, "state": "there", "made_by": None, "job": None,
            "reference": to_json(ref),
        }  # fmt: skip

    def read_chunks(self, ref: Reference, start: int = 0) -> Iterator[bytes]:
        content = self._contents[ref.id]
        for at in range(start, len(content), 1000):
            self.read_bytes += len(content[at : at + 1000])
            yield content[at : at + 1000]

    def map_object(self, ref: Reference) -> None:
        """Return None: no worker on this host has a file."""


@pytest.fixture
def client() -> Any:
    return FakeClient()


def value(content: Any) -> Outcome:
    return Outcome(VALUE, pack(content))


def options(object_id: str, **given: Any) -> Namespace:
    chosen = {"output": None, "format": "csv", "result": None, "json": False} | given
    return Namespace(objects=[object_id], **chosen)


LARGE = pa.table({"n": range(100_000)})


def described(client: Any, ref: Any) -> Any:
    return describe_table(client, ref, ref.size_bytes)


def test_looking_at_a_large_table_reads_only_its_description(client: Any) -> None:
    table = described(client, client.add("t", value(LARGE)))
    assert (table["kind"], table["rows"]) == ("table", 100_000)
    assert table["chunks"] == [{"rows": 100_000, "size_bytes": 800_000}]
    assert client.read_bytes < 3000


def test_the_columns_are_those_of_the_table(client: Any) -> None:
    for content in (VARIED, VARIED.to_batches()[0]):
        table = described(client, client.add("t", value(content)))
        assert [(each["name"], each["type"]) for each in table["columns"]] == [
            (field.name, str(field.type)) for field in VARIED.schema
        ]
    assert table["kind"] == "record batch"


def test_the_chunks_have_rows_and_bytes(client: Any) -> None:
    parts = [pa.table({"a": list(range(count)), "b": [1.0] * count}) for count in (10, 20)]
    table = described(client, client.add("t", value(pa.concat_tables(parts))))
    assert [each["size_bytes"] for each in table["columns"]] == [240, 240]
    assert table["chunks"] == [{"rows": 10, "size_bytes": 160}, {"rows": 20, "size_bytes": 320}]
    schema = pa.schema([pa.field("a", pa.int64(), nullable=False)])
    empty = described(client, client.add("e", value(pa.Table.from_batches([], schema))))
    assert empty == {
        "kind": "table", "rows": 0, "chunks": [],
        "columns": [{"name": "a", "type": "int64 not null", "size_bytes": 0}],
    }  # fmt: skip


def test_a_description_longer_than_a_chunk_is_read_whole(client: Any) -> None:
    small = pa.table({"n": [1]})
    table = described(client, client.add("t", value(pa.concat_tables([small] * 100))))
    assert len(table["chunks"]) == 100


def test_a_pickled_table_is_not_described(client: Any) -> None:
    own = pa.table({"a": pa.ExtensionArray.from_storage(OwnType(), pa.array([1]))})
    for content in ([value(LARGE), value(1)], [value([LARGE])], [value(own)]):
        assert described(client, client.add("o", *content)) is None


def test_a_table_is_written_to_a_file(
    client: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    client.add("t", value(LARGE))
    path = tmp_path / "table"
    given = options("t", format="parquet", output=str(path), json=True)
    get_table(client, given)
    assert pq.read_table(path).equals(LARGE)
    told = json.loads(capsys.readouterr().out)
    assert (told["object"], told["format"], told["rows"]) == ("t", "parquet", 100_000)


def test_a_table_that_cannot_be_written_leaves_no_file(client: Any, tmp_path: Path) -> None:
    client.add("t", value(VARIED))
    with pytest.raises(FormatError):
        get_table(client, options("t", output=str(tmp_path / "table")))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [pa.table({"a": [1, 2]}), pa.record_batch({"a": [1, 2]})])
def test_a_delegated_table_is_found_in_its_object(
    client: Any, capfdbinary: Any, content: Any
) -> None:
    for place, outcomes in ((0, [value(content)]), (1, [value([1]), value(content)])):
        client.add("child", *outcomes)
        moved = (to_array(Future(ObjectId("child"))), place, False)
        ref = client.add("parent", Outcome(MOVED, Packed(pickle.dumps(moved))))
        assert described(client, ref) is None
        get_table(client, options("parent"))
        assert capfdbinary.readouterr().out == b'"a"\n1\n2\n'


def test_one_of_several_results_is_selected(client: Any, capfdbinary: Any) -> None:
    error = Outcome(ERROR, Packed(pack_error(ValueError("no luck"))))
    client.add("o", value([1]), error, value(pa.table({"a": [7]})))
    get_table(client, options("o", result=3))
    assert capfdbinary.readouterr().out == b'"a"\n7\n'
    with pytest.raises(UsageError, match="results of 3 calls; select one with --result N"):
        get_table(client, options("o"))
    with pytest.raises(UsageError, match="o has only 3"):
        get_table(client, options("o", result=4))
    with pytest.raises(NoSuchTableError, match="its function raised ValueError"):
        get_table(client, options("o", result=2))
    with pytest.raises(NoSuchTableError, match="it is a Python value of type list"):
        get_table(client, options("o", result=1))


def refuse(*_: Any) -> None:
    raise LookupError("not here")


class Refusing:
    """A value that cannot be unpickled."""

    def __reduce__(self) -> Any:
        return refuse, ()


def test_a_value_that_cannot_be_unpickled_is_an_error(client: Any) -> None:
    client.add("o", value(Refusing()))
    with pytest.raises(TableUnreadableError, match="cannot be loaded here: LookupError: not here"):
        get_table(client, options("o"))


@pytest.mark.parametrize(
    "content, what",
    [
        (b"", "it is a file or the output of a program"),
        (b"a,b\n", "it is a file or the output of a program"),
        (STREAM_MAGIC, "it is a stream of a Python task"),
        (b"ciel.py1" + bytes(16), "it is damaged"),
        (b"ciel.ar1", "it is damaged"),
    ],
)
def test_other_objects_contain_no_table(client: Any, content: bytes, what: str) -> None:
    ref = client.add_content("o", content)
    assert described(client, ref) is None
    with pytest.raises(NoSuchTableError, match=f"o is not a table of Arrow: {what}"):
        get_table(client, options("o"))


def test_without_pyarrow_the_types_are_formats(client: Any) -> None:
    ref = client.add("t", value(pa.table({"n": [1], "t": ["a"], "l": [[1]]})))
    with mock.patch.dict(sys.modules, {"pyarrow": None}):
        table = described(client, ref)
        with pytest.raises(TableUnreadableError, match="pip install 'ciel\\[arrays\\]'"):
            get_table(client, options("t"))
    assert [each["type"] for each in table["columns"]] == ["l", "u", "+l"]


@pytest.mark.parametrize(
    "given, text",
    [
        (options("o", format=None, result=1), "add --format"),
        (options("o", json=True), "-o FILE"),
        (Namespace(objects=["a", "b"], format="csv", result=None), "name one object"),
    ],
)
def test_options_that_do_not_fit_are_refused(given: Namespace, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        check_options(given)


def test_the_command_knows_all_formats() -> None:
    assert tuple(formats.FORMATS) == FORMATS
