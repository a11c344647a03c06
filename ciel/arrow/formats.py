"""Writes tables of Arrow in other formats, a part of the rows at a time, also in tasks."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from ciel.arrow.elsewhere import as_table
from ciel.client.pools.shared import session_here
from ciel.core.errors import CielError
from ciel.python.options import Options, read_options

if TYPE_CHECKING:
    import pyarrow

    from ciel.client import Client
    from ciel.python.futures import Future

ROWS_AT_ONCE: Final = 64 << 10
"""A text format converts so many rows at a time."""

Write = Callable[[bytes], object]


class FormatError(CielError):
    """A format cannot hold a table."""


def as_file(
    table: Any,
    form: str,
    *,
    client: Client | None = None,
    options: dict[str, Any] | None = None,
) -> Future[bytes]:
    """Submit a task that writes a table in one of `FORMATS`; return the future of the file.

    Programs take the future as a file: `client.run(["wc", "-l"], stdin=as_file(table, "csv"))`.
    `table`: a table, a record batch, a future of one, or what `concat` returns. `options` are as
    for `ciel.task`. The future raises FormatError if the format cannot hold the table.
    """
    if form not in FORMATS:
        raise ValueError(f"there is no format {form!r}: it is one of {', '.join(FORMATS)}")
    session = client or session_here()
    chosen = read_options(Options(), {"name": f"as {form}", **(options or {})})
    file: Future[bytes] = session.call(_written, (table, form), {}, chosen)
    return file


def _written(table: Any, form: str) -> bytes:
    pieces: list[bytes] = []
    write_table(as_table(table), form, pieces.append)
    return b"".join(pieces)


def write_table(table: pyarrow.Table, form: str, write: Write) -> None:
    """Write a table in one of `FORMATS`; raises FormatError, and the errors of `write`.

    `write` may have received a part of the output when an error is raised.
    """
    import pyarrow

    try:
        FORMATS[form](table, write)
    except pyarrow.ArrowException as error:
        reason = str(error).strip().splitlines()[0]
        raise FormatError(f"{form} cannot hold the table: {reason}; {_ADVICE[form]}") from error


_ADVICE: Final = {
    "csv": "parquet and arrow can hold more types",
    "jsonl": "parquet and arrow can hold more types",
    "parquet": "arrow can hold all types",
    "arrow": "parquet and csv may be able to",
}


class _Sink:
    """The file that pyarrow writes to."""

    closed = False

    def __init__(self, write: Write) -> None:
        self._write = write

    def write(self, content: Any) -> int:
        piece = bytes(content)
        self._write(piece)
        return len(piece)

    def flush(self) -> None:
        """Do nothing: `write` keeps nothing back."""


def _parquet(table: pyarrow.Table, write: Write) -> None:
    import pyarrow
    import pyarrow.parquet

    sink = pyarrow.PythonFile(_Sink(write), "w")
    with pyarrow.parquet.ParquetWriter(sink, table.schema) as writer:
        writer.write_table(table)


def _arrow(table: pyarrow.Table, write: Write) -> None:
    import pyarrow

    table = table.unify_dictionaries()  # a file has only one dictionary for each column
    with pyarrow.ipc.new_file(pyarrow.PythonFile(_Sink(write), "w"), table.schema) as writer:
        writer.write_table(table)


def _csv(table: pyarrow.Table, write: Write) -> None:
    import pyarrow
    import pyarrow.csv

    for field in table.schema:
        if pyarrow.types.is_nested(field.type):
            raise FormatError(
                f"csv cannot hold the column {field.name}, whose type is {field.type}; parquet, "
                "arrow and jsonl can"
            )
    sink = pyarrow.PythonFile(_Sink(write), "w")
    with pyarrow.csv.CSVWriter(sink, table.schema) as writer:
        for batch in table.to_batches(ROWS_AT_ONCE):
            writer.write_batch(batch)


# --- lines of JSON --------------------------------------------------------------------------------


def _json_lines(table: pyarrow.Table, write: Write) -> None:
    names = table.column_names
    twice = (
        [name for name in names if names.count(name) > 1] if len(set(names)) < len(names) else []
    )
    if twice:
        raise FormatError(
            f"jsonl cannot hold two columns of the name {twice[0]}; parquet, arrow and csv can"
        )
    for batch in table.to_batches(ROWS_AT_ONCE):
        try:
            columns = [column.to_pylist() for column in batch.columns]
        except ValueError as error:  # such as nanoseconds without pandas
            raise FormatError(f"jsonl cannot hold the table: {error}") from error
        rows = zip(*columns, strict=True)
        write(b"".join(_line(dict(zip(names, row, strict=True))) for row in rows))


def _line(row: dict[str, Any]) -> bytes:
    try:
        text = _encoder.encode(row)
    except ValueError:  # NaN, or an infinity
        text = _encoder.encode(_finite(row))
    return text.encode(errors="surrogatepass") + b"\n"


def _other(value: Any) -> Any:
    """Return a value that JSON does not know as text."""
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    raise FormatError(
        f"jsonl cannot hold values of type {type(value).__name__}; parquet and arrow can"
    )


def _finite(value: Any) -> Any:
    """Return a value with null instead of each number that JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return value


_encoder: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, default=_other)

FORMATS: Final[dict[str, Callable[[pyarrow.Table, Write], None]]] = {
    "parquet": _parquet,
    "csv": _csv,
    "arrow": _arrow,
    "jsonl": _json_lines,
}
"""The function that writes each format; `arrow` is the file format of Arrow's IPC."""
