"""What tasks wait for while they run."""

from __future__ import annotations

from ciel.core.errands import Errands
from ciel.core.ids import ObjectId
from ciel.core.jobs import Job
from ciel.core.nodes import TaskNode
from ciel.testing.builders import a_job_spec, a_task

X, Y = ObjectId("x"), ObjectId("y")


def _node(output: str) -> TaskNode:
    return TaskNode(a_task(output), Job(a_job_spec(), 1, 0.0))


def test_errands_end_with_their_owner() -> None:
    errands, one, other = Errands(), _node("one"), _node("other")
    errands.add(one, [X])
    errands.add(one, [Y])
    assert errands.awaited.keys() == {X, Y}
    assert errands.end(other) == []
    assert errands.end(one) == [X, Y]
    assert errands.end(one) == []
    assert not errands.awaited


def test_of_two_that_wait_for_one_object_the_last_counts() -> None:
    errands, one, other = Errands(), _node("one"), _node("other")
    errands.add(one, [X])
    errands.add(other, [X])
    assert errands.end(one) == []
    assert errands.awaited == {X: other}
    assert errands.end(other) == [X]
