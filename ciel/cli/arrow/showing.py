"""Describes tables of Arrow in objects, for `ciel object info`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

from ciel.cli.output.tables import size_text, table
from ciel.client.client import Client
from ciel.core.errors import CielError
from ciel.core.refs import Reference
from ciel.python.arrow_tables import MAGIC, layout_of, place_of_descriptor

_SHOWN: Final = 50
"""So many columns and chunks are shown to people; JSON has all."""
_DESCRIPTOR_MAX_BYTES: Final = 64 << 20
"""Reading a longer descriptor would take minutes."""


def describe_table(client: Client, ref: Reference, size_bytes: int) -> dict[str, Any] | None:
    """Return the facts about the table in an object, in the form of `object-info.json`.

    Return None if the object is not a table, or cannot be read now.
    """
    with suppress(CielError):
        first = next(client.read_chunks(ref), b"")
        if not first.startswith(MAGIC):
            return None
        start, length = place_of_descriptor(first, size_bytes)
        if length > _DESCRIPTOR_MAX_BYTES:
            return None
        found = first[start : start + length]
        if len(found) < length:
            found = _read(client, ref, start, length)
        layout = layout_of(found, size_bytes)
        sizes = [chunk.sizes_bytes for chunk in layout.chunks]
        return {
            "kind": "record batch" if layout.is_batch else "table",
            "rows": sum(chunk.rows for chunk in layout.chunks),
            "columns": [
                {**column._asdict(), "size_bytes": sum(each[place] for each in sizes)}
                for place, column in enumerate(layout.columns)
            ],
            "chunks": [
                {"rows": chunk.rows, "size_bytes": sum(chunk.sizes_bytes)}
                for chunk in layout.chunks
            ],
        }
    return None


def _read(client: Client, ref: Reference, start: int, size_bytes: int) -> bytes:
    found = bytearray()
    for chunk in client.read_chunks(ref, start):
        found += chunk
        if len(found) >= size_bytes:
            break
    return bytes(found[:size_bytes])


def render_table(facts: dict[str, Any], width: int | None = None) -> str:
    """Lay out the facts about a table."""
    return "\n".join(_lines(facts, width))


def _lines(facts: dict[str, Any], width: int | None) -> Iterator[str]:
    columns, chunks = facts["columns"], facts["chunks"]
    counts = (facts["rows"], "row"), (len(columns), "column"), (len(chunks), "chunk")
    yield f"{facts['kind']}: " + ", ".join(_counted(*count) for count in counts)
    if columns:
        cells = [
            (each["name"], each["type"], size_text(each["size_bytes"])) for each in columns[:_SHOWN]
        ]
        yield table(("COLUMN", "TYPE", "SIZE"), cells, width)
        yield from _rest(columns)
    if len(chunks) > 1:
        parts = [
            (number, each["rows"], size_text(each["size_bytes"]))
            for number, each in enumerate(chunks[:_SHOWN], 1)
        ]
        yield table(("CHUNK", "ROWS", "SIZE"), parts, width)
        yield from _rest(chunks)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _rest(items: Sequence[Any]) -> Iterator[str]:
    if len(items) > _SHOWN:
        yield f"{len(items) - _SHOWN} more; --json shows all"
