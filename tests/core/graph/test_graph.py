"""Scenes with the task graph: lazy evaluation, spawning, errors."""

from __future__ import annotations

import pytest

from ciel.core.errors import InvalidTaskError
from ciel.core.graph.invariants import differing_children
from ciel.core.ids import ObjectId
from ciel.core.refs import Failure, Fixed
from ciel.core.tasks import Mentions, TaskState
from ciel.testing.builders import a_chain, a_fan, a_job, a_task, failed, inline
from ciel_tests.scenes.graph import W1, Scene

# --- laziness -------------------------------------------------------------------------------------


@pytest.mark.requirement("CIB-1")
def test_no_task_runs_unless_its_output_is_wanted() -> None:
    a, b = a_chain(2)
    scene = Scene(a, b)
    scene.said()
    assert scene.state(a) is scene.state(b) is TaskState.DORMANT


def test_a_wanted_object_wakes_only_its_producers() -> None:
    leaf0, leaf1, total = a_fan(2)
    aside = a_task("aside", inputs=["leaf0"])
    scene = Scene(leaf0, leaf1, total, aside, wanted=["total"])
    scene.said(runnable=["leaf1", "leaf0"])
    assert scene.state(total) is TaskState.WAITING
    assert scene.state(aside) is TaskState.DORMANT


def test_a_task_becomes_runnable_when_its_last_input_is_there() -> None:
    leaf0, leaf1, total = a_fan(2)
    scene = Scene(leaf0, leaf1, total, wanted=["total"])
    scene.said(runnable=["leaf1", "leaf0"])
    scene.run(leaf0)
    scene.said()
    scene.run(leaf1)
    scene.said(runnable=["total"])
    scene.run(total)
    scene.said(settled=["total"], droppable=["leaf0", "leaf1"])
    assert scene.job.unsettled == 0


def test_an_object_may_be_wanted_before_its_task_is_known() -> None:
    scene = Scene(wanted=["c1"])
    scene.said()
    a, b = a_chain(2)
    scene.add(b)
    scene.said()
    scene.add(a)
    scene.said(runnable=["c0"])


def test_wanting_an_object_twice_has_no_further_effect() -> None:
    scene = Scene(a_task("a"), wanted=["a", "a"])
    scene.said(runnable=["a"])
    assert scene.job.unsettled == 1


def test_an_object_that_exists_already_is_settled_at_once() -> None:
    scene = Scene()
    scene.upload(inline("a"))
    scene.want("a")
    scene.said(settled=["a"])


def test_a_task_added_twice_is_one_task() -> None:
    task = a_task("a")
    scene = Scene(task, task, wanted=["a"])
    assert len(scene.job.tasks) == 1
    scene.said(runnable=["a"])


# --- growth ---------------------------------------------------------------------------------------


def test_a_child_may_take_over_its_parents_output() -> None:
    parent = a_task("result")
    scene = Scene(parent, wanted=["result"])
    scene.said(runnable=["result"])
    scene.start(parent)
    child = a_task("result", parent=parent)
    scene.add(child)
    scene.said(runnable=["result"])
    scene.finish(parent)
    scene.said()
    scene.run(child)
    scene.said(settled=["result"])
    assert scene.state(parent) is TaskState.DONE


def test_several_children_may_each_take_over_some_outputs() -> None:
    parent = a_task("a", "b", "c", "d")
    scene = Scene(parent, wanted=["a", "b", "c", "d"])
    scene.said(runnable=["a"])
    scene.start(parent)
    one, two = a_task("b", parent=parent), a_task("d", "c", parent=parent, ordinal=1)
    scene.add(one, two)
    scene.said(runnable=["b", "d"])
    scene.finish(parent, inline("a"))
    scene.said(settled=["a"])  # no output is missing
    scene.run(one)
    scene.said(settled=["b"])
    scene.run(two)
    scene.said(settled=["d", "c"])


def test_a_parent_that_runs_again_may_produce_an_output_it_had_delegated() -> None:
    parent = a_task("a", "b")
    scene = Scene(parent, wanted=["a", "b"])
    scene.start(parent)
    child = a_task("b", parent=parent)
    scene.add(child)
    scene.graph.requeue(scene.node(parent))
    scene.start(parent)
    scene.finish(parent, inline("a"), inline("b"))
    assert scene.ref("b") == inline("b")
    assert scene.state(child) is TaskState.DORMANT


def test_outputs_that_a_failed_parent_had_delegated_are_still_produced() -> None:
    parent = a_task("a", "b")
    scene = Scene(parent, wanted=["a", "b"])
    scene.start(parent)
    child = a_task("b", parent=parent)
    scene.add(child)
    scene.fail(parent, "exit status 3")
    assert scene.error("a").details == "exit status 3"
    scene.run(child)
    assert not isinstance(scene.ref("b"), Failure)


def test_an_output_neither_produced_nor_delegated_is_an_error() -> None:
    task = a_task("a", "b")
    scene = Scene(task, wanted=["a", "b"])
    scene.said(runnable=["a"])
    scene.start(task)
    scene.finish(task, inline("a"))
    scene.said(settled=["a", "b"])
    error = scene.error("b")
    assert error.reason == "NO_OUTPUT"
    assert error.text.startswith(f"task {task.id} succeeded, but did not produce output 1 of 2")


@pytest.mark.requirement("CIB-1")
def test_tasks_extend_the_graph_by_what_they_compute() -> None:
    """Compute Fibonacci numbers: a task for n > 1 spawns two and delegates its output to their
    sum.
    """
    scene = Scene(root := a_task("fib7", mentions=Mentions.ANYTHING), wanted=["fib7"])
    numbers = {root.id: 7}
    values: dict[str, int] = {}
    ran = 0
    while scene.graph.runnable:
        task = scene.graph.runnable.pop().spec
        scene.start(task)
        ran += 1
        number = numbers.get(task.id)
        if number is not None and number > 1:
            parts = []
            for ordinal, smaller in enumerate((number - 1, number - 2)):
                part = a_task(f"{task.id}.{ordinal}", parent=task, ordinal=ordinal)
                numbers[part.id] = smaller
                parts.append(part)
            names = [part.outputs[0] for part in parts]
            scene.add(*parts, a_task(task.outputs[0], inputs=names, parent=task, ordinal=2))
            scene.finish(task)
        else:
            value = sum(values[i] for i in task.inputs) if number is None else number
            values[task.outputs[0]] = value
            scene.finish(task, inline(task.outputs[0], str(value).encode()))
    assert values["fib7"] == 13
    assert scene.ref("fib7") == inline("fib7", b"13")
    assert scene.job.counts[TaskState.DONE] == ran == len(scene.job.tasks) == 61


def test_a_parent_of_another_job_is_refused() -> None:
    scene = Scene(parent := a_task("a"))
    other = a_job("other")
    with pytest.raises(InvalidTaskError, match="not a task of its job"):
        scene.graph.add(a_task("b", parent=parent), other)
    with pytest.raises(InvalidTaskError, match="not a task of its job"):
        scene.graph.add(a_task("b", parent=a_task("unknown")), scene.job)
    assert not other.tasks


def test_a_refused_task_leaves_no_trace() -> None:
    scene = Scene()
    scene.upload(inline("there"))
    with pytest.raises(InvalidTaskError, match="there exists already"):
        scene.graph.add(a_task("fresh", "there", inputs=["x"]), scene.job)
    assert not scene.graph.tasks
    scene.add(a_task("fresh"))
    scene.want("fresh")
    scene.said(runnable=["fresh"])


def test_a_rerun_that_spawns_the_same_children_has_no_differing_children() -> None:
    parent = a_task("a")
    child = a_task("b", parent=parent)
    scene = Scene(parent, child, wanted=["a"])
    scene.run(parent)
    scene.lose("a")
    scene.start(parent)
    scene.add(child)
    assert not [*differing_children(scene.graph)]


def test_a_rerun_that_spawns_another_child_has_differing_children() -> None:
    parent = a_task("a")
    scene = Scene(parent, wanted=["a"])
    scene.start(parent)
    scene.add(a_task("b", parent=parent, ordinal=3))
    scene.graph.requeue(scene.node(parent))
    scene.start(parent)
    scene.add(a_task("b", parent=parent, ordinal=3, salt="random"))
    assert [*differing_children(scene.graph)] == [(scene.node(parent), 3)]


def test_of_two_tasks_with_the_same_output_only_the_first_runs() -> None:
    first, second = a_task("memo", ordinal=0), a_task("memo", ordinal=1)
    scene = Scene(first, second, a_task("after", inputs=["memo"]), wanted=["memo", "after"])
    scene.said(runnable=["memo"])
    assert scene.state(second) is TaskState.DORMANT
    scene.run(first)
    scene.said(runnable=["after"], settled=["memo"])
    scene.add(a_task("memo", ordinal=2))
    scene.said()


# --- errors ---------------------------------------------------------------------------------------


def test_an_error_reaches_the_end_of_a_chain_and_is_reported_once() -> None:
    chain = a_chain(50)
    scene = Scene(*chain, wanted=["c49"])
    scene.said(runnable=["c0"])
    scene.start(chain[0])
    scene.fail(chain[0], "exit status 3")
    scene.said(settled=["c49"])
    error = scene.error("c49")
    assert error.reason == "DEPENDENCY_FAILED"
    assert error.details == "input c0 failed (RUNTIME_EXCEPTION): exit status 3"
    assert {scene.state(task) for task in chain} == {TaskState.FAILED}


def test_an_error_stops_tasks_that_only_the_failed_task_needed() -> None:
    bad, good, total = a_task("bad"), a_task("good"), a_task("total", inputs=["bad", "good"])
    scene = Scene(bad, good, total, wanted=["total"])
    scene.said(runnable=["good", "bad"])
    scene.start(bad)
    scene.start(good)
    scene.fail(bad)
    scene.said(settled=["total"], unneeded=["good"])


def test_a_task_that_sees_errors_runs_with_an_input_that_failed_before() -> None:
    bad = a_task("bad")
    watcher = a_task("report", inputs=["bad"], sees_errors=True)
    scene = Scene(bad, wanted=["bad"])
    scene.start(bad)
    scene.fail(bad)
    scene.add(watcher)
    scene.want("report")
    assert scene.state(watcher) is TaskState.RUNNABLE


def test_a_task_that_sees_errors_runs_with_a_failed_input() -> None:
    bad = a_task("bad")
    watcher = a_task("report", inputs=["bad"], sees_errors=True)
    scene = Scene(bad, watcher, wanted=["report"])
    scene.said(runnable=["bad"])
    scene.start(bad)
    scene.fail(bad)
    scene.said(runnable=["report"])
    scene.run(watcher)
    scene.said(settled=["report"])


def test_a_task_whose_input_has_failed_before_fails_at_once() -> None:
    bad = a_task("bad")
    scene = Scene(bad, wanted=["bad"])
    scene.start(bad)
    scene.fail(bad)
    scene.said(runnable=["bad"], settled=["bad"])
    late = a_task("late", inputs=["bad"])
    scene.add(late)
    scene.want("late")
    scene.said(settled=["late"])
    assert scene.state(late) is TaskState.FAILED


def test_a_published_output_stays_when_its_task_fails_later() -> None:
    task = a_task("a", "b")
    scene = Scene(task, wanted=["a", "b"])
    scene.start(task)
    scene.graph.publish(inline("a"))
    scene.fail(task)
    scene.said(runnable=["a"], settled=["a", "b"])
    assert scene.ref("a") == inline("a")
    assert scene.error("b").reason == "RUNTIME_EXCEPTION"


def test_losing_a_fixed_object_without_producer_is_an_error_that_names_its_worker() -> None:
    scene = Scene(wanted=["process"])
    scene.upload(Fixed(ObjectId("process"), W1))
    scene.said(settled=["process"])
    scene.lose("process")
    assert scene.error("process") == failed("process", "LOST_FIXED_OBJECT", W1)
