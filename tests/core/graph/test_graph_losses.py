"""Scenes with the task graph: objects that are lost, or no longer wanted."""

from __future__ import annotations

import sys

import pytest

from ciel.core.errors import InvalidTransitionError
from ciel.core.graph.invariants import validate
from ciel.core.graph.lost_objects import lose_location
from ciel.core.ids import ObjectId
from ciel.core.refs import Concrete, Future, Stream
from ciel.core.tasks import TaskSpec, TaskState
from ciel.testing.builders import a_chain, a_fan, a_task, stored
from ciel_tests.scenes.graph import LONG, W1, W2, Scene

# --- loss -----------------------------------------------------------------------------------------


def test_losing_one_of_two_copies_changes_nothing() -> None:
    task = a_task("a")
    scene = Scene(task, wanted=["a"])
    scene.run(task)
    scene.graph.publish(stored("a", W2))
    scene.said(runnable=["a"], settled=["a"])
    assert not scene.lose("a", W1)
    scene.said()
    assert scene.ref("a") == stored("a", W2)
    assert scene.lose("a", W2)
    scene.said(runnable=["a"])
    assert scene.job.unsettled == 1


def test_losing_an_object_that_is_not_needed_starts_nothing() -> None:
    task = a_task("a", "b")
    scene = Scene(task, wanted=["a"])
    scene.run(task)
    scene.said(runnable=["a"], settled=["a"], droppable=["b"])
    assert scene.lose("b")
    scene.said()
    assert scene.ref("b") == Future(ObjectId("b"))


def test_losing_an_object_at_a_worker_without_a_copy_changes_nothing() -> None:
    task = a_task("a")
    scene = Scene(task, wanted=["a"])
    scene.run(task, place=W1)
    scene.said(runnable=["a"], settled=["a"])
    assert not scene.lose("a", W2)
    assert not scene.lose("unknown", W1)
    scene.said()


@pytest.mark.requirement("CIB-4")
def test_only_producers_of_missing_objects_run_again() -> None:
    first, second, third = a_chain(3)
    scene = Scene(first, second, third, wanted=["c2"])
    scene.run(first, place=W2)
    scene.run(second, third, place=W1)
    scene.said(runnable=["c0", "c1", "c2"], settled=["c2"], droppable=["c0", "c1"])
    assert lose_location(scene.graph, W1) == ["c1", "c2"]
    validate(scene.graph)
    scene.said(runnable=["c1"])
    scene.run(second, place=W2)
    scene.said(runnable=["c2"], droppable=["c0"])
    assert scene.start(third, W2) == 2


def test_a_runnable_task_notices_a_lost_input_when_it_is_to_start() -> None:
    first, second = a_chain(2)
    scene = Scene(first, second, wanted=["c1"])
    scene.run(first)
    scene.said(runnable=["c0", "c1"])
    scene.lose("c0")
    scene.said()
    assert not scene.graph.is_ready(scene.node(second))
    scene.said(runnable=["c0"])
    scene.run(first)
    scene.said(runnable=["c1"])
    scene.run(second)
    scene.said(settled=["c1"], droppable=["c0"])


def test_losing_an_upload_is_an_error_that_says_so() -> None:
    reader = a_task("a", inputs=["upload"])
    scene = Scene()
    scene.upload(stored("upload", W1))
    scene.add(reader)
    scene.want("a")
    scene.said(runnable=["a"])
    scene.lose("upload")
    assert scene.error("upload").reason == "OBJECT_LOST"
    assert not scene.graph.is_ready(scene.node(reader))
    scene.said(settled=["a"])
    details = "input upload failed (OBJECT_LOST): no copy of it is left, and no task produces it "
    details += "(its client has to upload it again)"
    assert scene.error("a").details == details


def test_a_lost_stream_is_recomputed() -> None:
    task, reader = a_chain(2)
    scene = Scene(task, reader, wanted=["c0", "c1"])
    scene.said(runnable=["c0"])
    scene.start(task)
    scene.graph.publish(Stream(ObjectId("c0"), frozenset((W1,))))
    scene.said(runnable=["c1"])
    assert scene.lose("c0")
    assert scene.job.unsettled == 2
    scene.graph.requeue(scene.node(task))
    scene.said(runnable=["c0"])
    scene.run(task)
    assert scene.job.unsettled == 1
    scene.said(settled=["c0"])


def a_long_chain_that_ran() -> tuple[Scene, list[TaskSpec]]:
    chain = a_chain(LONG)
    scene = Scene(*chain, wanted=[f"c{LONG - 1}"])
    assert run_all(scene) == LONG
    assert isinstance(scene.ref(f"c{LONG - 1}"), Concrete)
    return scene, chain


def run_all(scene: Scene) -> int:
    """Run all runnable tasks without validating in between, which would take quadratic time."""
    count = 0
    graph = scene.graph
    while graph.runnable:
        task = graph.runnable.pop()
        if graph.is_ready(task):
            graph.assign(task, W1)
            graph.finish(task, [stored(output, W1) for output in task.spec.outputs])
            count += 1
    validate(graph)
    return count


@pytest.mark.slow
@pytest.mark.parametrize("drop_first", [False, True])
def test_a_chain_of_twenty_thousand_is_rebuilt_from_its_end(drop_first: bool) -> None:
    scene, _ = a_long_chain_that_ran()
    assert sys.getrecursionlimit() < LONG
    if drop_first:
        assert len(scene.drop_all()) == LONG - 1
        assert scene.lose(f"c{LONG - 1}")
    else:
        assert len(lose_location(scene.graph, W1)) == LONG
    assert run_all(scene) == LONG
    assert scene.job.unsettled == 0


@pytest.mark.slow
def test_a_chain_of_twenty_thousand_can_become_dormant_and_can_fail() -> None:
    chain = a_chain(LONG)
    scene = Scene(*chain, wanted=[f"c{LONG - 1}"])
    scene.unwant(f"c{LONG - 1}")
    assert scene.job.counts[TaskState.DORMANT] == LONG
    scene.want(f"c{LONG - 1}")
    scene.fail(chain[0])
    assert scene.job.counts[TaskState.FAILED] == LONG
    assert scene.error(f"c{LONG - 1}").reason == "DEPENDENCY_FAILED"


# --- released objects -----------------------------------------------------------------------------


def test_unwanting_puts_everything_upstream_to_sleep() -> None:
    leaf0, leaf1, total = a_fan(2)
    scene = Scene(leaf0, leaf1, total, wanted=["total"])
    scene.said(runnable=["leaf1", "leaf0"])
    scene.start(leaf0)
    scene.unwant("total")
    scene.said(unneeded=["leaf0"])
    assert scene.state(leaf1) is scene.state(total) is TaskState.DORMANT
    scene.graph.deactivate(scene.node(leaf0))
    validate(scene.graph)
    assert scene.job.counts[TaskState.DORMANT] == 3
    assert scene.job.unsettled == 0


def test_a_producer_that_another_reader_needs_stays_runnable() -> None:
    first, second = a_chain(2)
    other = a_task("other", inputs=["c0"])
    scene = Scene(first, second, other, wanted=["c1", "other"])
    scene.said(runnable=["c0"])
    scene.unwant("c1")
    scene.said()
    assert scene.state(first) is TaskState.RUNNABLE
    assert scene.state(second) is TaskState.DORMANT


def test_a_sleeping_task_wakes_when_it_is_wanted_again() -> None:
    first, second = a_chain(2)
    scene = Scene(first, second, wanted=["c1"])
    scene.unwant("c1")
    scene.said(runnable=["c0"])
    scene.want("c1")
    scene.said(runnable=["c0"])
    scene.run(first, second)
    scene.said(runnable=["c1"], settled=["c1"], droppable=["c0"])


def test_unwanting_what_was_never_wanted_changes_nothing() -> None:
    scene = Scene(a_task("a"))
    scene.unwant("a", "unknown")
    scene.said()


# --- attempts -------------------------------------------------------------------------------------


def test_a_requeued_task_gets_the_next_number() -> None:
    task = a_task("a")
    scene = Scene(task, wanted=["a"])
    assert scene.start(task) == 1
    scene.graph.requeue(scene.node(task))
    scene.said(runnable=["a", "a"])
    assert scene.start(task) == 2


def test_a_requeued_task_that_is_no_longer_needed_becomes_dormant() -> None:
    task = a_task("a")
    scene = Scene(task, wanted=["a"])
    scene.start(task)
    scene.unwant("a")
    scene.graph.requeue(scene.node(task))
    assert scene.state(task) is TaskState.DORMANT


def test_an_invalid_transition_is_refused_with_the_state_of_the_task() -> None:
    task = a_task("a")
    scene = Scene(task)
    with pytest.raises(InvalidTransitionError, match="dormant and cannot become assigned"):
        scene.graph.assign(scene.node(task), W1)
    with pytest.raises(InvalidTransitionError, match="dormant and cannot become runnable"):
        scene.graph.requeue(scene.node(task))
    validate(scene.graph)
