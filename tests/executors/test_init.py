from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ciel.core.ids import ObjectId, child_id, job_output_id, output_ids
from ciel.core.refs import Future
from ciel.core.tasks import Mentions, Needs, check_task
from ciel.execution.executor import BadArgumentsError, Child, Finish, Task
from ciel.executors.init import InitExecutor
from ciel.testing.builders import JOB, a_root_task, inline
from ciel.wire.descriptors import read_arguments

EXECUTOR = InitExecutor()
REF = Future(ObjectId("x"))


@pytest.fixture
def children(task: Callable[..., Task]) -> Callable[..., tuple[Child, ...]]:
    """Begin the first task of a job, with these arguments and needs; its children."""

    def children(
        start_args: object,
        *,
        handler: str = "stdinout",
        needs: Needs | None = None,
        job: str = JOB,
        **more: Any,
    ) -> tuple[Child, ...]:
        spec = a_root_task(job, executor="init")
        if needs is not None:
            spec = spec._replace(needs=needs)
        arguments = {"start_handler": handler, "start_args": start_args, **more}
        action = EXECUTOR.begin(task(arguments)._replace(spec=spec))
        assert isinstance(action, Finish)
        assert action.contents == {}
        return action.children

    return children


Children = Callable[..., tuple[Child, ...]]


def test_the_sync_takes_over_the_jobs_output_and_reads_the_first_tasks(children: Children) -> None:
    first, last = children({"command_line": ["ls"], "n_outputs": 2}, handler="env")
    assert last.spec.executor == "sync"
    assert last.spec.outputs == (job_output_id(JOB),)
    assert last.spec.inputs == first.spec.outputs
    assert last.spec.sees_errors
    assert not first.spec.sees_errors
    assert len(first.spec.outputs) == 2
    results = [Future(output) for output in first.spec.outputs]
    assert read_arguments(last.spec.payload) == {"args": {"inputs": results}}


def test_children_are_well_formed_and_named_by_what_they_are(children: Children) -> None:
    for number, child in enumerate(children({"command_line": ["ls", REF]})):
        spec = child.spec
        check_task(spec)
        assert spec.id == child_id("root:job", number, spec.digest)
        assert (spec.job, spec.parent, spec.ordinal) == (JOB, "root:job", number)


def test_equal_packages_have_equal_children_others_other_ones(children: Children) -> None:
    again = children({"command_line": ["ls"]})
    assert children({"command_line": ["ls"]}) == again
    for other in (
        children({"command_line": ["ls", "-l"]}),
        children({"command_line": ["ls"]}, handler="sync"),
        children({"command_line": ["ls"]}, job="other"),
    ):
        assert {child.spec.id for child in other}.isdisjoint(child.spec.id for child in again)


def test_arguments_may_be_given_directly_or_under_args(children: Children) -> None:
    direct = children({"command_line": ["ls"], "n_outputs": 1})
    wrapped = children({"args": {"command_line": ["ls"]}, "n_outputs": 1})
    assert direct == wrapped
    arguments = read_arguments(direct[0].spec.payload)
    assert arguments == {"args": {"command_line": ["ls"]}}


def test_the_first_task_is_what_its_executor_makes_of_the_keywords(children: Children) -> None:
    keywords = {"command": "worker", "proc_pargs": [1, REF], "force_n_outputs": 3, "unknown": 0}
    first, last = children(keywords, handler="proc")
    assert read_arguments(first.spec.payload) == {"command": "worker", "proc_pargs": [1, REF]}
    assert first.spec.outputs == output_ids(first.spec.id, 3)
    assert last.spec.inputs == first.spec.outputs
    errors_seen, _ = children({"inputs": [REF]}, handler="sync")
    assert errors_seen.spec.sees_errors


def test_an_executor_that_only_others_have_is_taken_for_a_simple_one(children: Children) -> None:
    first, _ = children({"program": "hello", "n_outputs": 2}, handler="cobol")
    arguments = {"args": {"program": "hello"}, "n_outputs": 2}
    assert read_arguments(first.spec.payload) == arguments
    assert len(first.spec.outputs) == 2


def test_the_package_goes_to_programs_that_may_look_things_up(children: Children) -> None:
    package = inline("package")
    first, _ = children({"command": "worker"}, handler="proc", package_ref=package)
    arguments = read_arguments(first.spec.payload)
    assert arguments == {"command": "worker", "package_ref": package}
    assert first.known == (package,)
    first, _ = children({"command_line": ["ls"]}, package_ref=package)
    assert read_arguments(first.spec.payload) == {"args": {"command_line": ["ls"]}}


def test_it_begins_a_job_and_nothing_else() -> None:
    with pytest.raises(BadArgumentsError, match="a task cannot spawn it"):
        EXECUTOR.child_form({"start_handler": "sync"})


def test_known_inputs_travel_with_the_first_child(children: Children) -> None:
    first, last = children({"command_line": ["cat", inline("v"), REF]})
    assert first.known == (inline("v"),)
    assert set(first.spec.inputs) == {"v", "x"}
    assert last.known == ()


def test_needs_are_those_of_the_first_task_only(children: Children) -> None:
    needs = Needs(slots=2, priority=7, timeout_s=3.0)
    first, last = children({"command_line": ["ls"]}, needs=needs)
    assert first.spec.needs == needs
    assert last.spec.needs == Needs()


def test_what_children_may_mention_follows_from_their_executors(children: Children) -> None:
    first, last = children({"command_line": ["ls"]})
    assert (first.spec.mentions, last.spec.mentions) == (Mentions.NOTHING, Mentions.INPUTS)
    assert children({}, handler="cobol")[0].spec.mentions is Mentions.ANYTHING


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({}, "'start_handler'"),
        ({"start_handler": ""}, "'start_handler'"),
        ({"start_handler": 1}, "'start_handler'"),
        ({"start_handler": "x", "start_args": []}, "'start_args'"),
        ({"start_handler": "x", "start_args": {"n_outputs": 0}}, "number of outputs"),
        ({"start_handler": "env", "start_args": {"n_outputs": "2"}}, "number of outputs"),
        ({"start_handler": "env", "start_args": {"n_outputs": True}}, "number of outputs"),
        ({"start_handler": "stdinout", "start_args": {"n_outputs": 2}}, "exactly 1 output, not 2"),
        ({"start_handler": "stdinout", "start_args": {"args": []}}, "stdinout needs an object"),
        ({"start_handler": "proc", "start_args": {}}, "'command'"),
        ({"start_handler": "init", "start_args": {}}, "a task cannot spawn it"),
    ],
)
def test_bad_arguments_are_refused_by_name(
    task: Callable[..., Task], arguments: dict[str, Any], words: str
) -> None:
    with pytest.raises(BadArgumentsError) as caught:
        EXECUTOR.begin(task(arguments, executor="init"))
    assert words in str(caught.value)
