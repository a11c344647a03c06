from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ciel import plugins
from ciel.core.ids import ObjectId
from ciel.core.refs import Future
from ciel.core.tasks import Mentions
from ciel.execution.executor import (
    BadArgumentsError,
    InputPath,
    OutputPath,
    Program,
    Run,
    Task,
)
from ciel.executors.environ import EnvExecutor
from ciel.testing.builders import stored

EXECUTOR = EnvExecutor()
X, Y = ObjectId("x"), ObjectId("y")


def test_a_whole_program(task: Callable[..., Task]) -> None:
    args = {
        "command_line": ["join", Future(X)],
        "inputs": [stored("y", "a:1"), Future(X), Future(X)],
        "env": {"LANG": "C"},
        "stream_output": True,
    }
    whole = task({"args": args, "n_outputs": 2}, executor="env", outputs=("a", "b"))
    assert EXECUTOR.begin(whole) == Run(
        Program(
            argv=("join", InputPath(X)),
            env={"LANG": "C"},
            lists={
                "INPUT_FILES": (InputPath(Y), InputPath(X), InputPath(X)),
                "OUTPUT_FILES": (OutputPath(0), OutputPath(1)),
            },
            streams=True,
        )
    )


def test_the_least_program_makes_one_output(task: Callable[..., Task]) -> None:
    action = EXECUTOR.begin(task({"args": {"command_line": ["true"]}}))
    lists = {"INPUT_FILES": (), "OUTPUT_FILES": (OutputPath(0),)}
    assert action == Run(Program(argv=("true",), lists=lists))


def test_its_outputs_mention_nothing() -> None:
    assert EXECUTOR.mentions is Mentions.NOTHING


def test_it_has_two_names() -> None:
    assert plugins.load("ciel.executors", "env") is EnvExecutor
    assert plugins.load("ciel.executors", "environ") is EnvExecutor


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({}, "env needs an object 'args'"),
        ({"args": {"command_line": ["true"], "inputs": Future(X)}}, "'inputs'"),
        ({"args": {"command_line": ["true"]}, "n_outputs": 1}, "exactly 2 outputs, not 1"),
        ({"args": {"command_line": ["true"]}, "n_outputs": "2"}, "exactly 2 outputs, not '2'"),
    ],
)
def test_bad_arguments_are_refused_by_name(
    task: Callable[..., Task], arguments: dict[str, Any], words: str
) -> None:
    with pytest.raises(BadArgumentsError) as caught:
        EXECUTOR.begin(task(arguments, executor="env", outputs=("a", "b")))
    assert words in str(caught.value)
