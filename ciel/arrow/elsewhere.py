"""Reads columns and rows of tables that lie on other hosts (POOL-5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow

from ciel.python import arrow_tables
from ciel.python.elsewhere import ObjectElsewhere, Part, fetch_parts

_HEADER_BYTES: Final = 64
_TAIL_BYTES: Final = 4096
"""Most descriptors are at the end of the object, and smaller than this."""


class TableElsewhere:
    """A table of another host, of which only the descriptor was fetched.

    `content` is private memory.
    """

    layout: arrow_tables.Layout

    def __init__(self, source: ObjectElsewhere, content: memoryview) -> None:
        self.source = source
        self.content = content

    @property
    def num_rows(self) -> int:
        return self.layout.rows

    @property
    def column_names(self) -> list[str]:
        return self.layout.names

    @property
    def place(self) -> Part:
        """The descriptor's part of the object."""
        start = bytes(self.content[:_HEADER_BYTES])
        return arrow_tables.place_of_descriptor(start, len(self.content))

    def read_descriptor(self) -> None:
        """Read the descriptor, which was fetched; raises TableError."""
        offset, size_bytes = self.place
        descriptor = bytes(self.content[offset : offset + size_bytes])
        self.layout = arrow_tables.layout_of(descriptor, len(self.content))

    def read(self, choice: arrow_tables.Choice) -> pyarrow.Table:
        """Return the table of a choice, whose parts were fetched; raises TableError."""
        content, (offset, _) = self.content, self.place
        header = arrow_tables.header(offset, len(choice.descriptor))
        content[offset : offset + len(choice.descriptor)] = choice.descriptor
        content[: len(header)] = header
        return arrow_tables.read(content)


def as_table(value: Any, what: str = "the value") -> pyarrow.Table:
    """Return a table or a record batch as a table; raises TypeError, which names it by `what`."""
    if isinstance(value, pyarrow.Table):
        return value
    if isinstance(value, pyarrow.RecordBatch):
        return pyarrow.Table.from_batches([value])
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    raise TypeError(f"{what} is no table of pyarrow, but {kind}")


def described(sources: Sequence[ObjectElsewhere]) -> list[TableElsewhere | pyarrow.Table]:
    """Fetch the descriptors of tables, all at the same time.

    An object in another format is fetched as a whole; its value takes the place of the table.
    Raises TableError, and what the calls have raised that produced the objects.
    """
    contents = fetch_parts([(source, _first_parts(source)) for source in sources])
    found: list[TableElsewhere | pyarrow.Table] = []
    incomplete = []
    for source, content in zip(sources, contents, strict=True):
        if bytes(content[: len(arrow_tables.MAGIC)]) != arrow_tables.MAGIC:
            found.append(source.value())
            continue
        table = TableElsewhere(source, content)
        found.append(table)
        if table.place[0] < source.size_bytes - _TAIL_BYTES:
            incomplete.append((table, [table.place]))
    _fetch(incomplete)
    for each in found:
        if isinstance(each, TableElsewhere):
            each.read_descriptor()
    return found


def read_parts(
    tables: Sequence[tuple[TableElsewhere, tuple[int, int]]], columns: Sequence[str] | None
) -> list[pyarrow.Table]:
    """Fetch columns of tables, all at the same time: from each the rows from a first one to an end.

    `columns`: these; None: all. Raises TableError.
    """
    choices = [
        arrow_tables.choose(table.layout, columns or table.column_names, *span)
        for table, span in tables
    ]
    pairs = [(table, choice) for (table, _), choice in zip(tables, choices, strict=True)]
    _fetch([(table, choice.parts) for table, choice in pairs if choice.parts])
    found = [table.read(choice) for table, choice in pairs]
    return [
        table.slice(choice.skip_rows, end - first)
        for table, choice, (_, (first, end)) in zip(found, choices, tables, strict=True)
    ]


def _fetch(wanted: Sequence[tuple[TableElsewhere, Sequence[Part]]]) -> None:
    contents = fetch_parts([(table.source, parts) for table, parts in wanted])
    for (table, _), content in zip(wanted, contents, strict=True):
        table.content = content


def _first_parts(source: ObjectElsewhere) -> list[Part]:
    tail = max(source.size_bytes - _TAIL_BYTES, _HEADER_BYTES)
    return [(0, _HEADER_BYTES), (tail, source.size_bytes - tail)]
