"""Tables that a task fills column by column, in memory of the store (POOL-1)."""

from __future__ import annotations

from typing import Any

import numpy
import pyarrow

from ciel.arrow.pool import memory_pool


class Draft:
    """A table to be filled: `draft[NAME]` is a writable numpy array for each column."""

    def __init__(self, schema: pyarrow.Schema, rows: int, at: str | None) -> None:
        """Allocate all columns; raises TypeError for a type that numpy cannot write in place."""
        self.schema = schema
        self.rows = rows
        self._buffers: list[pyarrow.Buffer] = []
        self._columns: dict[str, numpy.ndarray[Any, Any]] = {}
        pool = memory_pool(at)
        for field in schema:
            kind = _numpy_type(field)
            buffer = pyarrow.allocate_buffer(rows * kind.itemsize, memory_pool=pool)
            self._buffers.append(buffer)
            self._columns[field.name] = numpy.frombuffer(buffer, kind)

    def __getitem__(self, name: str) -> numpy.ndarray[Any, Any]:
        return self._columns[name]

    def table(self) -> pyarrow.Table:
        """Return the table, without a copy. Its columns cannot be written any more."""
        for column in self._columns.values():
            column.flags.writeable = False
        columns = [
            pyarrow.Array.from_buffers(field.type, self.rows, [None, buffer])
            for field, buffer in zip(self.schema, self._buffers, strict=True)
        ]
        return pyarrow.Table.from_arrays(columns, schema=self.schema)


def empty(schema: pyarrow.Schema, rows: int, *, at: str | None = None) -> Draft:
    """Return a draft of a table with arbitrary content, for a task to fill and return.

    Its columns are in the store already, so that returning `draft.table()` copies nothing. Columns
    have types of fixed width, and no nulls: other tables are made with `memory_pool`. `at`: see
    `memory_pool`.
    """
    if rows < 0:
        raise ValueError(f"a table has at least 0 rows, not {rows}")
    return Draft(schema, rows, at)


def _numpy_type(field: pyarrow.Field) -> numpy.dtype[Any]:
    kind = field.type
    try:
        if pyarrow.types.is_primitive(kind) and kind.bit_width % 8 == 0:
            found: numpy.dtype[Any] = numpy.dtype(kind.to_pandas_dtype())
            return found
    except NotImplementedError:
        pass
    raise TypeError(
        f"the column {field.name!r} has the type {kind}, which numpy cannot write in place: make "
        "the table with pyarrow, and with memory_pool=ciel.arrow.memory_pool()"
    )
