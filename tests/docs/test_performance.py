"""Checks that the README's table of measurements, its history and the benchmarks agree."""

from __future__ import annotations

import re
from importlib.util import find_spec

import pytest

from benchmarks.__main__ import FIGURES, module_of
from benchmarks.record import (
    HISTORY,
    HISTORY_HEAD,
    README,
    README_HEAD,
    in_history,
    in_readme,
    keys,
    read_table,
)

ORDER = keys(figure.text for figure in FIGURES)
FIGURE = dict(zip(ORDER, FIGURES, strict=True))
PAGE = """Speed:

| figure | goal | measured | |
|---|---|---|---|
| one | ≤ 5 s | 4 s | met |
| - of two (*) | ≥ 2 x | 1 x | missed |

(*) from another day.
"""
HISTORY_PAGE = PAGE.replace(" | |\n|---", " |\n|---").replace("measured", "first")
HISTORY_PAGE = HISTORY_PAGE.replace(" met |", "").replace(" missed |", "")
TWO = keys(["one", "- of two"])


def value_of(cell: str) -> float:
    number = re.match(r"-?[\d,.]+", cell)
    assert number is not None, cell
    return float(number[0].replace(",", ""))


def test_every_figure_has_a_unique_name() -> None:
    assert len(FIGURE) == len(FIGURES)


def test_the_readme_lists_figures_with_their_goals_and_verdicts() -> None:
    _, head, rows, _ = read_table(README.read_text(), README_HEAD)
    assert tuple(head) == README_HEAD
    assert list(rows) == [key for key in ORDER if key in rows]
    for key, (_, goal, here, verdict) in rows.items():
        figure = FIGURE[key]
        assert goal == figure.cells(0)[0], key
        assert verdict == ("met" if figure.is_met(value_of(here)) else "missed"), key


def test_the_history_has_the_goals_of_the_benchmarks() -> None:
    _, _, rows, _ = read_table(HISTORY.read_text(), HISTORY_HEAD)
    told = {key: cells[1] for key, cells in rows.items() if key in FIGURE}
    assert told == {key: FIGURE[key].cells(0)[0] for key in told}
    assert len(told) == len(rows)


def test_the_history_contains_the_readmes_values() -> None:
    _, _, told, _ = read_table(README.read_text(), README_HEAD)
    _, _, rows, _ = read_table(HISTORY.read_text(), HISTORY_HEAD)
    newest = {key: [cell for cell in cells[2:] if cell][-1] for key, cells in rows.items()}
    assert {key: cells[2] for key, cells in told.items()} == {key: newest[key] for key in told}


def test_rows_that_were_not_measured_stay_in_the_readme_unchanged() -> None:
    page = in_readme(PAGE, TWO, {TWO[0]: ["≤ 5 s", "6 s", "missed"]})
    assert page == PAGE.replace("| 4 s | met |", "| 6 s | missed |")


def test_a_row_that_is_measured_again_loses_its_mark() -> None:
    page = in_readme(PAGE, TWO, {TWO[1]: ["≥ 2 x", "3 x", "met"]})
    assert "| - of two | ≥ 2 x | 3 x | met |" in page


def test_the_history_gets_a_column_with_the_measured_values() -> None:
    page = in_history(HISTORY_PAGE, TWO, {TWO[0]: ["≤ 3 s", "2 s", "met"]}, "second")
    assert page.splitlines()[2:6] == [
        "| figure | goal | first | second |",
        "|---|---|---|---|",
        "| one | ≤ 3 s | 4 s | 2 s |",
        "| - of two (*) | ≥ 2 x | 1 x | |",
    ]


def test_the_history_has_one_column_for_each_name() -> None:
    once = in_history(HISTORY_PAGE, TWO, {TWO[0]: ["≤ 5 s", "2 s", "met"]}, "second")
    twice = in_history(once, TWO, {TWO[0]: ["≤ 5 s", "1 s", "met"]}, "second")
    assert twice == once.replace("2 s", "1 s")


def test_a_page_without_the_table_is_an_error() -> None:
    with pytest.raises(ValueError, match="the page has no table"):
        in_readme("nothing", TWO, {})


def test_each_figure_has_a_benchmark() -> None:
    for figure in FIGURES:
        assert find_spec(module_of(figure.benchmark)) is not None
