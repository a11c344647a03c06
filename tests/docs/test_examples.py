"""Checks that the examples of all documents run as printed (`ciel_tests.documents.pages`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ciel_tests.documents.pages import Page

pytestmark = pytest.mark.timeout(300)  # for the longest page, on a busy machine

ROOT = Path(__file__).parents[2]
ELSEWHERE = {
    "docs/programs.md": ["conversation"],  # tests/sdk/test_page.py
    "docs/skywriting/compatibility.md": ["skywriting"],  # tests/skywriting/test_docs.py
    "docs/skywriting/reference.md": ["skywriting", "grammar"],  # the same
}
"""Blocks that other tests check, by page."""
SLOW = {
    "docs/clusters.md", "docs/coming-from.md", "docs/commands.md", "docs/executors.md",
    "docs/failures.md", "docs/hanging.md", "docs/http.md", "docs/java.md", "docs/packages.md",
    "docs/python/arrow.md", "docs/python/ecosystem.md", "docs/python/failures.md",
    "docs/python/from-dask.md", "docs/python/from-joblib.md", "docs/python/from-multiprocessing.md",
    "docs/skywriting/tutorial.md",
}  # fmt: skip
NOT_RUN_MAX = 13
"""Raise it only for a block that no test machine can run."""


def documents() -> Iterator[Page]:
    for top in sorted(ROOT.iterdir()):
        if top.suffix == ".md":
            yield Page.read(ROOT, top)
        elif top.is_dir() and not top.name.startswith((".", "build", "ciel")):
            for path in sorted(top.rglob("*.md")):
                yield Page.read(ROOT, path)


DOCUMENTS = list(documents())
LEFT_OUT = [
    (f"{page.name}:{block.line}", block.not_run)
    for page in DOCUMENTS
    for block in page.blocks
    if block.not_run
]


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.name, marks=[pytest.mark.slow] * (page.name in SLOW))
        for page in DOCUMENTS
        if page.runs()
    ],
)
def test_examples_of_a_document_run_as_printed(
    page: Page, run_page: Callable[[Page, Path], None]
) -> None:
    run_page(page, ROOT)


def test_every_block_runs_or_gives_a_reason() -> None:
    mistakes = [text for page in DOCUMENTS for text in page.mistakes(ELSEWHERE.get(page.name, ()))]
    assert not mistakes, "\n".join(mistakes)
    assert len(LEFT_OUT) <= NOT_RUN_MAX


@pytest.mark.parametrize("place, reason", LEFT_OUT)
def test_a_block_that_does_not_run(place: str, reason: str) -> None:
    pytest.xfail(f"{place} is not run: {reason}")  # the summary of pytest lists it
