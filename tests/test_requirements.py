"""Tests `make requirements` with trees of a few files."""

from __future__ import annotations

from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from tests import requirements

PAGE = """# Requirements

A test names a number, as in `CIB-20`.

## CIB
- CIB-1 Task graph: tasks spawn tasks; lazy
  evaluation. *In part: laziness, and a
  graph.*
- CIB-2 Executors: `proc` and others.

A paragraph, *In part: of no entry.*

- NET-7 Measurements.
"""
TEST = """import pytest

pytestmark = [pytest.mark.slow, pytest.mark.requirement("CIB-1")]


if True:
  class TestGraph:
    @pytest.mark.slow
    @pytest.mark.requirement("CIB-1", "CIB-2")
    def test_a_task(self) -> None:
        assert "CIB-9"
"""
FILES = {
    "docs/requirements.md": PAGE,
    "tests/test_graph.py": TEST,
    "ciel/graph.py": '"""The graph (CIB-1 to CIB-2)."""',
    "ciel/testing/suite.py": '"""A suite (CIB-1)."""',
    "scc/tests/graph.c": "/* graph.c: kills it. See CIB-1.\n *\n * Shows CIB-2 and\n * NET-7. */\n",
    "scc/models/graph.pml": "/* Shows CIB-1, CIB-2. CIB-3 is another. */",
    "benchmarks/graph.py": '"""Measures: the cost of it (NET-7).\n\nUnlike CIB-1.\n"""',
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        change(tmp_path, name, text)
    return tmp_path


def change(tree: Path, name: str, text: str) -> None:
    (tree / name).parent.mkdir(parents=True, exist_ok=True)
    (tree / name).write_text(text)


def run(tree: Path, *options: str) -> tuple[int, str]:
    with redirect_stdout(StringIO()) as printed:
        status = requirements.main([*options, str(tree)])
    return status, printed.getvalue()


def test_the_table_has_the_code_the_tests_and_the_state_of_each_number(tree: Path) -> None:
    assert run(tree) == (
        0,
        """CIB-1  Task graph: tasks spawn tasks; lazy evaluation.
  code      ciel/graph.py
  tests     tests/test_graph.py
            tests/test_graph.py::TestGraph::test_a_task
            scc/models/graph.pml
  state     in part: laziness, and a graph

CIB-2  Executors: proc and others.
  code      ciel/graph.py
  tests     tests/test_graph.py::TestGraph::test_a_task
            scc/tests/graph.c
            scc/models/graph.pml
  state     met

NET-7  Measurements.
  tests     scc/tests/graph.c
  measured  benchmarks/graph.py
  state     met

3 requirements: 2 met, 1 in part, 0 no test
""",
    )


def test_a_tree_in_which_each_number_has_a_test_has_no_fault(tree: Path) -> None:
    assert run(tree, "--check") == (0, "")


def test_a_number_without_a_test_is_a_fault(tree: Path) -> None:
    change(tree, "docs/requirements.md", PAGE + "- NET-8 One more.\n")
    change(tree, "tests/test_more.py", "# CIB-8, Shows NET-8, and NET-8\n")
    assert run(tree, "--check") == (1, "NET-8 has no test: One more.\n")
    assert run(tree)[1].endswith(
        "state     no test\n\n4 requirements: 2 met, 1 in part, 1 no test\n"
    )


@pytest.mark.parametrize(
    "name, text, fault",
    [
        (
            "tests/test_more.py",
            'import pytest\n\n@pytest.mark.requirement("CIB-3")\ndef test_it(): ...\n',
            "tests/test_more.py::test_it: docs/requirements.md has no CIB-3\n",
        ),
        (
            "tests/check_more.py",
            '"""Checks it. Shows CIB-3."""',
            "tests/check_more.py: docs/requirements.md has no CIB-3\n",
        ),
        (
            "benchmarks/more.py",
            '"""Measures it (CIB-3)."""',
            "benchmarks/more.py: docs/requirements.md has no CIB-3\n",
        ),
        (
            "tests/test_more.py",
            "import pytest\n\n@pytest.mark.requirement\ndef test_it(): ...\n",
            "tests/test_more.py:3: the mark has no number\n",
        ),
        (
            "tests/test_more.py",
            "import pytest\n\npytestmark = pytest.mark.requirement()\n",
            "tests/test_more.py:3: the mark has no number\n",
        ),
        (
            "tests/test_more.py",
            "import pytest\n\n@pytest.mark.requirement(1, NUMBER)\ndef test_it(): ...\n",
            "tests/test_more.py:3: the number of the mark is not a plain text\n" * 2,
        ),
        (
            "tests/test_more.py",
            'import pytest\n\nSHOWS = pytest.mark.requirement("CIB-1")\n',
            "tests/test_more.py:3: the mark is not that of a test, a class or a module\n",
        ),
    ],
)  # fmt: skip
def test_a_wrong_number_is_a_fault(tree: Path, name: str, text: str, fault: str) -> None:
    change(tree, name, text)
    assert run(tree, "--check") == (1, fault)
