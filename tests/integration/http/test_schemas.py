"""Compares the JSON output of commands with docs/schemas. A field without a schema is an error
here, although readers must accept additional fields.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from ciel.cli.parsing.grammar import programs
from ciel.testing.homes import Home
from ciel_tests.documents.schemas import Schemas

Typed = Callable[..., tuple[int, str, str]]
FAILING = "echo {}; echo why {} >&2; test {} != 2"
SCRIPT = "return 1 +;\n"


@pytest.fixture(scope="module")
def schemas() -> Schemas:
    return Schemas()


class Cluster(Home):
    """A home with a cluster, and jobs that completed, failed, and still run."""

    def __init__(self, path: Path, typed: Typed, schemas: Schemas) -> None:
        super().__init__(path)
        self.typed = typed
        self.check = schemas.check
        (path / "words").write_text("many words\n" * 200)
        (path / "bad.sw").write_text(SCRIPT)

    def lines(self, *words: str) -> list[Any]:
        status, out, err = self.typed(self, *words, "--json")
        assert status in (0, 1), err
        return [json.loads(line) for line in out.splitlines()]

    def submit(self, *words: str) -> str:
        status, out, err = self.typed(self, "submit", "--detach", *words)
        assert status == 0, err
        return out.strip()


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, typed: Typed, schemas: Schemas
) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("schemas"), typed, schemas)
    begun = cluster.run("ciel", "up", "--slots", "1", "--listen", "127.0.0.1:0", "--json")
    assert begun.returncode == 0, begun.stderr
    schemas.check("up", json.loads(begun.stdout))
    try:
        cluster.submit("--array", "1-3", "--", "sh", "-c", FAILING)
        cluster.lines("job", "wait", "1")
        cluster.submit("--", "sleep", "1000")
        yield cluster
    finally:
        cluster.submit("--", "sleep", "1000")
        refused = cluster.run("ciel", "down", "--json")
        ended = cluster.run("ciel", "down", "--force", "--json")
    schemas.check("down", json.loads(refused.stdout))
    schemas.check("down", json.loads(ended.stdout))


@pytest.mark.parametrize(
    "name, words",
    [
        ("status", []),
        ("status", ["--transports"]),
        ("job list", []),
        ("job info", ["1,2"]),
        ("job wait", ["1"]),
        ("job output", ["1"]),
        ("job output", ["1", "--out", "results"]),
        ("job log", ["1"]),
        ("task log", ["1"]),
        ("task list", ["1"]),
        ("task list", ["2"]),
        ("task info", ["1"]),
        ("task info", ["2"]),
        ("task explain", ["1"]),
        ("task explain", ["2"]),
        ("object put", ["words", "bad.sw"]),
        ("object get", ["bad.sw"]),
        ("object get", ["words", "-o", "copy"]),
        ("object info", ["last"]),
        ("object info", ["1:1", "1:2", "2:1"]),
        ("object list", []),
        ("object list", ["--known"]),
        ("object list", ["--job", "1"]),
        ("object rm", ["all"]),
        ("worker list", []),
        ("store stats", []),
        ("config show", []),
        ("config show", ["--origin"]),
        ("key", ["submit", "-o", "a-key"]),
        ("doctor", []),
        ("man", ["--out", "man1"]),
        ("sw check", ["bad.sw"]),
        ("browse", ["--no-open"]),
        ("key", ["read"]),
        ("key", ["submit", "-o", "key"]),
    ],
)
def test_the_output_of_a_command_matches_its_schema(
    cluster: Cluster, name: str, words: list[str]
) -> None:
    lines = cluster.lines(*name.split(), *words)
    assert lines
    for value in lines:
        cluster.check(name.replace(" ", "-"), value)


def test_the_output_of_submit_and_job_commands_matches_their_schemas(cluster: Cluster) -> None:
    number = cluster.submit("--", "true")
    cluster.lines("job", "cancel", "2")
    for options in ([], ["--detach"], ["--out", "results"]):
        words = ["submit", "--json", *options, "--array", "1-2", "--", "sh", "-c", FAILING]
        status, out, _ = cluster.typed(cluster, *words)
        lines = [json.loads(line) for line in out.splitlines()]
        assert (status, len(lines)) == ((0, 1) if options == ["--detach"] else (1, 3))
        for line in lines:
            cluster.check("submit", line)
    (jobs,) = cluster.lines("job", "cancel", cluster.submit("--", "sleep", "1000"))
    assert jobs
    cluster.check("job-cancel", jobs)
    (jobs,) = cluster.lines("job", "retry", "1")
    assert jobs
    cluster.check("job-retry", jobs)
    cluster.check("job-rm", *cluster.lines("job", "rm", number))
    _, out, _ = cluster.typed(cluster, "job", "graph", "1", "--json")
    cluster.check("job-graph", json.loads(out))


def test_every_command_that_prints_json_has_a_schema(schemas: Schemas) -> None:
    commands = {
        "-".join(command.words[command.words[0] == "ciel" :])
        for program in programs()
        for command in program.with_verbs()
        if any("--json" in option.names for option in command.options)
    }
    others = {"shapes", "job-file"}  # job-file.json describes what users write
    others |= {"tes-service-info", "tes-task", "tes-tasks"}  # answers of the TES routes
    assert {name for name in schemas.all if not name.startswith("http-")} == {*commands, *others}


@pytest.mark.slow
def test_the_schemas_are_valid(schemas: Schemas) -> None:
    for name, schema in schemas.all.items():
        Draft202012Validator.check_schema(schema)
        assert schema["$id"] == f"{name}.json"
        assert schema["title"]
