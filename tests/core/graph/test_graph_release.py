"""Scenes with the task graph: which objects are released, and when."""

from __future__ import annotations

import pytest

from ciel.core.graph.invariants import validate
from ciel.core.graph.lost_objects import drop
from ciel.core.graph.removal import hand_over
from ciel.core.ids import ObjectId
from ciel.core.refs import Future
from ciel.core.tasks import Mentions, TaskSpec, TaskState
from ciel.testing.builders import a_chain, a_job, a_task, inline, stored
from ciel.testing.operations import deleted
from ciel_tests.scenes.graph import W1, W2, Scene

# --- release --------------------------------------------------------------------------------------


def test_an_intermediate_object_is_dropped_with_its_last_reader() -> None:
    first, second = a_chain(2)
    other = a_task("other", inputs=["c0"])
    scene = Scene(first, second, other, wanted=["c1", "other"])
    scene.run(first, second)
    scene.said(runnable=["c0", "c1", "other"], settled=["c1"])
    scene.run(other, place=W2)
    scene.said(settled=["other"], droppable=["c0"])
    assert drop(scene.graph, ObjectId("c0")) == {W1}
    assert scene.ref("c0") == Future(ObjectId("c0"))


@pytest.mark.parametrize("name", ["c1", "upload", "failed", "unknown"])
def test_an_object_that_is_needed_or_cannot_be_recomputed_is_never_dropped(name: str) -> None:
    first, second = a_chain(2)
    bad = a_task("failed")
    scene = Scene()
    scene.upload(stored("upload", W1))
    scene.add(first, second, bad)
    scene.want("c1", "failed")
    scene.run(first, second)
    scene.start(bad)
    scene.fail(bad)
    before = scene.ref(name)
    assert drop(scene.graph, ObjectId(name)) == frozenset()
    assert scene.ref(name) == before


def test_a_wanted_object_stays_after_its_last_reader() -> None:
    first, second = a_chain(2)
    scene = Scene(first, second, wanted=["c0", "c1"])
    scene.run(first, second)
    scene.said(runnable=["c0", "c1"], settled=["c0", "c1"])
    assert scene.drop_all() == {}


def test_an_object_that_one_job_releases_stays_for_another_job() -> None:
    task, other = a_task("a"), a_job("2" * 32)
    scene = Scene(task, wanted=["a"])
    scene.graph.want(ObjectId("a"), other)
    scene.run(task)
    scene.unwant("a")
    assert scene.drop_all() == {}
    scene.graph.unwant(ObjectId("a"), other)
    assert scene.drop_all() == {"a": [W1]}


def test_objects_that_a_list_mentions_stay_as_long_as_the_list() -> None:
    item = a_task("item")
    listing = a_task("list", inputs=["item"], mentions=Mentions.INPUTS)
    scene = Scene(item, listing, wanted=["list"])
    scene.run(item, listing)
    scene.said(runnable=["item", "list"], settled=["list"])
    assert scene.drop_all() == {}
    scene.unwant("list")
    assert scene.drop_all() == {"list": [W1]}
    assert scene.drop_all() == {"item": [W1]}


def test_a_lost_list_is_recomputed_from_the_objects_it_mentioned() -> None:
    item = a_task("item")
    listing = a_task("list", inputs=["item"], mentions=Mentions.INPUTS)
    scene = Scene(item, listing, wanted=["list"])
    scene.run(item, place=W2)
    scene.run(listing, place=W1)
    scene.said(runnable=["item", "list"], settled=["list"])
    scene.lose("list", W1)
    assert scene.drop_all() == {}
    scene.run(listing)
    scene.said(runnable=["list"], settled=["list"])
    scene.unwant("list")
    assert scene.drop_all() == {"list": [W1]}
    assert scene.drop_all() == {"item": [W2]}


def test_a_list_that_failed_mentions_nothing() -> None:
    item = a_task("item")
    listing = a_task("list", inputs=["item"], mentions=Mentions.INPUTS)
    scene = Scene(item, listing, wanted=["list"])
    scene.run(item)
    scene.start(listing)
    scene.fail(listing)
    assert scene.drop_all() == {"item": [W1]}


def test_inputs_of_a_task_that_may_mention_anything_are_never_released() -> None:
    item = a_task("item")
    free = a_task("free", inputs=["item"], mentions=Mentions.ANYTHING)
    scene = Scene(item, free, wanted=["free"])
    scene.run(item, free)
    scene.unwant("free")
    assert scene.drop_all() == {}


def test_objects_of_children_of_a_task_that_may_mention_anything_are_never_released() -> None:
    free = a_task("free", mentions=Mentions.ANYTHING)
    child = a_task("part", parent=free)
    reader = a_task("free", inputs=["part"], parent=free, ordinal=1)
    scene = Scene(free, wanted=["free"])
    scene.start(free)
    scene.add(child, reader)
    scene.finish(free)
    scene.run(child, reader)
    assert scene.drop_all() == {}


def test_inputs_are_released_once_a_task_ended_without_undeclared_objects() -> None:
    item = a_task("item", mentions=Mentions.OWN)
    own = a_task("own", inputs=["item"], mentions=Mentions.OWN)
    scene = Scene(item, own, wanted=["own"])
    scene.run(item)
    assert scene.drop_all() == {}
    scene.run(own)
    assert scene.drop_all() == {"item": [W1]}
    scene.unwant("own")
    assert scene.drop_all() == {"own": [W1]}


def test_objects_of_children_stay_as_long_as_their_parent() -> None:
    own = a_task("own", mentions=Mentions.OWN)
    child = a_task("part", parent=own, mentions=Mentions.OWN)
    scene = Scene(own, wanted=["own"])
    scene.start(own)
    scene.add(child)
    scene.want("part")
    scene.finish(own)
    scene.run(child)
    scene.unwant("own", "part")
    assert scene.drop_all() == {}


@pytest.mark.parametrize("is_last", [False, True])
def test_a_task_that_only_delegates_its_outputs_keeps_none(is_last: bool) -> None:
    """As a program that got several calls at once, and hands some over to other workers."""
    own = a_task("one", "two", mentions=Mentions.OWN)
    child = a_task("two", parent=own, mentions=Mentions.OWN)
    scene = Scene(own, wanted=["one", "two"])
    scene.start(own)
    scene.add(child)
    if is_last:
        scene.finish(own, stored("one", W1))
        scene.run(child)
    else:
        scene.run(child)
        scene.finish(own, stored("one", W1))
    assert scene.drop_all() == {}
    scene.unwant("one")
    assert scene.drop_all() == {"one": [W1]}
    scene.unwant("two")
    assert scene.drop_all() == {"two": [W1]}
    validate(scene.graph)


def test_a_task_that_delegates_and_spawns_keeps_all() -> None:
    own = a_task("one", "two", mentions=Mentions.OWN)
    child = a_task("two", parent=own, mentions=Mentions.OWN)
    scene = Scene(own, wanted=["one", "two"])
    scene.start(own)
    scene.add(child, a_task("part", parent=own, ordinal=1))
    scene.run(child)
    scene.finish(own, stored("one", W1))
    scene.unwant("one", "two")
    assert scene.drop_all() == {}


def test_a_task_that_delegated_may_spawn_when_it_runs_again() -> None:
    own = a_task("one", "two", mentions=Mentions.OWN)
    child = a_task("two", parent=own, mentions=Mentions.OWN)
    scene = Scene(own, wanted=["one", "two"])
    scene.start(own)
    scene.add(child)
    scene.run(child)
    scene.finish(own, stored("one", W1))
    scene.lose("one")
    scene.start(own)
    scene.add(a_task("part", parent=own, ordinal=1))
    scene.finish(own, stored("one", W1))
    scene.unwant("one", "two")
    assert scene.drop_all() == {}


def test_a_childless_task_may_spawn_when_it_runs_again() -> None:
    item = a_task("item", mentions=Mentions.NOTHING)
    own = a_task("own", inputs=["item"], mentions=Mentions.OWN)
    scene = Scene(item, own, wanted=["own"])
    scene.run(item, own)
    assert scene.drop_all() == {"item": [W1]}
    scene.lose("own")
    scene.run(item)
    scene.start(own)
    scene.add(a_task("part", parent=own))
    scene.finish(own)
    scene.unwant("own")
    assert scene.drop_all() == {}


def test_a_handed_over_upload_is_deleted_with_the_last_task_that_read_it() -> None:
    first = a_task("first", inputs=["up"], mentions=Mentions.OWN)
    other = a_task("other", inputs=["up"], mentions=Mentions.OWN)
    scene = Scene(wanted=[])
    scene.upload(stored("up", W1))
    scene.add(first, other)
    scene.want("first", "other")
    scene.run(first, other)
    assert deleted(hand_over(scene.graph, scene.job, [ObjectId("up")])) == {}
    assert deleted(hand_over(scene.graph, scene.job, [ObjectId("first")])) == {W1: ["first"]}
    gone = deleted(hand_over(scene.graph, scene.job, [ObjectId("other")]))
    assert {name for names in gone.values() for name in names} == {"other", "up"}
    assert scene.graph.objects.nodes == {}
    assert scene.job.uploads == {}
    validate(scene.graph)


def test_a_dropped_object_is_recomputed_when_a_lost_result_needs_it() -> None:
    first, second = a_chain(2)
    scene = Scene(first, second, wanted=["c1"])
    scene.run(first, second)
    assert scene.drop_all() == {"c0": [W1]}
    scene.said(runnable=["c0", "c1"], settled=["c1"])
    scene.lose("c1")
    scene.said(runnable=["c0"])
    scene.run(first)
    scene.said(runnable=["c1"])
    scene.run(second)
    scene.said(settled=["c1"], droppable=["c0"])


def test_a_dropped_object_is_recomputed_for_a_late_reader() -> None:
    first, second = a_chain(2)
    scene = Scene(first, second, wanted=["c1"])
    scene.run(first, second)
    assert scene.drop_all() == {"c0": [W1]}
    scene.said(runnable=["c0", "c1"], settled=["c1"])
    scene.add(a_task("late", inputs=["c0"]))
    scene.want("late")
    scene.said(runnable=["c0"])


# --- results that are handed over -----------------------------------------------------------------


def programs(count: int) -> list[TaskSpec]:
    return [a_task(f"p{number}", mentions=Mentions.NOTHING) for number in range(count)]


def test_a_handed_over_result_is_forgotten_with_its_task() -> None:
    first, second = programs(2)
    scene = Scene(first, second, wanted=["p0", "p1"])
    scene.run(first)
    assert deleted(hand_over(scene.graph, scene.job, [ObjectId("p0")])) == {W1: ["p0"]}
    validate(scene.graph)
    assert list(scene.graph.tasks) == [second.id]
    assert list(scene.graph.objects.nodes) == ["p1"]
    assert scene.job.counts[TaskState.DONE] == 1
    assert scene.job.handed_over == 1


def test_a_handed_over_result_that_is_still_needed_is_not_forgotten() -> None:
    first, second = programs(2)
    reader = a_task("reader", inputs=["p0"], mentions=Mentions.NOTHING)
    scene = Scene(first, second, reader, wanted=["p0", "p1", "reader"])
    scene.run(first)
    assert deleted(hand_over(scene.graph, scene.job, [ObjectId("p0"), ObjectId("p1")])) == {}
    validate(scene.graph)
    assert len(scene.graph.tasks) == 3
    assert scene.state(second) is TaskState.DORMANT
    assert scene.job.handed_over == 0


def test_a_failure_is_never_forgotten() -> None:
    (first,) = programs(1)
    scene = Scene(first, wanted=["p0"])
    scene.start(first)
    scene.fail(first)
    assert deleted(hand_over(scene.graph, scene.job, [ObjectId("p0")])) == {}
    assert scene.error("p0").reason == "RUNTIME_EXCEPTION"


def test_a_job_that_hands_its_results_over_keeps_no_list_of_them() -> None:
    tasks = programs(5000)
    scene = Scene()
    for task in tasks:
        scene.graph.add(task, scene.job)
        scene.graph.want(task.outputs[0], scene.job)
        scene.graph.assign(scene.node(task), W1)
        scene.graph.finish(scene.node(task), [inline(task.outputs[0])])
        deleted(hand_over(scene.graph, scene.job, task.outputs))
    validate(scene.graph)
    assert scene.job.counts[TaskState.DONE] == 5000
    assert len(scene.job.tasks) <= 1001
    assert not scene.job.wanted
    assert not scene.graph.objects.nodes
