"""Checks that `docs/python/reference.md` lists every public name."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import ciel

REFERENCE = Path(__file__).parents[2] / "docs" / "python" / "reference.md"
LISTED = re.compile(r"^- `(?:await |with )?([\w.]+)", re.MULTILINE)


def listed() -> dict[str, list[str]]:
    """Return the names that the reference lists below each heading."""
    parts = re.split(r"^## (.*)$", REFERENCE.read_text(), flags=re.MULTILINE)
    return {
        heading.strip("`"): LISTED.findall(text)
        for heading, text in zip(parts[1::2], parts[2::2], strict=True)
    }


def public(kind: type[Any]) -> set[str]:
    """Return the public names of a class and of its base classes in ciel."""
    found: set[str] = set()
    for base in kind.__mro__:
        if base.__module__.startswith("ciel."):
            found |= {name for name in vars(base) if not name.startswith("_")}
    return found


@pytest.mark.parametrize("name", ["Client", "Future", "Task", "LocalCluster"])
def test_the_reference_lists_all_public_names_of_a_class(name: str) -> None:
    found = listed()[f"ciel.{name}"]
    assert len(found) == len(set(found))
    assert set(found) == public(getattr(ciel, name))


def test_the_reference_lists_all_names_of_ciel() -> None:
    names: list[str] = []
    for heading, found in listed().items():
        names += [heading] if heading.startswith("ciel.") else found
    bare = [name.removeprefix("ciel.") for name in names]
    assert len(bare) == len(set(bare))
    modules = {"dask", "joblib", "multiprocessing"}
    assert {*bare} == {*ciel.__all__, *modules} - {"__version__"}


def test_every_public_name_has_a_docstring() -> None:
    for name in ciel.__all__:
        if not name.startswith("__"):
            assert inspect.getdoc(getattr(ciel, name)), name
    for name in ("Client", "Future", "Task", "LocalCluster"):
        kind = getattr(ciel, name)
        missing = [method for method in public(kind) if not inspect.getdoc(getattr(kind, method))]
        assert missing == [], name


PAGES = (*REFERENCE.parent.glob("*.md"), *REFERENCE.parents[1].glob("*.md"))
NAMED = re.compile(r"(?<![\w./@-])ciel\.([A-Z]\w*)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_classes_named_in_a_document_exist(page: Path) -> None:
    assert set(NAMED.findall(page.read_text())) <= set(ciel.__all__)


@pytest.mark.parametrize("page", [*REFERENCE.parent.glob("*.md")], ids=lambda page: page.name)
def test_pages_for_python_name_no_variables_of_programs(page: Path) -> None:
    assert not re.findall(r"CIEL_(?:TASK|ATTEMPT|JOB)\b", page.read_text())
