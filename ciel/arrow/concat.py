"""Tables that consist of the tables of several tasks (POOL-5)."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow

from ciel.arrow.elsewhere import TableElsewhere, as_table, described, read_parts
from ciel.core.errors import CielError
from ciel.python.elsewhere import ObjectElsewhere
from ciel.python.futures import Future, InParts


class SchemasDifferError(CielError, ValueError):
    """The parts of a table have different columns or types."""


class Concat:
    """A future table, which consists of the tables of several futures.

    As an argument of a task it becomes the table. No part is copied: each chunk of the table is
    where its part is. If `columns` or `rows` select from a part on another host, only the selected
    columns and rows are fetched.
    """

    def __init__(
        self, parts: Sequence[Any], columns: Sequence[str] | None, rows: slice | None
    ) -> None:
        self.parts = parts
        self.columns = columns
        self.rows = rows

    @property
    def _is_whole(self) -> bool:
        return self.columns is None and self.rows is None

    def result(self, timeout: float | None = None) -> pyarrow.Table:
        """Wait for all parts, at most `timeout` seconds; return the table.

        Raises what a part raises, TimeoutError, and SchemasDifferError.
        """
        until_s = None if timeout is None else time.monotonic() + timeout
        tables = []
        for part in self.parts:
            left_s = None if until_s is None else max(0.0, until_s - time.monotonic())
            read = part.result if self._is_whole else getattr(part, "in_parts", part.result)
            tables.append(read(left_s))
        return concatenated(tables, self.columns, self.rows)

    def __reduce__(self) -> tuple[Any, ...]:
        parts = self.parts if self._is_whole else map(InParts, self.parts)
        return _unpickled, (tuple(parts), self.columns, self.rows)


def concat(
    parts: Iterable[Any], columns: Iterable[str] | None = None, rows: slice | None = None
) -> Concat:
    """Return one table of the tables that tasks return. `parts`: their futures, in the order of the
    rows. `columns`: only these, in this order. `rows`: only these rows of the whole, as
    `slice(first, end)`.
    """
    found = list(parts)
    if not found:
        raise ValueError("a table consists of at least one part")
    for number, part in enumerate(found):
        if not callable(getattr(part, "result", None)):
            raise TypeError(f"part {number} is no future, but {type(part).__name__}")
    if rows is not None and (not isinstance(rows, slice) or rows.step not in (None, 1)):
        raise TypeError(f"rows must be a slice without a step, not {rows!r:.60}")
    return Concat(found, None if columns is None else tuple(columns), rows)


def _unpickled(
    parts: Sequence[Any], columns: Sequence[str] | None, rows: slice | None
) -> pyarrow.Table | Concat:
    """Return the table, if the futures of its parts were replaced by values when it was unpickled.

    They are in the arguments of a task, but not within other values.
    """
    futures = [part.future if isinstance(part, InParts) else part for part in parts]
    if any(isinstance(future, Future) for future in futures):
        return Concat(futures, columns, rows)
    return concatenated(parts, columns, rows)


def concatenated(
    parts: Sequence[pyarrow.Table | pyarrow.RecordBatch | ObjectElsewhere],
    columns: Sequence[str] | None = None,
    rows: slice | None = None,
) -> pyarrow.Table:
    """Return one table of several, without a copy; raises SchemasDifferError.

    Of parts on other hosts, only the chosen columns and rows are fetched.
    """
    known = described([part for part in parts if isinstance(part, ObjectElsewhere)])
    fetched = iter(known)
    tables = [next(fetched) if isinstance(part, ObjectElsewhere) else part for part in parts]
    tables = [
        table if isinstance(table, TableElsewhere) else as_table(table, f"part {number}")
        for number, table in enumerate(tables)
    ]
    for table in tables:
        _require_columns(table.column_names, columns or ())
    chosen = _chosen(tables, columns, _spans([table.num_rows for table in tables], rows))
    expected = chosen[0].schema
    for number, table in enumerate(chosen):
        if not table.schema.equals(expected):
            raise SchemasDifferError(
                f"part {number} of the table has other columns than part 0: "
                f"{_difference(expected, table.schema)}"
            )
    return pyarrow.concat_tables(chosen)


def _spans(counts: Sequence[int], rows: slice | None) -> list[tuple[int, int]]:
    """Return the first and end row of each part, of parts with so many rows."""
    first, end, _ = (rows or slice(None)).indices(sum(counts))
    spans, before = [], 0
    for count in counts:
        start = min(max(first - before, 0), count)
        spans.append((start, max(min(end - before, count), start)))
        before += count
    return spans


def _chosen(
    tables: Sequence[TableElsewhere | pyarrow.Table],
    columns: Sequence[str] | None,
    spans: Sequence[tuple[int, int]],
) -> list[pyarrow.Table]:
    """Return the chosen columns and rows of each table."""
    pairs = list(zip(tables, spans, strict=True))
    elsewhere = [pair for pair in pairs if isinstance(pair[0], TableElsewhere)]
    fetched = iter(read_parts(elsewhere, columns))
    chosen = []
    for table, (first, end) in pairs:
        if isinstance(table, TableElsewhere):
            found = next(fetched)
        else:
            found = table if end - first == table.num_rows else table.slice(first, end - first)
        chosen.append(found if columns is None else found.select(list(columns)))
    return chosen


def _require_columns(found: Sequence[str], wanted: Sequence[str]) -> None:
    for name in wanted:
        if name not in found:
            raise KeyError(f"the table has no column {name!r}; it has {', '.join(found)}")


def _difference(expected: pyarrow.Schema, found: pyarrow.Schema) -> str:
    if expected.names != found.names:
        return f"{', '.join(found.names)} instead of {', '.join(expected.names)}"
    for one, other in zip(expected, found, strict=True):
        if not one.equals(other):
            return f"{other} instead of {one}"
    return "the same columns with other properties"
