"""Shows results as a table, and writes docs/reliability.md from the recorded results."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from benchmarks.chaos.rows import Result, Row
from benchmarks.chaos.running import from_json, to_json

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "reliability.md"
RECORDED: Final = ROOT / "docs" / "measured" / "reliability.json"
START: Final = "<!-- the rest of this page is written by `python -m benchmarks.chaos --page` -->\n"
ORDER: Final = {"missed": 0, "met": 1, "not measured": 2}
HEAD: Final = ("row", "failure", "what happens", "measured", "target", "")


def sorted_results(results: Iterable[Result], rows: Sequence[str]) -> list[Result]:
    """Sort results: missed targets first, then as the rows are."""
    return sorted(results, key=lambda each: (ORDER[each.verdict], rows.index(each.row)))


def cells(row: Row, result: Result) -> list[str]:
    """Return the cells of a row."""
    measured = "; ".join(figure.measured() for figure in result.figures)
    if result.error:
        measured = f"{measured}; {result.error}" if measured else result.error
    goals = "; ".join(goal for figure in result.figures if (goal := figure.goal()))
    happens = [row.name, row.failure, row.promise]
    return [_cell(text) for text in (*happens, measured, goals or row.targets, result.verdict)]


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def markdown(lines: Iterable[Sequence[str]], head: Sequence[str] = HEAD) -> str:
    """Return a table."""
    written = [head, ["---"] * len(head), *lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in written).replace("  |", " |")


def table(results: Sequence[Result], rows: Mapping[str, Row]) -> str:
    """Return the table of a run, and below it the remarks."""
    order = sorted_results(results, [*rows])
    text = markdown(cells(rows[each.row], each) for each in order)
    if small := {each.scale for each in results if each.scale != 1}:
        sizes = ", ".join(f"{scale:g}" for scale in sorted(small))
        text = f"Smaller than the rows say: scale {sizes}. These are no results.\n\n{text}"
    remarks = [f"- {each.row}: {note}\n" for each in order for note in each.notes]
    return f"{text}\n{''.join(remarks)}" if remarks else text


def page_part(results: Mapping[str, Result], rows: Mapping[str, Row]) -> str:
    """Return the generated part of the page: measured rows, remarks, rows that were not measured.

    The command of each row is `python -m benchmarks.chaos` and its name.
    """
    known = [each for name, each in results.items() if name in rows]
    done = [each for each in sorted_results(known, [*rows]) if each.verdict != "not measured"]
    missed = sum(each.verdict == "missed" for each in done)
    open_rows = [row for row in rows.values() if row.name not in {each.row for each in done}]
    parts = [START, "\n## Measured\n\n"]
    if done:
        parts.append(f"Rows measured: {len(done)}; rows that miss a target: {missed}.\n\n")
        lines = [[*cells(rows[each.row], each), _command(each.row)] for each in done]
        parts.append(markdown(lines, (*HEAD, "command")))
        remarks = [f"- {each.row}: {_cell(note)}\n" for each in done for note in each.notes]
        parts += ["\nRemarks:\n\n", *remarks] if remarks else []
    else:
        parts.append("No row has been measured at full size yet.\n")
    if open_rows:
        parts.append("\n## Not measured\n\n")
        texts = [
            (row.name, row.failure, row.promise, row.targets, _why(results, row.name),
             _command(row.name))
            for row in open_rows
        ]  # fmt: skip
        head = ("row", "failure", "what happens", "target", "why", "command")
        parts.append(markdown([[_cell(text) for text in line] for line in texts], head))
    return "".join(parts)


def _command(name: str) -> str:
    return f"`python -m benchmarks.chaos {name}`"


def _why(results: Mapping[str, Result], name: str) -> str:
    result = results.get(name)
    return result.error if result is not None else "no run yet"


def write_page(page: str, results: Mapping[str, Result], rows: Mapping[str, Row]) -> str:
    """Return the page with a new generated part; raises ValueError if it has no such part."""
    before, mark, _ = page.partition(START)
    if not mark:
        raise ValueError(f"the page has no line {START.strip()}")
    return before + page_part(results, rows)


def recorded() -> dict[str, Result]:
    """Return the recorded results by row."""
    found = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    return {name: from_json(each) for name, each in found.items()}


def record(results: Iterable[Result], rows: Mapping[str, Row]) -> None:
    """Replace the recorded results of these rows, and write the page. Raises ValueError for results
    of a smaller size.
    """
    merged = recorded()
    for result in results:
        if result.scale != 1:
            raise ValueError(f"{result.row} ran at scale {result.scale:g}: only 1 is recorded")
        merged[result.row] = result
    in_order = {name: to_json(merged[name]) for name in rows if name in merged}
    RECORDED.write_text(json.dumps(in_order, indent=1, ensure_ascii=False) + "\n")
    PAGE.write_text(write_page(PAGE.read_text(), merged, rows))
