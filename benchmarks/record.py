"""Writes results into the table of the README, and into the history in docs/performance.md.

`make bench RECORD="2026-11-22 streams"` writes the measured values into both. In the README it
replaces the values of existing rows; the history gets a column of that name, or the column of that
name gets new values. A row that was not measured keeps its value in the README, and is empty in the
column.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
HISTORY = ROOT / "docs" / "performance.md"
README_HEAD = ("figure", "goal", "measured", "")
HISTORY_HEAD = ("figure", "goal")

Key = tuple[str, str]
"""A row's name: the text of the last row that is not part of another row, and its own text."""
Rows = dict[Key, list[str]]
"""The cells of each row of a table, its text first."""


def keys(texts: Iterable[str]) -> list[Key]:
    """Name rows by their texts; a row with a dash belongs to the last row without a dash."""
    found: list[Key] = []
    parent = ""
    for text in texts:
        parent = parent if text.startswith("- ") else text
        found.append((parent, text))
    return found


def read_table(page: str, head: tuple[str, ...]) -> tuple[str, list[str], Rows, str]:
    """Return the text before a table, the table's header and rows, and the text after it.

    `head` is the start of the table's first line. Raises ValueError if the page has no such table.
    """
    before, mark, rest = page.partition(f"| {' | '.join(head[:2])} |")
    if not mark:
        raise ValueError(
            f"the page has no table whose header starts with | {head[0]} | {head[1]} |"
        )
    table, end, after = f"{mark}{rest}".partition("\n\n")
    lines = [_cells(line) for line in table.splitlines()]
    names = keys(without_marks(line[0]) for line in lines[2:])
    rows = dict(zip(names, lines[2:], strict=True))
    if len(rows) != len(names):
        raise ValueError("two rows have the same name")
    return before, lines[0], rows, end + after


def without_marks(text: str) -> str:
    """Return a row's text without references to notes below the table."""
    return text.replace(" (**)", "").replace(" (*)", "")


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().removeprefix("|").removesuffix("|").split("|")]


def write_table(head: list[str], rows: Rows) -> str:
    """Return a table as text."""
    lines = [head, ["---"] * len(head), *rows.values()]
    written = ("".join(f"| {cell} " if cell else "| " for cell in line) + "|" for line in lines)
    return "\n".join(written).replace(" --- ", "---")


def in_readme(page: str, order: list[Key], measured: Mapping[Key, list[str]]) -> str:
    """Return the README with new values in the measured rows."""
    before, head, rows, after = read_table(page, README_HEAD)
    new = {key: [key[1], *cells] for key, cells in measured.items()}
    merged = {key: new.get(key) or rows[key] for key in order if key in rows}
    return before + write_table(head, merged) + after


def in_history(page: str, order: list[Key], measured: Mapping[Key, list[str]], column: str) -> str:
    """Return the history with this column.

    Rows of benchmarks that no longer exist stay, at the end of the table.
    """
    before, head, rows, after = read_table(page, HISTORY_HEAD)
    if column not in head:
        head.append(column)
    merged: Rows = {}
    for key in dict.fromkeys([*order, *rows]):
        cells = [*rows.get(key, [key[1]]), *[""] * len(head)][: len(head)]
        if key in measured:
            cells[1], cells[head.index(column)] = measured[key][:2]
        if any(cells[1:]):
            merged[key] = cells
    return before + write_table(head, merged) + after


def record(order: list[Key], measured: Mapping[Key, list[str]], column: str) -> None:
    """Write results into both pages.

    `measured` has, for each row, its goal, its value, and whether the value meets the goal.
    """
    README.write_text(in_readme(README.read_text(), order, measured))
    HISTORY.write_text(in_history(HISTORY.read_text(), order, measured, column))
