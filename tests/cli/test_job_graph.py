"""`ciel job graph` with a fake master."""

from __future__ import annotations

import json
import os
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast
from unittest import mock

import pytest

from ciel.cli.graph.drawing import GraphvizError, print_graph
from ciel.cli.graph.tasks import read_tasks
from ciel.cli.outcome import UsageError
from ciel.client.client import Client
from ciel.core.ids import JobId
from ciel.core.jobs import JobSummary


def row(name: str, *, parent: str | None = None, **objects: list[str]) -> dict[str, Any]:
    """Return the master's row for a task whose id is its name; `objects` are ids."""
    return {
        "number": 1, "name": name, "task": name, "state": "done", "executor": "proc",
        "parent": parent, "attempt": 1, "worker": None, "at": None, "why": [], "story": [],
        "inputs": [[o, "there", 1, o[0], False] for o in objects.get("inputs", [])],
        "outputs": [[o, "there", 1, name, False] for o in objects.get("outputs", [])],
    }  # fmt: skip


class FakeClient:
    """Knows one job, whose graph comes in these pages; or two jobs of the same kind."""

    def __init__(self, *pages: list[dict[str, Any]], jobs: int = 1, handed_over: int = 0) -> None:
        self._pages = pages
        self._summaries = [
            JobSummary(JobId(f"id{n}"), n, "", "completed", "", {}, 1.0, 2.0, 0, 0, handed_over)
            for n in range(1, jobs + 1)
        ]

    def ask(self, topic: str, argument: Any = None) -> Any:
        match topic:
            case "status":
                return {"now_s": 3.0, "epoch_s": 0.0}
            case "jobs":
                return [list(summary) for summary in self._summaries]
        place = (argument["first"] or [0])[0]
        end = place + 1 == len(self._pages)
        return {"tasks": self._pages[place], "next": None if end else [place + 1]}

    def tasks(self) -> Iterator[Any]:
        return read_tasks(cast(Client, self), "id1")

    def graph(self, output: Path | str | None = None, form: str | None = None) -> int:
        output = None if output is None else str(output)
        args = Namespace(job="last", output=output, format=form, json=False)
        return print_graph(cast(Client, self), args)


ONE = [row("a", outputs=["a0"])]


def test_pages_follow_each_other_and_parts_of_a_task_are_put_together() -> None:
    client = FakeClient(
        [row("a", outputs=["a0"]), row("b", inputs=["x1", "x2"])],
        [row("b", inputs=["x3"])],
        [row("b", inputs=["x4"], outputs=["b0"])],
        [row("c", inputs=["b0"])],
        [],
    )
    found = [
        (task.name, [t.id for t in task.inputs], [t.id for t in task.outputs])
        for task in client.tasks()
    ]
    assert found == [
        ("a", [], ["a0"]), ("b", ["x1", "x2", "x3", "x4"], ["b0"]), ("c", ["b0"], [])
    ]  # fmt: skip


def test_an_output_is_taken_over_from_the_parent_that_was_to_make_it() -> None:
    client = FakeClient(
        [
            row("root", outputs=["r0", "r1"]),
            row("child", parent="root", outputs=["r0", "own"]),
            row("grandchild", parent="child", outputs=["r0"]),
            row("other", parent="root", outputs=["shared"]),
            row("twin", parent="root", outputs=["shared"]),
        ]
    )
    found = {task.name: task.takes_over for task in client.tasks()}
    assert found == {
        "root": (), "child": ("r0",), "grandchild": ("r0",), "other": (), "twin": ()
    }  # fmt: skip


def test_a_job_without_tasks_is_drawn_too(tmp_path: Path) -> None:
    for ending in ("dot", "json"):
        assert FakeClient([]).graph(tmp_path / f"g.{ending}") == 0
    assert (tmp_path / "g.dot").read_text().startswith('digraph "job 1"')
    assert json.loads((tmp_path / "g.json").read_text())["tasks"] == []


@pytest.fixture
def graphviz(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Have `dot` be a shell script of this text, and the only program there is."""

    def install(script: str) -> None:
        program = tmp_path / "bin" / "dot"
        program.parent.mkdir()
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)

    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return install


def test_svg_is_what_graphviz_makes_of_the_dot_text(
    tmp_path: Path, graphviz: Callable[[str], None]
) -> None:
    graphviz('echo "$@"; while read -r line; do echo "$line"; done')
    for name, form in (("g.svg", None), ("g.dot", None), ("other", "svg")):
        assert FakeClient(ONE).graph(tmp_path / name, form) == 0
    assert (tmp_path / "g.dot").read_text().count("\n") > 3
    drawn = (tmp_path / "g.svg").read_text().split("\n", 1)
    assert drawn[0] == "-Tsvg"
    assert drawn[1].startswith('digraph "job 1" {\n')
    assert (tmp_path / "other").read_bytes() == (tmp_path / "g.svg").read_bytes()


def test_without_graphviz_svg_is_refused_with_what_to_do(
    tmp_path: Path, graphviz: Callable[[str], None]
) -> None:
    with pytest.raises(
        UsageError, match=r"apt install graphviz\); or write the graph as text with --format dot"
    ):
        FakeClient(ONE).graph(tmp_path / "g.svg")
    assert list(tmp_path.iterdir()) == []


def test_the_error_of_graphviz_is_told_and_the_file_stays_as_it_was(
    tmp_path: Path, graphviz: Callable[[str], None]
) -> None:
    graphviz("echo no room >&2; exit 3")
    path = tmp_path / "g.svg"
    path.write_text("before")
    with pytest.raises(GraphvizError, match=r"^Graphviz \(dot -Tsvg\) ended with 3: no room$"):
        FakeClient(ONE).graph(path)
    assert path.read_text() == "before"


def test_a_file_has_its_name_only_when_it_is_whole(tmp_path: Path) -> None:
    client = FakeClient(ONE, ONE)
    with (
        mock.patch.object(client, "ask", side_effect=[*_first_answers(client), KeyboardInterrupt]),
        pytest.raises(KeyboardInterrupt),
    ):
        client.graph(tmp_path / "g.json")
    assert list(tmp_path.iterdir()) == []


def _first_answers(client: FakeClient) -> list[Any]:
    return [client.ask("jobs"), client.ask("status"), client.ask("graph", {"first": None})]


def test_a_pipe_is_written_to_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "g.json"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert FakeClient(ONE).graph(path) == 0
        assert json.loads(os.read(reader, 10_000))["tasks"][0]["task"] == "a"
    finally:
        os.close(reader)
    assert path.is_fifo()


def test_a_graph_is_of_one_job() -> None:
    with pytest.raises(
        UsageError, match=r"^'last' selects 2 jobs, but a graph shows one; name one$"
    ):
        FakeClient(ONE, jobs=2).graph("g.dot")


def test_tasks_that_are_forgotten_are_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert FakeClient(ONE, handed_over=7).graph(tmp_path / "g.gv") == 0
    assert capsys.readouterr().err == (
        "ciel: 7 tasks of job 1 are not shown: their results were handed over to the client\n"
    )
