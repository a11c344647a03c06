"""Scenes with the task graph: growing objects, and any-of inputs."""

from __future__ import annotations

import sys

import pytest

from ciel.core.graph import any_inputs
from ciel.core.graph.early_outputs import open_streams
from ciel.core.graph.invariants import validate
from ciel.core.graph.job_retry import cancel
from ciel.core.graph.lost_objects import lose
from ciel.core.ids import ObjectId
from ciel.core.refs import Future, Reference, Stream
from ciel.core.tasks import Mentions, TaskSpec, TaskState
from ciel.testing.builders import a_chain, a_task, failed, inline, stored
from ciel.testing.operations import at_once
from ciel_tests.scenes.graph import LONG, W1, Scene

# --- growing objects ------------------------------------------------------------------------------


def streaming(length: int) -> tuple[Scene, list[TaskSpec]]:
    """Start a chain of tasks, each of which opened its output as a stream that the next one
    reads.
    """
    tasks = a_chain(length)
    scene = Scene(*tasks, wanted=[tasks[-1].outputs[0]])
    for task in tasks:
        scene.start(task)
        refs = [Stream(task.outputs[0], frozenset((W1,)))]
        open_streams(scene.graph, scene.node(task), refs)
    validate(scene.graph)
    scene.said(runnable=[task.outputs[0] for task in tasks])
    return scene, tasks


def test_a_reader_runs_while_its_input_grows_and_keeps_the_producer_needed() -> None:
    scene, (maker, reader) = streaming(2)
    assert scene.graph.is_needed(scene.node(maker))
    assert scene.node(reader) in scene.graph.streams.reading
    scene.unwant("c1")
    scene.said(unneeded=["c1"])
    scene.graph.deactivate(scene.node(reader))
    scene.said(unneeded=["c0"])


def test_the_report_of_a_reader_counts_when_all_its_inputs_are_complete() -> None:
    one, two = a_task("one"), a_task("two")
    reader = a_task("both", inputs=["one", "two"])
    scene = Scene(one, two, reader, wanted=["both"])
    for task in (one, two):
        scene.start(task)
        scene.stream(task, task.outputs[0])
    scene.start(reader)
    scene.finish(one, stored("one", W1))
    assert scene.graph.streams.completed_readers == []
    scene.finish(two, inline("two"))
    assert scene.graph.streams.completed_readers == [scene.node(reader)]
    assert not scene.graph.streams.reading


@pytest.mark.parametrize("end", ["requeued", "lost", "not made"])
def test_readers_stop_and_wait_when_their_stream_breaks(end: str) -> None:
    scene, (maker, reader) = streaming(2)
    idle = a_task("idle", inputs=["c0"])
    scene.add(idle)
    scene.want("idle")
    assert scene.state(idle) is TaskState.RUNNABLE
    if end == "requeued":
        scene.graph.requeue(scene.node(maker))
    elif end == "lost":
        lose(scene.graph, ObjectId("c0"), W1)
    else:
        scene.finish(maker)
    assert scene.follow() == ["c1"]
    expected = TaskState.FAILED if end == "not made" else TaskState.WAITING
    assert scene.state(reader) is scene.state(idle) is expected
    if end == "requeued":
        assert scene.state(maker) is TaskState.RUNNABLE
    if end == "lost":
        assert scene.state(maker) is TaskState.ASSIGNED


def test_a_task_that_waits_for_further_inputs_also_needs_the_stream() -> None:
    maker, other = a_task("grows"), a_task("late")
    early = a_task("early", inputs=["grows", "late"])
    scene = Scene(maker, other, early, wanted=["early"])
    later = a_task("later", inputs=["late", "grows"])
    scene.start(maker)
    scene.stream(maker, "grows")
    scene.add(later)
    scene.want("later")
    assert scene.graph.is_needed(scene.node(maker))
    scene.graph.requeue(scene.node(maker))
    assert scene.follow() == []
    assert scene.state(maker) is TaskState.RUNNABLE
    assert scene.graph.waiting.missing_of(scene.node(early)) == 2
    assert scene.graph.waiting.missing_of(scene.node(later)) == 2


def test_a_producer_that_becomes_dormant_breaks_its_streams() -> None:
    scene, (maker, reader) = streaming(2)
    scene.unwant("c1")
    scene.graph.deactivate(scene.node(reader))
    scene.graph.deactivate(scene.node(maker))
    assert scene.ref("c0") == Future(ObjectId("c0"))
    assert scene.follow() == []


def test_readers_of_a_failed_stream_fail_unless_they_see_errors() -> None:
    maker, reader = a_chain(2)
    seer = a_task("seer", inputs=["c0"], sees_errors=True)
    scene = Scene(maker, reader, seer, wanted=["c1", "seer"])
    scene.start(maker)
    scene.stream(maker, "c0")
    scene.start(reader)
    scene.start(seer)
    scene.fail(maker)
    assert sorted(scene.follow()) == ["c1", "seer"]
    assert scene.error("c1").reason == "DEPENDENCY_FAILED"
    assert scene.state(seer) is TaskState.RUNNABLE


def test_a_broken_stream_stops_a_long_pipeline_without_recursion() -> None:
    scene, tasks = streaming(LONG // 10)
    assert sys.getrecursionlimit() < len(tasks)
    scene.graph.requeue(scene.node(tasks[0]))
    assert scene.follow() == [task.outputs[0] for task in tasks[1:]]
    assert scene.state(tasks[-1]) is TaskState.WAITING
    assert scene.state(tasks[0]) is TaskState.RUNNABLE
    assert not scene.graph.objects.growing


def test_a_stream_breaks_when_its_producer_delegates_it() -> None:
    parent = a_task("a")
    child = a_task("a", parent=parent)
    reader = a_task("b", inputs=["a"])
    scene = Scene(parent, reader, wanted=["a", "b"])
    scene.start(parent)
    scene.stream(parent, "a")
    scene.start(reader)
    scene.add(child)
    assert scene.state(child) is TaskState.RUNNABLE
    assert scene.follow() == ["b"]
    assert scene.state(reader) is TaskState.WAITING
    scene.start(child)
    scene.stream(child, "a")
    scene.finish(parent)
    assert scene.state(reader) is TaskState.RUNNABLE


def test_only_the_producer_can_open_a_stream() -> None:
    maker, other = a_chain(2)
    scene = Scene(maker, other, wanted=["c1"])
    scene.start(maker)
    scene.stream(maker, "c1")
    assert scene.ref("c1") == Future(ObjectId("c1"))


def test_an_upload_cannot_be_a_stream() -> None:
    scene = Scene(a_task("a", inputs=["upload"]), wanted=["a"])
    scene.upload(Stream(ObjectId("upload"), frozenset((W1,))))
    assert scene.ref("upload") == Future(ObjectId("upload"))


# --- any-of inputs --------------------------------------------------------------------------------


def a_choice(*, sees_errors: bool = False) -> tuple[TaskSpec, TaskSpec, TaskSpec]:
    """Return two tasks, and one that needs the output of either."""
    first = a_task("either", any_of=["a", "b"], sees_errors=sees_errors)
    return a_task("a"), a_task("b", ordinal=1), first


def given(scene: Scene, spec: TaskSpec) -> list[Reference]:
    return list(any_inputs.inputs_of(scene.graph.objects, spec))


def test_one_available_alternative_is_enough_and_the_others_stay_wanted_until_the_end() -> None:
    a, b, either = a_choice()
    scene = Scene(a, b, either, wanted=["either"])
    scene.said(runnable=["b", "a"])
    assert scene.state(either) is TaskState.WAITING
    scene.run(b)
    scene.said(runnable=["either"])
    scene.start(either)
    assert given(scene, either) == [Future(ObjectId("a")), stored("b", W1)]
    scene.start(a)
    assert scene.graph.is_needed(scene.node(a))
    scene.finish(either, inline("either"))
    scene.said(settled=["either"], unneeded=["a"], droppable=["b"])


def test_a_task_with_any_of_inputs_also_waits_for_its_other_inputs() -> None:
    both = a_task("both", inputs=["n"], any_of=["a", "b"])
    a, n = a_task("a"), a_task("n", ordinal=1)
    scene = Scene(a, n, both, wanted=["both"])
    scene.run(a)
    assert scene.state(both) is TaskState.WAITING
    scene.run(n)
    assert scene.state(both) is TaskState.RUNNABLE
    assert given(scene, both) == [stored("n", W1), stored("a", W1), Future(ObjectId("b"))]


def test_an_alternative_without_a_producer_does_not_block_the_task() -> None:
    either = a_task("either", any_of=["nobody's", "a"])
    a = a_task("a")
    scene = Scene(either, a, wanted=["either"])
    scene.run(a)
    assert scene.state(either) is TaskState.RUNNABLE


def test_a_task_that_sees_errors_may_run_with_a_failed_alternative() -> None:
    a, b, either = a_choice(sees_errors=True)
    scene = Scene(a, b, either, wanted=["either"])
    scene.fail(a)
    assert scene.state(either) is TaskState.RUNNABLE
    assert given(scene, either) == [failed("a"), Future(ObjectId("b"))]
    assert scene.state(b) is TaskState.RUNNABLE


def test_a_task_that_sees_no_errors_fails_when_all_its_alternatives_have_failed() -> None:
    a, b, either = a_choice()
    scene = Scene(a, b, either, wanted=["either"])
    scene.fail(b)
    assert scene.state(either) is TaskState.WAITING
    scene.fail(a)
    assert scene.state(either) is TaskState.FAILED
    assert scene.error("either").reason == "DEPENDENCY_FAILED"
    again = a_task("again", any_of=["a", "b"])
    scene.add(again)
    scene.want("again")
    assert scene.state(again) is TaskState.FAILED


def test_a_failed_alternative_is_not_passed_to_a_task_that_sees_no_errors() -> None:
    a, b, either = a_choice()
    scene = Scene(a, b, either, wanted=["either"])
    scene.fail(a)
    scene.run(b)
    assert given(scene, either) == [Future(ObjectId("a")), stored("b", W1)]


def test_a_failed_alternative_that_is_produced_later_can_be_chosen() -> None:
    maker, other = a_task("a", "made"), a_task("b", ordinal=1)
    either = a_task("either", any_of=["a", "b"])
    scene = Scene(maker, other, either, wanted=["either", "made"])
    scene.start(maker)
    scene.finish(maker, stored("made", W1))
    assert scene.error("a").reason == "NO_OUTPUT"
    scene.lose("made")
    scene.start(maker)
    scene.finish(maker, inline("a"), inline("made"))
    assert scene.state(either) is TaskState.RUNNABLE


def test_a_task_waits_again_if_its_only_available_alternative_is_lost() -> None:
    a, b, either = a_choice()
    scene = Scene(a, b, either, wanted=["either"])
    scene.run(a)
    scene.lose("a")
    assert scene.state(a) is TaskState.RUNNABLE
    assert not scene.graph.is_ready(scene.node(either))
    validate(scene.graph)
    assert scene.state(either) is TaskState.WAITING
    scene.run(b)
    assert scene.graph.is_ready(scene.node(either))


def test_losing_one_of_two_available_alternatives_leaves_the_task_ready() -> None:
    a, b, either = a_choice()
    scene = Scene(a, b, either, wanted=["either"])
    scene.run(a, b)
    scene.lose("a")
    assert scene.graph.is_ready(scene.node(either))
    assert given(scene, either) == [Future(ObjectId("a")), stored("b", W1)]
    assert scene.state(a) is TaskState.RUNNABLE


def test_a_growing_alternative_is_passed_as_a_future_and_cannot_be_chosen() -> None:
    a, b, either = a_choice()
    scene = Scene(a, b, either, wanted=["either"])
    scene.start(a)
    scene.stream(a, "a")
    assert scene.state(either) is TaskState.WAITING
    scene.run(b)
    scene.start(either)
    assert given(scene, either) == [Future(ObjectId("a")), stored("b", W1)]
    assert not scene.graph.streams.readers
    scene.finish(either, inline("either"))
    scene.said(runnable=["b", "a", "either"], settled=["either"], unneeded=["a"], droppable=["b"])


def test_a_growing_alternative_is_recomputed_if_it_breaks() -> None:
    a, b, either = a_choice()
    scene = Scene(a, b, either, wanted=["either"])
    scene.start(a)
    scene.stream(a, "a")
    scene.graph.requeue(scene.node(a))
    assert scene.state(a) is TaskState.RUNNABLE
    scene.run(a)
    assert scene.state(either) is TaskState.RUNNABLE


@pytest.mark.parametrize("is_made", [False, True])
def test_alternatives_become_dormant_when_the_task_is_no_longer_needed(is_made: bool) -> None:
    a, b, either = a_choice()
    scene = Scene(a, b, either, wanted=["either"])
    if is_made:
        scene.run(b)
    scene.unwant("either")
    assert scene.state(either) is scene.state(a) is TaskState.DORMANT
    scene.want("either")
    assert scene.state(a) is TaskState.RUNNABLE


def test_alternatives_become_dormant_when_an_unneeded_attempt_is_requeued() -> None:
    a, b, either = a_choice()
    scene = Scene(a, b, either, wanted=["either"])
    scene.run(b)
    scene.start(either)
    scene.unwant("either")
    scene.graph.requeue(scene.node(either))
    validate(scene.graph)
    assert scene.state(either) is scene.state(a) is TaskState.DORMANT


def test_a_child_with_any_of_inputs_keeps_its_parents_alternative_running() -> None:
    """A script that selects in a loop does this. Alternatives go on running between its steps."""
    a, b, either = a_choice()
    either = either._replace(mentions=Mentions.ANYTHING)
    scene = Scene(a, b, either, wanted=["either"])
    scene.run(b)
    scene.start(a)
    scene.start(either)
    rest = a_task("either", any_of=["a"], parent=either)
    scene.add(rest)
    scene.finish(either)
    scene.said(runnable=["b", "a", "either"])
    scene.finish(a, inline("a"))
    scene.said(runnable=["either"])
    assert scene.state(rest) is TaskState.RUNNABLE


def test_an_alternative_may_be_delegated_and_cancelled_with_its_job() -> None:
    a, b, either = a_choice()
    scene = Scene(a, b, either, wanted=["either"])
    scene.start(a)
    child = a_task("a", parent=a)
    scene.add(child)
    scene.finish(a)
    assert scene.state(child) is TaskState.RUNNABLE
    at_once(cancel(scene.graph, scene.job, "enough"))
    validate(scene.graph)
    assert scene.error("either").reason == "CANCELLED"
    assert not scene.graph.any_inputs.choosers.awaited
