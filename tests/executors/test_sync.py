from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ciel.core.ids import ObjectId
from ciel.core.refs import Future, Reference
from ciel.core.tasks import Mentions
from ciel.execution.executor import BadArgumentsError, ChildForm, Finish, Task
from ciel.executors.sync import SyncExecutor
from ciel.testing.builders import failed, inline, stored
from ciel.wire import codec
from ciel.wire.references import from_json

EXECUTOR = SyncExecutor()


def listed(task: Task) -> list[Any]:
    action = EXECUTOR.begin(task)
    assert isinstance(action, Finish)
    assert (set(action.contents), action.children) == ({0}, ())
    found: list[Any] = from_json(codec.decode(action.contents[0]))
    return found


def test_it_lists_what_its_inputs_became_in_the_order_they_were_named(
    task: Callable[..., Task],
) -> None:
    became: list[Reference] = [stored("b", "w:1"), inline("a"), failed("c")]
    names = [Future(ObjectId(name)) for name in ("c", "b", "a", "b")]
    whole = task({"args": {"inputs": names}}, *became, executor="sync")
    assert listed(whole) == [became[2], became[0], became[1], became[0]]


def test_of_nothing_it_makes_an_empty_list(task: Callable[..., Task]) -> None:
    assert listed(task({"args": {"inputs": []}}, executor="sync")) == []
    assert listed(task({"args": {}}, executor="sync")) == []


def test_its_output_mentions_its_inputs() -> None:
    assert EXECUTOR.mentions is Mentions.INPUTS


def test_its_children_see_errors_and_have_one_output() -> None:
    arguments = {"args": {"inputs": [Future(ObjectId("x"))]}}
    form = EXECUTOR.child_form({**arguments, "n_outputs": 1})
    assert form == ChildForm(arguments, 1, memoise=True, as_list=True, sees_errors=True)
    with pytest.raises(BadArgumentsError, match="exactly 1 output, not 2"):
        EXECUTOR.child_form({**arguments, "n_outputs": 2})


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({}, "sync needs an object 'args'"),
        ({"args": {"inputs": {}}}, "'inputs'"),
        ({"args": {"inputs": ["x"]}}, "'inputs'"),
        ({"args": {"inputs": []}, "n_outputs": 0}, "exactly 1 output, not 0"),
    ],
)
def test_bad_arguments_are_refused_by_name(
    task: Callable[..., Task], arguments: dict[str, Any], words: str
) -> None:
    with pytest.raises(BadArgumentsError) as caught:
        EXECUTOR.begin(task(arguments, executor="sync"))
    assert words in str(caught.value)
