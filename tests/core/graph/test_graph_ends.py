"""Scenes with the task graph: how jobs end, are removed, and are retried."""

from __future__ import annotations

from ciel.core.graph.endings import failed_results, stuck
from ciel.core.graph.invariants import validate
from ciel.core.graph.job_retry import cancel, end_retry, retry_tasks
from ciel.core.graph.lost_objects import lose
from ciel.core.graph.removal import remove
from ciel.core.graph.task_graph import UNBOUNDED
from ciel.core.ids import ObjectId
from ciel.core.refs import Tombstone
from ciel.core.tasks import Mentions, TaskState
from ciel.testing.builders import a_chain, a_job, a_task, failed, inline, stored
from ciel.testing.operations import at_once, deleted
from ciel_tests.scenes.graph import W1, W2, Scene

# --- the end of a job -----------------------------------------------------------------------------


def test_cancelling_ends_all_unfinished_tasks() -> None:
    first, second, third = a_chain(3)
    scene = Scene(first, second, third, a_task("aside"), wanted=["c2", "nobody makes it"])
    scene.run(first)
    scene.start(second)
    scene.said(runnable=["c0", "c1"])
    at_once(cancel(scene.graph, scene.job, "the user said so"))
    validate(scene.graph)
    assert scene.state(first) is TaskState.DONE
    assert scene.job.counts[TaskState.CANCELLED] == 3
    assert scene.error("c2") == failed("c2", "CANCELLED", "the user said so")
    assert scene.error("nobody makes it").reason == "CANCELLED"
    assert scene.job.unsettled == 0


def test_removing_a_job_forgets_it_and_returns_the_copies_to_delete() -> None:
    first, second = a_chain(2)
    scene = Scene()
    scene.upload(stored("upload", W2))
    scene.add(first, second, a_task("c2", inputs=["c1", "upload"]), a_task("never", inputs=["x"]))
    scene.want("c1", "nobody makes it")
    scene.run(first, place=W1)
    scene.run(second, place=W2)
    deletions = deleted(remove(scene.graph, scene.job, ()))
    assert {place: sorted(names) for place, names in deletions.items()} == {
        W1: ["c0"],
        W2: ["c1", "upload"],
    }
    assert not scene.graph.tasks
    assert not scene.graph.objects.nodes
    assert scene.graph.objects.held_at(W1) == scene.graph.objects.held_at(W2) == []
    validate(scene.graph)


def test_removing_a_job_leaves_objects_that_another_job_wants() -> None:
    task = a_task("a")
    scene = Scene(task, wanted=["a"])
    scene.run(task)
    other = a_job("other")
    scene.graph.want(ObjectId("a"), other)
    assert deleted(remove(scene.graph, scene.job, ())) == {}
    assert scene.ref("a") == stored("a", W1)


def test_failed_results_include_failed_objects_that_a_result_lists() -> None:
    bad, good = a_task("bad"), a_task("good")
    listing = a_task("list", inputs=["good", "bad"], mentions=Mentions.INPUTS, sees_errors=True)
    scene = Scene(bad, good, listing, wanted=["list", "bad"])
    scene.start(bad)
    scene.fail(bad)
    scene.run(good, listing)
    assert at_once(failed_results(scene.graph, scene.job)) == ["bad", "bad"]
    scene.unwant("bad")
    assert at_once(failed_results(scene.graph, scene.job)) == ["bad"]


def test_stuck_names_objects_without_a_producer() -> None:
    scene = Scene(a_task("a", inputs=["orphan"]), a_task("b", inputs=["a"]), wanted=["b"])
    assert stuck(scene.graph, scene.job) == ["orphan"]
    scene.want("other orphan")
    assert sorted(stuck(scene.graph, scene.job)) == ["orphan", "other orphan"]


def test_stuck_names_a_circle() -> None:
    scene = Scene(a_task("a", inputs=["b"]), a_task("b", inputs=["a"]), wanted=["a"])
    scene.said()
    assert sorted(stuck(scene.graph, scene.job)) == ["a", "b"]


def test_a_circle_can_be_made_to_fail() -> None:
    scene = Scene(a_task("a", inputs=["b"]), a_task("b", inputs=["a"]), wanted=["a"])
    scene.graph.publish(failed("b", "NEVER_MADE", "a circle"))
    validate(scene.graph)
    scene.said(settled=["a"])
    assert scene.error("a").reason == "DEPENDENCY_FAILED"


# --- updates of objects ---------------------------------------------------------------------------


def test_an_update_without_news_is_not_reported_again() -> None:
    task = a_task("a")
    scene = Scene(task, wanted=["a"])
    scene.run(task)
    scene.said(runnable=["a"], settled=["a"])
    scene.graph.publish(stored("a", W1))
    scene.graph.publish(stored("a", W2))
    scene.graph.publish(Tombstone(ObjectId("a"), frozenset(("w9:8001",))))
    validate(scene.graph)
    scene.said()
    assert scene.ref("a") == stored("a", W1, W2)


def test_the_objects_held_at_a_worker_are_listed() -> None:
    scene = Scene()
    for name in ("a", "b"):
        scene.upload(stored(name, W1, W2))
    scene.upload(inline("c"))
    assert scene.graph.objects.held_at(W1) == ["a", "b"]
    scene.lose("a", W1)
    assert scene.graph.objects.held_at(W1) == ["b"]
    assert scene.graph.objects.held_at(W2) == ["a", "b"]


def test_removing_a_job_leaves_objects_that_another_jobs_task_reads() -> None:
    scene = Scene()
    scene.upload(stored("upload", W1))
    first, second = a_chain(2)
    scene.add(first, second, wanted := a_task("aside"))
    scene.want("c1", "aside")
    scene.run(first, second, wanted)
    other = a_job("other")
    reader = a_task("reader", inputs=["c1", "upload"], job="other", mentions=Mentions.NOTHING)
    scene.add(reader, job=other)
    deletions = deleted(remove(scene.graph, scene.job, ()))
    assert {place: sorted(names) for place, names in deletions.items()} == {W1: ["aside", "c0"]}
    assert scene.ref("c1") == stored("c1", W1)
    validate(scene.graph)
    scene.graph.want(ObjectId("reader"), other)
    scene.run(reader)
    deletions = deleted(remove(scene.graph, other, ()))
    assert {place: sorted(names) for place, names in deletions.items()} == {
        W1: ["c1", "reader", "upload"]
    }
    assert not scene.graph.objects.nodes


# --- retrying failed tasks ------------------------------------------------------------------------


def try_again(scene: Scene) -> int:
    """Retry a job's failed tasks; return how many may run."""
    count = at_once(retry_tasks(scene.graph, scene.job))
    end_retry(scene.graph, scene.job)
    return count


def test_a_failed_task_is_revived_with_all_tasks_that_failed_by_it() -> None:
    first, second = a_chain(2)
    good = a_task("good")
    scene = Scene(first, second, good, wanted=["c1", "good"])
    scene.run(good)
    scene.start(first)
    scene.fail(first)
    scene.said(runnable=["c0", "good"], settled=["good", "c1"])
    assert try_again(scene) == 2
    validate(scene.graph)
    scene.said(runnable=["c0"])
    assert scene.job.unsettled == 1
    scene.run(first, second)
    scene.said(runnable=["c1"], settled=["c1"], droppable=["c0"])
    assert scene.job.unsettled == 0


def test_a_failed_task_below_a_dormant_one_is_revived() -> None:
    bad = a_task("bad")
    deep, middle = a_task("deep", inputs=["bad"]), a_task("middle", inputs=["deep"])
    top = a_task("top", inputs=["bad", "middle"])
    scene = Scene(bad, deep, middle, top, wanted=["deep", "top"])
    scene.unwant("deep")
    scene.start(bad)
    scene.fail(bad)
    assert scene.state(deep) is TaskState.FAILED
    assert scene.state(middle) is TaskState.DORMANT
    try_again(scene)
    assert scene.state(top) is scene.state(middle) is scene.state(deep) is TaskState.WAITING


def test_a_task_that_left_out_an_output_is_retried() -> None:
    task = a_task("a", "b")
    scene = Scene(task, wanted=["a", "b"])
    scene.start(task)
    scene.finish(task, stored("a", W1))
    assert scene.error("b").reason == "NO_OUTPUT"
    assert try_again(scene) == 1
    scene.run(task)
    assert scene.ref("b") == stored("b", W1)


def test_a_job_without_failures_has_nothing_to_revive() -> None:
    task = a_task("a")
    scene = Scene(task, wanted=["a"])
    scene.run(task)
    assert try_again(scene) == 0


def test_an_object_lost_while_its_job_was_cancelled_is_recomputed() -> None:
    """This also covers a task that had not failed by it and runs again only later."""
    maker, reader, other = a_task("a"), a_task("b", inputs=["a"]), a_task("other")
    scene = Scene(maker, reader, other, wanted=["b", "other"])
    scene.run(maker, reader)
    at_once(cancel(scene.graph, scene.job, "its user said so"))
    lose(scene.graph, ObjectId("a"), W1)
    assert scene.error("a").reason == "OBJECT_LOST"
    assert try_again(scene) == 1
    assert scene.graph.objects.nodes[ObjectId("a")].ref is None
    lose(scene.graph, ObjectId("b"), W1)
    scene.run(maker, reader)
    assert scene.ref("b") == stored("b", W1)


def test_a_task_waits_for_an_input_whose_producer_is_not_revived_yet() -> None:
    """Without this, a task that becomes needed during the retry would fail by the old errors."""
    maker, reader = a_task("a"), a_task("b", inputs=["a"])
    scene = Scene(maker, reader, wanted=["b"])
    scene.run(maker, reader)
    at_once(cancel(scene.graph, scene.job, "its user said so"))
    lose(scene.graph, ObjectId("a"), W1)
    scene.graph.steps_left = 0
    putting_back = retry_tasks(scene.graph, scene.job)
    next(putting_back)
    lose(scene.graph, ObjectId("b"), W1)
    scene.graph.steps_left = UNBOUNDED
    at_once(putting_back)
    end_retry(scene.graph, scene.job)
    assert scene.state(reader) is TaskState.WAITING
    scene.run(maker, reader)
    assert scene.ref("b") == stored("b", W1)
