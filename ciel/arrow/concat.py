"""Tables that consist of the tables of several tasks (POOL-5)."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow

from ciel.core.errors import CielError


class SchemasDifferError(CielError, ValueError):
    """The parts of a table have different columns or types."""


class Concat:
    """A future table, which consists of the tables of several futures.

    As an argument of a task it becomes the table. No part is copied: each chunk of the table is
    where its part is.
    """

    def __init__(self, parts: Sequence[Any], columns: tuple[str, ...] | None) -> None:
        self.parts = parts
        self.columns = columns

    def result(self, timeout: float | None = None) -> pyarrow.Table:
        """Wait for all parts, at most `timeout` seconds; return the table.

        Raises what a part raises, TimeoutError, and SchemasDifferError.
        """
        until_s = None if timeout is None else time.monotonic() + timeout
        tables = []
        for part in self.parts:
            left_s = None if until_s is None else max(0.0, until_s - time.monotonic())
            tables.append(part.result(left_s))
        return concatenated(tables, self.columns)

    def __reduce__(self) -> tuple[Any, ...]:
        return concatenated, (tuple(self.parts), self.columns)


def concat(parts: Iterable[Any], columns: Iterable[str] | None = None) -> Concat:
    """Return one table of the tables that tasks return. `parts`: their futures, in the order of the
    rows. `columns`: only these, in this order.
    """
    found = list(parts)
    if not found:
        raise ValueError("a table consists of at least one part")
    for number, part in enumerate(found):
        if not callable(getattr(part, "result", None)):
            raise TypeError(f"part {number} is no future, but {type(part).__name__}")
    return Concat(found, None if columns is None else tuple(columns))


def concatenated(
    parts: Sequence[pyarrow.Table | pyarrow.RecordBatch], columns: Sequence[str] | None = None
) -> pyarrow.Table:
    """Return one table of several, without a copy; raises SchemasDifferError."""
    tables = [
        _selected(as_table(part, f"part {number}"), columns) for number, part in enumerate(parts)
    ]
    expected = tables[0].schema
    for number, table in enumerate(tables):
        if not table.schema.equals(expected):
            raise SchemasDifferError(
                f"part {number} of the table has other columns than part 0: "
                f"{_difference(expected, table.schema)}"
            )
    return pyarrow.concat_tables(tables)


def as_table(value: Any, what: str = "the value") -> pyarrow.Table:
    """Return a table or a record batch as a table; raises TypeError, which names it by `what`."""
    if isinstance(value, pyarrow.Table):
        return value
    if isinstance(value, pyarrow.RecordBatch):
        return pyarrow.Table.from_batches([value])
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    raise TypeError(f"{what} is no table of pyarrow, but {kind}")


def _selected(table: pyarrow.Table, columns: Sequence[str] | None) -> pyarrow.Table:
    if columns is None:
        return table
    missing = [name for name in columns if name not in table.column_names]
    if missing:
        raise KeyError(
            f"the table has no column {missing[0]!r}; it has {', '.join(table.column_names)}"
        )
    return table.select(list(columns))


def _difference(expected: pyarrow.Schema, found: pyarrow.Schema) -> str:
    if expected.names != found.names:
        return f"{', '.join(found.names)} instead of {', '.join(expected.names)}"
    for one, other in zip(expected, found, strict=True):
        if not one.equals(other):
            return f"{other} instead of {one}"
    return "the same columns with other properties"
