"""The arguments with which tasks of any executor request a program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ciel.core.ids import ObjectId
from ciel.core.refs import Future
from ciel.execution.executor import (
    BadArgumentsError,
    Executor,
    InputPath,
    Program,
    Run,
    Task,
    simple_form,
)
from ciel.executors.environ import EnvExecutor
from ciel.executors.stdinout import StdinoutExecutor

X, Y = ObjectId("x"), ObjectId("y")


@pytest.fixture(params=[StdinoutExecutor, EnvExecutor], ids=["stdinout", "env"])
def program(request: pytest.FixtureRequest, task: Callable[..., Task]) -> Callable[..., Program]:
    """Begin a task with these arguments; the program that is to be run."""
    executor: Executor = request.param()

    def program(**args: Any) -> Program:
        action = executor.begin(task({"args": args}))
        assert isinstance(action, Run)
        return action.program

    return program


Begin = Callable[..., Program]
LINE = ["true"]


def test_elements_become_text_and_references_paths(program: Begin) -> None:
    found = program(command_line=["a b", 3, -1.5, Future(X), "", True])
    assert found.argv == ("a b", "3", "-1.5", InputPath(X), "", "True")


def test_an_object_in_the_first_place_is_run(program: Begin) -> None:
    found = program(command_line=[Future(X), Future(Y)])
    assert found.argv == (InputPath(X, executable=True), InputPath(Y))


def test_files_and_environment_go_along(program: Begin) -> None:
    found = program(command_line=LINE, files={"data/x.txt": Future(X)}, env={"LANG": "C"})
    assert (found.files, found.env) == ({"data/x.txt": X}, {"LANG": "C"})


def test_outputs_may_be_read_while_they_grow_and_inputs_waited_for(program: Begin) -> None:
    plain = program(command_line=LINE)
    assert (plain.streams, plain.whole) == (False, False)
    streaming = program(command_line=LINE, stream_output=True, eager_fetch=False)
    assert (streaming.streams, streaming.whole) == (True, False)
    eager = program(command_line=LINE, stream_output=False, eager_fetch=True)
    assert (eager.streams, eager.whole) == (False, True)


def test_other_options_and_unknown_keys_change_nothing(program: Begin) -> None:
    without_effect = {
        "single_consumer": True,
        "debug_options": ["go_quick"],
        "foo": None,
    }
    assert program(command_line=LINE, **without_effect) == program(command_line=LINE)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"command_line": None}, "a program and its arguments, but is missing"),
    ({"command_line": []}, "a program and its arguments, not an empty list"),
    ({"command_line": "ls -l"}, "its arguments, not the text 'ls -l', since no shell splits"),
    ({"command_line": ["ls", None]}, "element 1 of 'command_line'"),
    ({"command_line": ["ls", ["-l"]]}, "element 1 of 'command_line'"),
    ({"command_line": ["ls", "a\0b"]}, "element 1 of 'command_line'"),
    ({"command_line": [""]}, "'command_line'"),
    ({"files": [Future(X)]}, "'files'"),
    ({"files": {"a": "b"}}, "'a' in 'files'"),
    ({"files": {"": Future(X)}}, "'' in 'files'"),
    ({"files": {"/etc/x": Future(X)}}, "'/etc/x' in 'files'"),
    ({"files": {"a/../x": Future(X)}}, "'a/../x' in 'files'"),
    ({"files": {"a//x": Future(X)}}, "'a//x' in 'files'"),
    ({"files": {"a\0": Future(X)}}, "in 'files'"),
    ({"files": {"d/" + "é" * 128: Future(X)}}, "too long for the name of a file"),
    ({"files": {"d/" * 1100 + "x": Future(X)}}, "too long for the name of a file"),
    ({"files": {"a/b": Future(X), "a-": Future(X), "a": Future(Y)}}, "'a' in 'files' would be"),
    ({"env": ["A=b"]}, "'env'"),
    ({"env": {"A": 1}}, "'env'"),
    ({"env": {"A=B": "c"}}, "'A=B' in 'env'"),
    ({"env": {"": "c"}}, "'' in 'env'"),
    ({"env": {"A": "\0"}}, "'A' in 'env'"),
    ({"stream_output": 1}, "'stream_output' must be true or false"),
    ({"pipe_output": "yes"}, "'pipe_output' must be true or false"),
    ({"eager_fetch": None}, "'eager_fetch' must be true or false"),
    ({"single_consumer": 0}, "'single_consumer' must be true or false"),
    ({"store": "tape"}, "'store' must be 'memory' or 'disk', not 'tape'"),
    ({"store": ["disk"]}, "'store' must be 'memory' or 'disk', not ['disk']"),
    ({"stream_chunk_size": 0}, "'stream_chunk_size' must be a number of bytes"),
    ({"stream_chunk_size": True}, "'stream_chunk_size' must be a number of bytes"),
    ({"make_sweetheart": "x"}, "'make_sweetheart' must be a reference or a list"),
    ({"debug_options": "go_slow"}, "'debug_options' must be a list of strings"),
    ({"debug_options": [1]}, "'debug_options' must be a list of strings"),
]


@pytest.mark.parametrize("args, words", BAD, ids=str)
def test_bad_arguments_are_refused_by_name(
    program: Begin, args: dict[str, Any], words: str
) -> None:
    with pytest.raises(BadArgumentsError) as caught:
        program(**{"command_line": LINE, **args})
    assert words in str(caught.value)


def test_a_spawn_gives_what_is_in_args_as_an_object_or_directly() -> None:
    args = {"command_line": LINE, "salt": 1}
    form = simple_form("e", {"args": args, "n_outputs": 2})
    assert form.arguments == {"args": args, "n_outputs": 2}
    assert form == simple_form("e", {**args, "n_outputs": 2})
    assert (form.n_outputs, form.memoise, form.as_list, form.sees_errors) == (2, True, True, False)


def test_one_output_has_one_name_whether_it_is_counted_or_not() -> None:
    assert simple_form("e", {"args": {}, "n_outputs": 1}) == simple_form("e", {"args": {}})


@pytest.mark.parametrize(
    "keywords, words",
    [
        ({"args": []}, "e needs an object 'args'"),
        ({"args": {}, "n_outputs": 0}, "the number of outputs must be 1 to 10000, not 0"),
        ({"args": {}, "n_outputs": "1"}, "the number of outputs must be 1 to 10000, not '1'"),
    ],
)
def test_a_spawn_that_no_executor_could_take_is_refused(
    keywords: dict[str, Any], words: str
) -> None:
    with pytest.raises(BadArgumentsError) as caught:
        simple_form("e", keywords)
    assert str(caught.value) == words
