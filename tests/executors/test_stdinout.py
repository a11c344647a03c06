from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ciel.core.ids import ObjectId
from ciel.core.refs import Future
from ciel.core.tasks import Mentions
from ciel.execution.executor import (
    BadArgumentsError,
    ChildForm,
    Fail,
    Finish,
    InputPath,
    Program,
    ProgramExit,
    Run,
    Task,
)
from ciel.executors.stdinout import StdinoutExecutor
from ciel.testing.builders import inline, stored

EXECUTOR = StdinoutExecutor()
X, Y = ObjectId("x"), ObjectId("y")


def test_a_whole_program(task: Callable[..., Task]) -> None:
    args = {
        "command_line": ["sort", "-n", 3, 1.5, Future(X)],
        "inputs": [stored("y", "a:1"), inline("x")],
        "files": {"data/x.txt": Future(X)},
        "env": {"LANG": "C"},
        "tag": "unknown keys tell equal tasks apart",
    }
    assert EXECUTOR.begin(task({"args": args})) == Run(
        Program(
            argv=("sort", "-n", "3", "1.5", InputPath(X)),
            stdin=(Y, X),
            stdout=0,
            files={"data/x.txt": X},
            env={"LANG": "C"},
        )
    )


def test_the_least_program(task: Callable[..., Task]) -> None:
    action = EXECUTOR.begin(task({"args": {"command_line": ["true"]}}))
    assert action == Run(Program(argv=("true",), stdout=0))


def test_its_output_mentions_nothing() -> None:
    assert EXECUTOR.mentions is Mentions.NOTHING


LINE = ["true"]
BAD: list[tuple[dict[str, Any], str]] = [
    ({}, "'args'"),
    ({"args": [LINE]}, "'args'"),
    (
        {"args": {"command_line": LINE, "inputs": Future(X)}},
        "'inputs' must be a list of references, not one alone: put brackets around it, [reference]",
    ),
    (
        {"args": {"command_line": LINE, "inputs": ["x"]}},
        "'inputs' must be a list of references, and its element 0 is the text 'x'",
    ),
    ({"args": {"command_line": LINE, "inputs": None}}, "references, not null"),
    ({"args": {"command_line": LINE}, "n_outputs": 2}, "exactly 1 output, not 2"),
]


@pytest.mark.parametrize("arguments, words", BAD, ids=str)
def test_bad_arguments_are_refused_by_name(
    task: Callable[..., Task], arguments: dict[str, Any], words: str
) -> None:
    with pytest.raises(BadArgumentsError) as caught:
        EXECUTOR.begin(task(arguments))
    assert words in str(caught.value)


def test_one_output_may_be_asked_for_by_number(task: Callable[..., Task]) -> None:
    args = {"args": {"command_line": LINE}}
    assert EXECUTOR.begin(task(args | {"n_outputs": 1})) == EXECUTOR.begin(task(args))
    assert EXECUTOR.child_form(args | {"n_outputs": 1}) == EXECUTOR.child_form(args)
    assert EXECUTOR.child_form(args) == ChildForm(args, 1, memoise=True, as_list=True)
    with pytest.raises(BadArgumentsError, match="exactly 1 output, not 2"):
        EXECUTOR.child_form(args | {"n_outputs": 2})


def test_two_outputs_are_refused(task: Callable[..., Task]) -> None:
    with pytest.raises(BadArgumentsError, match="exactly 1 output, not 2"):
        EXECUTOR.begin(task({"args": {"command_line": LINE}}, outputs=("a", "b")))


@pytest.mark.parametrize(
    "status, signal_number, details",
    [
        (1, None, "ended with exit status 1"),
        (255, None, "ended with exit status 255"),
        (None, 11, "was killed by SIGSEGV"),
        (None, 40, "was killed by signal 40"),
    ],
)
def test_any_end_but_exit_status_zero_is_a_failure(
    task: Callable[..., Task], status: int | None, signal_number: int | None, details: str
) -> None:
    program_exit = ProgramExit(status, signal_number, 0.1, "")
    action = EXECUTOR.ended(task({}), program_exit)
    assert action == Fail("RUNTIME_EXCEPTION", details)


def test_exit_status_zero_is_success(task: Callable[..., Task]) -> None:
    assert EXECUTOR.ended(task({}), ProgramExit(0, None, 0.1, "complaint")) == Finish()
