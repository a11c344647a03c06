"""Tests tasks that a running attempt spawns, for any executors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from ciel.core.ids import ObjectId, child_id
from ciel.core.refs import Fixed, Future, Value
from ciel.core.tasks import Mentions, Needs, check_task
from ciel.execution.executor import Action, BadArgumentsError, ChildForm, Executor, Finish, Task
from ciel.execution.outputs import BadCallError
from ciel.storage.files import open_disk
from ciel.testing.builders import a_task, inline
from ciel.testing.fake_attempt import FakeAttempt
from ciel.wire.descriptors import read_arguments

USUAL = Needs()


class Simple(Executor):
    """An executor that overrides nothing."""

    name = "simple"

    def begin(self, task: Task) -> Action:
        return Finish()


class Talkative(Executor):
    """An executor that passes its keywords on, and refuses `wrong`."""

    name = "talkative"
    mentions = Mentions.INPUTS
    talks: ClassVar[bool] = True
    wants_package: ClassVar[bool] = True

    def begin(self, task: Task) -> Action:
        return Finish()

    def child_form(self, keywords: dict[str, Any]) -> ChildForm:
        if "wrong" in keywords:
            raise BadArgumentsError("that is wrong")
        return ChildForm(keywords, 2, memoise=False, as_list=False, sees_errors=True)


EXECUTORS: dict[str, Executor] = {"simple": Simple(), "talkative": Talkative()}


@pytest.fixture
def attempt(tmp_path: Path) -> Iterator[FakeAttempt]:
    package = inline("package")
    task = Task(a_task("a", "b", executor="talkative"), {"package_ref": package}, {}, EXECUTORS)
    with open_disk({}, tmp_path / "store") as store:
        yield FakeAttempt(task, store, tmp_path)


def test_a_child_has_the_form_that_its_executor_returns(attempt: FakeAttempt) -> None:
    outputs, form = attempt.spawn("talkative", {"x": Future(ObjectId("i"))}, Needs(slots=2))
    (child,) = attempt.children
    spec, parent = child.spec, attempt.task.spec
    check_task(spec)
    assert (spec.job, spec.parent, spec.ordinal) == (parent.job, parent.id, 0)
    assert (spec.executor, spec.inputs, spec.outputs) == ("talkative", ("i", "package"), outputs)
    assert outputs == (f"{spec.id}:out:0", f"{spec.id}:out:1")
    assert (spec.needs, spec.sees_errors) == (Needs(slots=2), True)
    assert spec.mentions is Mentions.INPUTS
    assert not form.as_list


def test_children_are_counted_and_their_ids_depend_on_their_number(attempt: FakeAttempt) -> None:
    for _ in range(3):
        attempt.spawn("talkative", {}, USUAL)
    specs = [child.spec for child in attempt.children]
    assert [spec.ordinal for spec in specs] == [0, 1, 2]
    parent = attempt.task.spec.id
    assert [spec.id for spec in specs] == [child_id(parent, n, specs[0].digest) for n in range(3)]
    assert attempt.children_count == 3


def test_a_default_executor_takes_its_arguments_in_two_ways(attempt: FakeAttempt) -> None:
    args = {"command_line": ["x"]}
    given, _ = attempt.spawn("simple", {"args": args, "other": 1}, USUAL)
    direct, form = attempt.spawn("simple", args, USUAL)
    assert given == direct
    assert form.as_list
    assert read_arguments(attempt.children[0].spec.payload) == {"args": args}
    counted, _ = attempt.spawn("simple", {"args": args, "n_outputs": 3}, USUAL)
    assert len(counted) == 3
    assert read_arguments(attempt.children[2].spec.payload) == {"args": args, "n_outputs": 3}


def test_a_package_is_passed_on_to_executors_that_want_it(attempt: FakeAttempt) -> None:
    attempt.spawn("simple", {"args": {}}, USUAL)
    attempt.spawn("talkative", {}, USUAL)
    arguments = [read_arguments(child.spec.payload) for child in attempt.children]
    assert arguments == [{"args": {}}, {"package_ref": inline("package")}]


def test_a_published_output_replaces_its_future_in_arguments(attempt: FakeAttempt) -> None:
    value = attempt.outputs.publish(0, b"content")
    old, other = Future(ObjectId("a")), Future(ObjectId("c"))
    attempt.spawn("talkative", {"x": [{"y": old}, other], "package_ref": 1}, USUAL)
    assert value in attempt.children[0].known
    assert read_arguments(attempt.children[0].spec.payload)["x"] == [{"y": value}, other]


def test_a_delegating_child_has_the_parents_outputs(attempt: FakeAttempt) -> None:
    attempt.outputs.allocate("")
    outputs, _ = attempt.spawn("simple", {"args": {}}, USUAL, delegates=True)
    assert outputs == ("a", "b")
    attempt.spawn("simple", {"args": {}}, USUAL)
    for again in (
        lambda: attempt.spawn("simple", {}, USUAL, delegates=True),
        lambda: attempt.go_on_later("talkative", [], []),
    ):
        with pytest.raises(BadCallError, match="already"):
            again()
    assert len(attempt.children) == 2


def test_a_child_may_take_over_some_outputs(attempt: FakeAttempt) -> None:
    outputs, _ = attempt.spawn("simple", {"args": {}}, USUAL, takes=[1])
    assert outputs == ("b",)
    attempt.go_on_later("talkative", [], [])
    assert [child.spec.outputs for child in attempt.children] == [("b",), ("a",)]


@pytest.mark.parametrize("takes", [[], [2], [0, 0], [1], ["0"], [-1]])
def test_only_unpublished_outputs_can_be_taken_over(attempt: FakeAttempt, takes: Any) -> None:
    attempt.outputs.publish(1, b"made")
    with pytest.raises(BadCallError, match="cannot take over"):
        attempt.spawn("simple", {"args": {}, "n_outputs": max(1, len(takes))}, USUAL, takes=takes)
    assert attempt.children == []


def test_a_child_takes_over_as_many_outputs_as_it_has(attempt: FakeAttempt) -> None:
    with pytest.raises(BadCallError, match="2 outputs cannot take over 1 outputs"):
        attempt.spawn("talkative", {}, USUAL, takes=[0])


def test_a_continuation_may_see_errors(attempt: FakeAttempt) -> None:
    attempt.go_on_later("talkative", [Future(ObjectId("x"))], [], sees_errors=True)
    assert attempt.children[0].spec.sees_errors


def test_a_suspended_process_has_a_unique_id(attempt: FakeAttempt) -> None:
    attempt.go_on_later("talkative", [Future(ObjectId("x"))], [])
    fixed = Fixed(ObjectId(f"{attempt.task.spec.id}:fixed..{attempt.task.attempt}:0"), "here:1")
    (child,) = attempt.children
    assert attempt.fixed == fixed.id
    assert attempt.outputs.published == {2: fixed}
    assert child.spec.outputs == ("a", "b")
    assert child.spec.inputs == (fixed.id, "x", "package")
    assert child.known == (fixed, inline("package"))


@pytest.mark.parametrize(
    "executor, keywords, needs, words",
    [
        ("cobol", {}, USUAL, "there is no executor 'cobol' (there are: simple, talkative)"),
        ("talkative", {"wrong": 1}, USUAL, "that is wrong"),
        ("talkative", {"x": float("nan")}, USUAL, "cannot be encoded"),
        ("talkative", {"__ref__": 1}, USUAL, "cannot be encoded"),
        ("talkative", {}, Needs(slots=0), "slots must be 1 to"),
        ("talkative", {}, Needs(memory_bytes=-1), "memory_bytes must be"),
        ("talkative", {}, Needs(priority=10**9), "priority must be"),
        ("simple", {"n_outputs": 0}, USUAL, "number of outputs must be 1 to"),
    ],
)
def test_an_invalid_child_is_refused_and_not_counted(
    attempt: FakeAttempt, executor: str, keywords: dict[str, Any], needs: Needs, words: str
) -> None:
    with pytest.raises(BadCallError) as caught:
        attempt.spawn(executor, keywords, needs)
    assert words in str(caught.value)
    assert (attempt.children, attempt.children_count) == ([], 0)


@pytest.mark.parametrize("executor", ["simple", "cobol"])
def test_only_an_interactive_program_can_be_suspended(attempt: FakeAttempt, executor: str) -> None:
    with pytest.raises(BadCallError, match=executor):
        attempt.go_on_later(executor, [], [])
    assert attempt.fixed is None
    assert attempt.outputs.published == {}


def test_a_value_created_by_a_program_is_not_an_output(attempt: FakeAttempt) -> None:
    """A value that the program did not publish is passed to the child like any other input."""
    made = Value.of(ObjectId("mine"), b"content")
    attempt.spawn("talkative", {"x": made}, USUAL)
    assert attempt.children[0].known == (made, inline("package"))
    assert attempt.outputs.published == {}
