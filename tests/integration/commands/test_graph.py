"""Runs `ciel job graph` on one cluster that all tests share."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from ciel.testing.homes import Home

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """Start a cluster with a job of twelve elements, two of which fail, and a job that spawns."""
    home = Home(tmp_path_factory.mktemp("graph"))
    started = home.run("ciel", "up", "--workers", "1", "--slots", "2", "--listen", "127.0.0.1:0")
    assert started.returncode == 0, started.stderr
    words = ("--name", "<b>&twelve", "--array", "1-12", "--", "sh", "-c", "test $(({} % 5)) != 0")
    assert home.run("ciel", "submit", *words).returncode == 1
    assert home.run("ciel", "run", str(EXAMPLES / "hello.pack")).returncode == 0
    yield home
    home.run("ciel", "down", "--force")
    home.expect_nothing_left()


Graph = Callable[..., tuple[int, str, str]]


@pytest.fixture
def graph(up: Home, typed: Callable[..., tuple[int, str, str]]) -> Graph:
    """Run `ciel job graph` with arguments; return status, output and standard error."""
    return lambda *words: typed(up, "job", "graph", *words)


@pytest.mark.slow
def test_svg_is_drawn_by_graphviz(up: Home, graph: Graph) -> None:
    if shutil.which("dot") is None:
        pytest.skip("no dot (Debian: graphviz)")
    assert graph("1", "-o", "job.svg") == (0, "", "")
    tree = ElementTree.parse(up.path / "job.svg")
    texts = [element.text for element in tree.iter("{http://www.w3.org/2000/svg}text")]
    assert "job 1: <b>&twelve" in texts
    assert texts.count("done, stdinout") == 10
    assert texts.count("failed, stdinout") == 2


def test_spawned_tasks_and_delegation_are_drawn(graph: Graph) -> None:
    status, document, said = graph("2")
    assert (status, said) == (0, "")
    assert "label=spawns]" in document
    assert "label=delegates]" in document
    assert "done, sync" in document


@pytest.mark.parametrize(
    "words, begins",
    [
        (["--format", "dot"], 'digraph "job 2: hello.pack" {\n'),
        (["-o", "job.GV"], 'digraph "job 2: hello.pack" {\n'),
        (["-o", "job.json"], '{"job": {"id": '),
        (["-o", "job.txt", "--format", "dot"], 'digraph "job 2: hello.pack" {\n'),
        (["-o", "-", "--json"], '{"job": {"id": '),
    ],
)
def test_the_format_is_given_or_follows_from_the_file_name(
    up: Home, graph: Graph, words: list[str], begins: str
) -> None:
    status, out, said = graph("2", *words)
    assert (status, said) == (0, "")
    name = words[1] if words[0] == "-o" else "-"
    written = out if name == "-" else (up.path / name).read_text()
    assert written.startswith(begins)
    assert (out == "") == (name != "-")


def test_json_contains_the_whole_graph(graph: Graph) -> None:
    graph_of = json.loads(graph("last", "--json")[1])
    assert graph_of["job"]["counts"] == {"done": 3}
    root, first, join = graph_of["tasks"]
    assert (root["executor"], root["parent"]) == ("init", None)
    assert first["parent"] == join["parent"] == root["task"]
    assert join["takes_over"] == [root["outputs"][0]["object"]]
    assert root["outputs"][0]["made_by"] == join["task"]
    (read,) = join["inputs"]
    assert read == {key: first["outputs"][0][key] for key in read}
    assert join["outputs"][0]["wanted"]


@pytest.mark.parametrize(
    "words, status, said",
    [
        (["last", "-o", "job.png"], 2, "the suffix of 'job.png' is not a known format; use one"),
        (["last", "--json", "--format", "dot"], 2, "--json and --format dot contradict each other"),
        (["1-2", "--json"], 2, "'1-2' selects 2 jobs, but a graph shows one"),
        (["77"], 2, "no job 77; "),
        (["last", "-o", "nowhere/job.dot"], 1, "nowhere/job.dot: No such file or directory"),
        (["last", "-o", "tmp", "--format", "dot"], 1, "tmp: Is a directory"),
    ],
)
def test_an_invalid_request_is_reported_in_one_sentence(
    up: Home, graph: Graph, words: list[str], status: int, said: str
) -> None:
    ended, out, err = graph(*words)
    assert (ended, out, err.count("\n")) == (status, "", 1)
    assert err.startswith(f"ciel: {said}")


@pytest.mark.slow
def test_a_graph_is_drawn_while_its_job_runs(up: Home, graph: Graph) -> None:
    up.run("ciel", "submit", "--detach", "--", "sleep", "1000")
    try:
        states = {row["state"] for row in json.loads(graph("last", "--json")[1])["tasks"]}
        assert states <= {"runnable", "assigned"}
        assert "sleep" in graph("last")[1]
    finally:
        up.run("ciel", "job", "cancel", "last")
