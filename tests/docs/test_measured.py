"""The figures in the prose of measured pages come from the benchmarks that write their tables."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import plots
from benchmarks.disks import large_loads
from benchmarks.engine import combinations, finer, master, transports
from benchmarks.plots import DOCS, FIGURE, with_figures
from ciel.core.transports import COPY, HTTP, LINK, RING, SOCKET

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


@pytest.mark.requirement("CIB-53")
def test_the_benchmark_of_transports_gives_all_figures_of_its_page() -> None:
    hops = {name: {SOCKET: 100.0, RING: 150.0} for name in ("idle", "busy")}
    fetches = {
        way: dict.fromkeys(transports.SIZES_BYTES, float(ms))
        for ms, way in enumerate((LINK, COPY, HTTP), 1)
    }
    agreed = transports.agreements(hops, fetches)
    figures = transports.in_prose(hops, agreed)
    page = (DOCS / "transports.md").read_text()
    assert {name for name, _ in FIGURE.findall(page)} == figures.keys()
    assert figures["idle"] == "1.50"
    assert all(agreed[f"agrees_{way}"] for way in fetches)
    slow_links = {**fetches, LINK: dict.fromkeys(transports.SIZES_BYTES, 9.0)}
    assert not transports.agreements(hops, slow_links)["agrees_link"]


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda path: path.stem)
def test_a_figure_is_the_same_everywhere_on_a_page(page: Path) -> None:
    found = FIGURE.findall(page.read_text())
    assert len(set(found)) == len(dict(found))


def test_a_figure_without_a_value_is_an_error() -> None:
    with pytest.raises(KeyError):
        with_figures("<!--=unknown-->1<!--=-->", {})


@pytest.mark.requirement("CIB-41")
def test_the_results_of_large_loads_give_its_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expect_same_page("large-loads", large_loads.measure, tmp_path, monkeypatch)


@pytest.mark.requirement("CIB-50")
def test_the_results_of_combinations_give_its_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expect_same_page("combinations", combinations.measure, tmp_path, monkeypatch)


def expect_same_page(
    name: str, measure: Callable[[], object], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Write a page and its charts from the recorded results, and compare them with the old ones."""
    shutil.copy(DOCS / f"{name}.json", place)
    text = (DOCS / f"{name}.md").read_text()
    (place / f"{name}.md").write_text(FIGURE.sub(r"<!--=\1--><!--=-->", text))
    monkeypatch.setattr(plots, "DOCS", place)
    monkeypatch.setenv("MINUTES", "0")
    measure()
    assert (place / f"{name}.md").read_text() == text
    charts = sorted(place.glob("*.svg"))
    assert charts
    assert {chart.name for chart in charts} == {path.name for path in DOCS.glob(f"{name}*.svg")}
    for chart in charts:
        assert chart.read_bytes() == (DOCS / chart.name).read_bytes()
