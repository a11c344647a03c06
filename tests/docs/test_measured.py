"""The figures in the prose of measured pages come from the benchmarks that write their tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.engine import finer, master
from benchmarks.plots import DOCS, FIGURE, with_figures

EVENTS = {
    batch: dict.fromkeys(finer.EVENTS, float(number))
    for number, batch in enumerate(master.BATCHES, 1)
}
NO_OP = {"master_us": 10.0, "worker_us": 12.0, "client_us": 8.0, "idle_busy": 0.01}
RATIOS = {"two_by_cpu": 1.5, "one_with_locks_by_cpu": 0.5}


@pytest.mark.requirement("CIB-55")
def test_the_benchmark_gives_all_figures_of_its_page() -> None:
    figures = master.in_prose(EVENTS, NO_OP, RATIOS)
    page = (DOCS / "master.md").read_text()
    assert {name for name, _ in FIGURE.findall(page)} == figures.keys()
    assert figures["tasks_per_s"] == "100,000"
    assert figures["frames"] == "44%"  # of nine kinds of events, four are frames
    written = dict(FIGURE.findall(with_figures(page, figures)))
    assert written == figures


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda path: path.stem)
def test_a_figure_is_the_same_everywhere_on_a_page(page: Path) -> None:
    found = FIGURE.findall(page.read_text())
    assert len(set(found)) == len(dict(found))


def test_a_figure_without_a_value_is_an_error() -> None:
    with pytest.raises(KeyError):
        with_figures("<!--=unknown-->1<!--=-->", {})
