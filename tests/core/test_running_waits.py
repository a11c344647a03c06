"""Tests `RunningWaits`, which tracks the objects that running tasks are blocked on."""

from __future__ import annotations

from ciel.core.graph.nodes import TaskNode
from ciel.core.graph.running_waits import RunningWaits
from ciel.core.ids import ObjectId
from ciel.core.jobs import Job
from ciel.testing.builders import a_job_spec, a_task

X, Y = ObjectId("x"), ObjectId("y")


def _node(output: str) -> TaskNode:
    return TaskNode(a_task(output), Job(a_job_spec(), 1, 0.0))


def test_waits_end_with_their_task() -> None:
    running_waits, one, other = RunningWaits(), _node("one"), _node("other")
    running_waits.add(one, [X])
    running_waits.add(one, [Y])
    assert running_waits.awaited.keys() == {X, Y}
    assert running_waits.end(other) == []
    assert running_waits.end(one) == [X, Y]
    assert running_waits.end(one) == []
    assert not running_waits.awaited


def test_of_two_tasks_that_wait_for_one_object_the_last_counts() -> None:
    running_waits, one, other = RunningWaits(), _node("one"), _node("other")
    running_waits.add(one, [X])
    running_waits.add(other, [X])
    assert running_waits.end(one) == []
    assert running_waits.awaited == {X: other}
    assert running_waits.end(other) == [X]
