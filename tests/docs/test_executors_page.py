"""Checks that the tables of `docs/executors.md` can be read, and that it describes every
executor.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from ciel.client.packages.entries import open_package
from ciel.client.packages.package_file import parse

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "executors.md").read_text()
EXAMPLES = ROOT / "examples"


def test_every_executor_is_on_the_page() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    installed = project["entry-points"]["ciel.executors"].keys() - {"language"}
    assert installed <= set(re.findall(r"`(\w+)`", PAGE))


def test_the_tables_on_the_page_can_be_read() -> None:
    first, second = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    assert tomllib.loads(first)["executors"].keys() == {"julia"}
    project = tomllib.loads((EXAMPLES / "executor" / "pyproject.toml").read_text())["project"]
    assert tomllib.loads(second)["project"]["entry-points"] == project["entry-points"]


@pytest.mark.parametrize("name", ["loaders/longest-c.pack", "executor/rainfall.pack"])
def test_the_packages_can_be_read(name: str) -> None:
    assert parse(open_package(EXAMPLES / name), {}, ["LICENSE"]).handler in ("cso", "sql")
