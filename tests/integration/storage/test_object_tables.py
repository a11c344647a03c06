"""Tests that `ciel object` shows and converts tables of Arrow that tasks of real workers return."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import cloudpickle
import pytest

pytest.importorskip("pyarrow")

import pyarrow as pa
import pyarrow.parquet as pq

import ciel
import ciel.arrow
from ciel.arrow import FormatError
from ciel.testing.homes import HandCluster, Home

cloudpickle.register_pickle_by_value(sys.modules[__name__])

Typed = Callable[..., tuple[int, str, str]]
ROWS = 100_000


class Desk:
    """A client of the shared cluster, and the command line in a home."""

    def __init__(self, home: Home, typed: Typed, client: ciel.Client) -> None:
        self.home = home
        self.client = client
        self._typed = typed

    def ciel(self, *words: str) -> tuple[int, str, str]:
        return self._typed(self.home, *words)

    def out(self, *words: str) -> str:
        status, out, err = self.ciel(*words)
        assert status == 0, err
        return out

    def info(self, object_id: str) -> Any:
        return json.loads(self.out("object", "info", object_id, "--json"))


@pytest.fixture
def desk(home: Home, typed: Typed, lasting_cluster: HandCluster) -> Iterator[Desk]:
    home.environ["CIEL_ACCESS"] = str(lasting_cluster.access)
    with ciel.Client(lasting_cluster.url, access=str(lasting_cluster.access)) as client:
        yield Desk(home, typed, client)


def object_of(future: Any) -> str:
    """Wait for a future; return the id of its object."""
    ciel.wait([future])
    return str(future.lot.id)


def numbers(rows: int, parts: int = 1) -> pa.Table:
    table = pa.table({"n": range(rows), "half": [n / 2 for n in range(rows)]})
    return pa.concat_tables([table] * parts)


def nested() -> pa.Table:
    return pa.table({"n": [1, 2], "list": [[1], [2, 3]]})


def delegate(rows: int) -> Any:
    return ciel.Client().submit(numbers, rows)


def words() -> list[str]:
    return ["no", "table"]


def items() -> Iterator[pa.RecordBatch]:
    yield pa.record_batch({"n": [1]})


@pytest.mark.slow
def test_info_shows_the_columns_and_chunks_of_a_large_table(desk: Desk) -> None:
    future = desk.client.submit(numbers, ROWS, 2)
    object_id = object_of(future)
    assert desk.info(object_id)["table"] == {
        "kind": "table", "rows": 2 * ROWS,
        "columns": [
            {"name": "n", "type": "int64", "size_bytes": 16 * ROWS},
            {"name": "half", "type": "double", "size_bytes": 16 * ROWS},
        ],
        "chunks": [{"rows": ROWS, "size_bytes": 16 * ROWS}] * 2,
    }  # fmt: skip
    shown = desk.out("object", "info", object_id)
    assert "\ntable: 200000 rows, 2 columns, 2 chunks\nCOLUMN" in shown


@pytest.mark.slow
def test_get_writes_the_table_in_each_format(desk: Desk) -> None:
    future = desk.client.submit(numbers, ROWS)
    object_id, file = object_of(future), desk.home.path / "table"
    get = ("object", "get", object_id, "-o", str(file), "--format")
    desk.out(*get, "parquet")
    assert pq.read_table(file).equals(numbers(ROWS))
    told = json.loads(desk.out(*get, "arrow", "--json"))
    assert (told["rows"], told["format"], told["file"]) == (ROWS, "arrow", str(file))
    with pa.ipc.open_file(file) as opened:
        assert opened.read_all().equals(numbers(ROWS))
    desk.out(*get, "jsonl")
    assert json.loads(file.read_text().splitlines()[-1]) == {"n": ROWS - 1, "half": ROWS / 2 - 0.5}
    shown = desk.out("object", "get", object_id, "--format", "csv").splitlines()
    assert (len(shown), shown[:3]) == (ROWS + 1, ['"n","half"', "0,0", "1,0.5"])


def test_programs_get_a_table_as_a_file(desk: Desk) -> None:
    client, part = desk.client, desk.client.submit(numbers, 3)
    rows = ciel.arrow.as_file(part, "csv", client=client)
    assert client.run(["wc", "-l"], stdin=rows).result(60) == b"4\n"
    whole = ciel.arrow.as_file(ciel.arrow.concat([part, part]), "parquet", client=client)
    assert pq.read_table(io.BytesIO(whole.result(60))).equals(numbers(3, 2))
    with pytest.raises(FormatError, match="csv cannot hold the column list"):
        ciel.arrow.as_file(nested(), "csv", client=client).result(60)
    with pytest.raises(ValueError, match="no format 'xlsx': it is one of parquet, csv"):
        ciel.arrow.as_file(part, "xlsx", client=client)


@pytest.mark.slow
def test_a_table_that_a_child_has_made_is_found(desk: Desk) -> None:
    future = desk.client.submit(delegate, 3)
    object_id = object_of(future)
    assert desk.out("object", "get", object_id, "--format", "csv").count("\n") == 4


def test_the_results_of_small_calls_are_selected_by_number(desk: Desk) -> None:
    calls: list[Any] = [desk.client.submit(function) for function in (words, nested)]
    ciel.wait(calls)
    object_id = object_of(calls[1])
    if object_id == object_of(calls[0]):
        assert "table" not in desk.info(object_id)
        status, _, err = desk.ciel("object", "get", object_id, "--format", "jsonl")
        assert status == 2
        assert "select one with --result N" in err
    number = str(calls[1].place + 1)
    shown = desk.out("object", "get", object_id, "--format", "jsonl", "--result", number)
    assert json.loads(shown.splitlines()[1]) == {"n": 2, "list": [2, 3]}


def test_a_table_that_a_client_has_put_is_shown_and_converted(desk: Desk) -> None:
    future = desk.client.put(numbers(ROWS))
    used = desk.client.submit(len, future)  # the master learns of the object
    ciel.wait([used])
    object_id = object_of(future)
    assert desk.info(object_id)["table"]["rows"] == ROWS
    assert desk.out("object", "get", object_id, "--format", "csv").count("\n") == ROWS + 1


@pytest.mark.parametrize(
    "function, what",
    [
        (words, "it is a Python value of type list"),
        (items, "it is a stream of a Python task"),
    ],
)
def test_a_value_that_is_no_table_is_an_error(
    desk: Desk, function: Callable[..., Any], what: str
) -> None:
    future = desk.client.submit(function)
    object_id = object_of(future)
    status, out, err = desk.ciel("object", "get", object_id, "--format", "csv")
    assert (status, out, err.count("\n")) == (1, "", 1)
    assert f"{object_id} is not a table of Arrow: {what}" in err
    assert "table" not in desk.info(object_id)


def test_a_file_is_no_table(desk: Desk) -> None:
    (desk.home.path / "file").write_text("a,b\n")
    object_id = desk.out("object", "put", "file").strip()
    status, _, err = desk.ciel("object", "get", object_id, "--format", "parquet")
    assert (status, "it is a file or the output of a program" in err) == (1, True)
    desk.out("object", "rm", object_id)


@pytest.mark.slow
def test_a_format_that_cannot_hold_the_table_leaves_no_file(desk: Desk) -> None:
    future = desk.client.submit(nested)
    object_id, file = object_of(future), desk.home.path / "table.csv"
    status, _, err = desk.ciel("object", "get", object_id, "--format", "csv", "-o", str(file))
    assert (status, err.count("\n")) == (1, 1)
    assert "csv cannot hold the column list, whose type is list<" in err
    assert not file.exists()


def test_without_pyarrow_the_error_says_what_to_install(desk: Desk) -> None:
    future = desk.client.submit(nested)
    object_id = object_of(future)
    with mock.patch.dict(sys.modules, {"pyarrow": None}):
        table = desk.info(object_id)["table"]
        status, _, err = desk.ciel("object", "get", object_id, "--format", "csv")
    assert [each["type"] for each in table["columns"]] == ["l", "+l"]
    assert status == 1
    assert "pyarrow is not installed; pip install 'ciel[arrays]' installs it" in err


@pytest.mark.parametrize(
    "options, text",
    [
        (["--format", "xml"], "invalid choice: 'xml'"),
        (["--result", "1"], "--result selects a table; add --format"),
        (["--format", "csv", "--json"], "needs a file for the table: -o FILE"),
        (["other", "--format", "csv"], "name one object"),
    ],
)
def test_options_that_do_not_fit_are_a_usage_error(
    desk: Desk, options: list[str], text: str
) -> None:
    status, out, err = desk.ciel("object", "get", "some", *options)
    assert (status, out) == (2, "")
    assert text in err
