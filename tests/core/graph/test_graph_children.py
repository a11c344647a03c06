"""Scenes with the task graph: undeclared outputs, redelegation, and suspended processes."""

from __future__ import annotations

import pytest

from ciel.core.errors import InvalidTaskError
from ciel.core.graph.early_outputs import publish_early
from ciel.core.graph.invariants import validate
from ciel.core.graph.job_retry import cancel
from ciel.core.graph.lost_objects import lose_location
from ciel.core.graph.removal import hand_over, remove
from ciel.core.ids import ObjectId
from ciel.core.refs import Fixed, Future
from ciel.core.tasks import Mentions, TaskSpec, TaskState
from ciel.testing.builders import a_task, inline, stored
from ciel.testing.operations import at_once, deleted
from ciel_tests.scenes.graph import W1, W2, Scene

# --- undeclared outputs ---------------------------------------------------------------------------


def extra(spec: TaskSpec, name: str = "pub:0") -> ObjectId:
    return ObjectId(f"{spec.id}:{name}")


def test_an_undeclared_output_belongs_to_its_task_and_is_recomputed_when_lost() -> None:
    maker = a_task("a")
    reader = a_task("b", inputs=[extra(maker)])
    scene = Scene(maker, reader, wanted=["a", "b"])
    assert scene.state(reader) is TaskState.WAITING
    scene.start(maker)
    scene.finish(maker, inline("a"), stored(extra(maker), W1))
    assert scene.node(maker).outputs == ("a", extra(maker))
    scene.said(runnable=["a", "b"], settled=["a"])
    assert scene.lose(extra(maker))
    assert not scene.graph.is_ready(scene.node(reader))
    scene.said(runnable=["a"])
    scene.start(maker, W2)
    scene.finish(maker, inline("a"), stored(extra(maker), W2))
    scene.said(runnable=["b"])
    scene.run(reader)
    scene.said(settled=["b"], droppable=[extra(maker)])
    assert scene.drop_all() == {}


def test_readers_fail_if_a_rerun_does_not_produce_an_undeclared_output_again() -> None:
    maker = a_task("a")
    reader = a_task("b", inputs=[extra(maker)])
    scene = Scene(maker, reader, wanted=["a", "b"])
    scene.start(maker)
    scene.finish(maker, inline("a"), stored(extra(maker), W1))
    scene.lose(extra(maker))
    assert not scene.graph.is_ready(scene.node(reader))
    scene.start(maker)
    scene.finish(maker, inline("a"))
    assert scene.error(extra(maker)).reason == "NO_OUTPUT"
    assert scene.error("b").reason == "DEPENDENCY_FAILED"


def handed_over(*, times: int) -> tuple[Scene, TaskSpec, TaskSpec]:
    """Build a task that delegated its output to a child, which delegated it to its child, and so
    on.

    The input of the first child is lost, so the task runs again. Return the scene, the task, and
    the last child.
    """
    maker = a_task("a")
    scene = Scene(maker, wanted=["a"])
    spec = maker
    for _ in range(times):
        scene.start(spec)
        successor = a_task("a", inputs=[extra(spec)], parent=spec)
        scene.add(successor)
        scene.finish(spec, stored(extra(spec), W1))
        spec = successor
    for name in [name for name in scene.graph.objects.nodes if name != "a"]:
        scene.lose(name)
    assert not scene.graph.is_ready(scene.node(spec))
    assert scene.state(maker) is TaskState.RUNNABLE
    scene.start(maker, W2)
    return scene, maker, spec


@pytest.mark.parametrize("times", [1, 2, 3])
def test_the_child_created_last_for_an_output_produces_it(times: int) -> None:
    """The task stops at another point than before, so it does not produce the first child's
    input.
    """
    scene, maker, former = handed_over(times=times)
    heir = a_task("a", parent=maker, salt="otherwise")
    scene.add(heir)
    assert scene.state(former) is TaskState.DORMANT
    scene.finish(maker)
    scene.run(heir)
    assert scene.ref("a") == stored("a", W1)


def test_a_running_child_is_cancelled_when_its_output_is_delegated_to_another() -> None:
    scene, maker, former = handed_over(times=1)
    scene.graph.publish(stored(extra(maker), W1))
    scene.start(former)
    heir = a_task("a", parent=maker, salt="otherwise")
    scene.add(heir)
    assert scene.graph.unneeded == [scene.node(former)]
    assert scene.state(heir) is TaskState.RUNNABLE


def test_a_child_that_delegated_its_output_stays_delegated_when_it_is_created_again() -> None:
    """The task that runs again creates the very same child, so the delegation does not change."""
    scene, _, former = handed_over(times=2)
    successor = scene.graph.tasks[former.parent].spec
    scene.add(successor)
    assert scene.graph.objects.nodes["a"].producer is scene.node(former)


def test_of_several_children_the_one_created_last_produces_the_outputs() -> None:
    scene, maker, former = handed_over(times=1)
    others = [a_task("a", parent=maker, salt=salt) for salt in ("otherwise", "again otherwise")]
    for heir in (*others, others[0]):
        scene.add(heir)
    scene.finish(maker)
    assert scene.state(former) is scene.state(others[1]) is TaskState.DORMANT
    scene.run(others[0])


def test_each_output_may_be_redelegated_to_a_different_child() -> None:
    maker = a_task("a", "b")
    first = [a_task(name, inputs=[extra(maker)], parent=maker) for name in ("a", "b")]
    scene = Scene(maker, wanted=["a", "b"])
    scene.start(maker)
    for child in first:
        scene.add(child)
    scene.finish(maker, stored(extra(maker), W1))
    scene.lose(extra(maker))
    assert not scene.graph.is_ready(scene.node(first[0]))
    scene.start(maker)
    heirs = [a_task(name, parent=maker, salt="otherwise") for name in ("a", "b")]
    for heir in heirs:
        scene.add(heir)
    scene.finish(maker)
    for heir in heirs:
        scene.run(heir)
    assert scene.ref("a") == stored("a", W1)
    assert scene.ref("b") == stored("b", W1)


def test_children_that_read_nothing_of_their_parent_keep_its_outputs_when_it_runs_again() -> None:
    maker = a_task("a", "b", "c", "d")
    scene = Scene(maker, wanted=["a", "b", "c", "d"])
    scene.start(maker)
    assert scene.graph.redelegation.taken(scene.node(maker)) == ()
    scene.add(a_task("b", inputs=[extra(maker)], parent=maker))
    done, next_one = a_task("c", parent=maker), a_task("d", parent=maker)
    for child in (done, next_one):
        scene.add(child)
    scene.run(done)
    scene.graph.requeue(scene.node(maker))
    assert scene.graph.redelegation.taken(scene.node(maker)) == (2, 3)
    scene.fail(next_one)
    assert scene.graph.redelegation.taken(scene.node(maker)) == (2,)


def test_a_known_id_with_other_outputs_is_refused_before_anything_changes() -> None:
    parent = a_task("a")
    child = a_task("b", parent=parent)
    scene = Scene(parent, child, wanted=["a"])
    forged = child._replace(outputs=(ObjectId("c"),))
    with pytest.raises(InvalidTaskError, match="has other outputs"):
        scene.add(forged)
    assert ObjectId("c") not in scene.graph.objects.nodes


def test_redelegation_fails_if_the_new_child_lacks_the_same_input() -> None:
    scene, maker, former = handed_over(times=1)
    heir = a_task("a", inputs=[extra(maker)], parent=maker, salt="otherwise")
    scene.add(heir)
    scene.finish(maker)
    assert scene.error(extra(maker)).reason == "NO_OUTPUT"
    assert scene.error("a").reason == "DEPENDENCY_FAILED"
    assert scene.state(former) is TaskState.DORMANT


def test_a_task_that_produces_its_outputs_when_it_runs_again_needs_no_child() -> None:
    scene, maker, former = handed_over(times=2)
    scene.finish(maker, stored("a", W2))
    assert scene.ref("a") == stored("a", W2)
    assert scene.state(former) is TaskState.DORMANT


def test_a_parent_must_produce_the_undeclared_outputs_that_its_child_awaits() -> None:
    parent = a_task("a")
    child = a_task("b", inputs=[extra(parent), extra(parent, "pub:1")], parent=parent)
    scene = Scene(parent, child, wanted=["a", "b"])
    scene.start(parent)
    scene.graph.publish(stored(extra(parent), W2))  # an earlier attempt produced it
    scene.lose(extra(parent), W2)
    assert scene.ref(extra(parent)) == Future(extra(parent))
    scene.finish(parent, inline("a"), inline(extra(parent)))
    assert scene.error(extra(parent, "pub:1")).reason == "NO_OUTPUT"
    assert scene.state(child) is TaskState.FAILED


def test_an_object_named_after_another_task_is_not_an_output() -> None:
    maker, other = a_task("a"), a_task("b")
    scene = Scene(maker, other, wanted=["a"])
    scene.start(maker)
    scene.finish(maker, inline("a"), inline(extra(other)))
    assert scene.node(maker).undeclared == scene.node(other).undeclared == ()


def test_an_input_that_a_parent_publishes_early_is_available_before_the_parent_ends() -> None:
    parent = a_task("a")
    child = a_task("b", inputs=[extra(parent)], parent=parent)
    scene = Scene(parent, wanted=["a"])
    scene.start(parent)
    publish_early(scene.graph, scene.node(parent), [inline(extra(parent)), inline("a")])
    scene.add(child)
    scene.want("b")
    scene.said(runnable=["a", "b"], droppable=[extra(parent)])
    assert scene.state(parent) is TaskState.ASSIGNED
    assert scene.ref("a") == Future(ObjectId("a"))
    scene.finish(parent, inline("a"))
    scene.said(settled=["a"])


@pytest.mark.parametrize("mentions", [Mentions.NOTHING, Mentions.ANYTHING])
def test_an_undeclared_output_is_retained_like_a_declared_one(mentions: Mentions) -> None:
    maker = a_task("a", mentions=mentions)
    scene = Scene(maker, wanted=["a"])
    scene.start(maker)
    scene.finish(maker, inline("a"), stored(extra(maker), W1))
    is_named = mentions is Mentions.ANYTHING
    assert scene.drop_all() == ({} if is_named else {extra(maker): [W1]})
    assert deleted(remove(scene.graph, scene.job, ())) == ({W1: [extra(maker)]} if is_named else {})
    assert not scene.graph.objects.nodes


def test_a_task_is_not_forgotten_before_its_undeclared_outputs() -> None:
    maker = a_task("a")
    scene = Scene(maker, wanted=["a"])
    scene.start(maker)
    scene.finish(maker, inline("a"), inline(extra(maker)))
    deleted(hand_over(scene.graph, scene.job, [ObjectId("a")]))
    assert maker.id in scene.graph.tasks
    deleted(hand_over(scene.graph, scene.job, [ObjectId("a"), extra(maker)]))
    assert not scene.graph.tasks


# --- suspended processes --------------------------------------------------------------------------


class Blocked(Scene):
    """A task that left a suspended process at W1, and the continuation that it delegated to."""

    def __init__(self) -> None:
        super().__init__()
        self.first = a_task("out", mentions=Mentions.ANYTHING)
        self.process = extra(self.first, "fixed:0")
        self.rest = a_task(
            "out", inputs=[self.process], parent=self.first, mentions=Mentions.ANYTHING
        )
        self.add(self.first)
        self.want("out")
        self.block()

    def block(self, place: str = W1) -> None:
        self.start(self.first, place)
        fixed = Fixed(self.process, place)
        publish_early(self.graph, self.node(self.first), [fixed])
        self.add(self.rest)
        assert self.state(self.rest) is TaskState.WAITING
        self.finish(self.first, fixed)


def test_the_continuation_of_a_process_can_run_only_at_its_worker() -> None:
    scene = Blocked()
    scene.said(runnable=["out", "out"])
    assert scene.graph.fixed.location_of(scene.node(scene.rest)) == {W1}
    assert scene.graph.fixed.forget_released() == {}


def test_a_lost_process_is_created_again_by_the_task_that_left_it() -> None:
    scene = Blocked()
    scene.start(scene.rest)
    scene.graph.requeue(scene.node(scene.rest))
    assert lose_location(scene.graph, W1) == [scene.process]
    assert not scene.graph.is_ready(scene.node(scene.rest))
    scene.block(W2)
    assert scene.graph.fixed.location_of(scene.node(scene.rest)) == {W2}
    assert scene.state(scene.rest) is TaskState.RUNNABLE


def test_a_continuation_stays_dormant_if_the_rerun_does_not_wait() -> None:
    scene = Blocked()
    lose_location(scene.graph, W1)
    assert not scene.graph.is_ready(scene.node(scene.rest))
    scene.start(scene.first)
    scene.finish(scene.first, inline("out"))
    assert scene.state(scene.rest) is TaskState.DORMANT
    assert scene.ref("out") == inline("out")
    assert scene.ref(scene.process) == Future(scene.process)


@pytest.mark.parametrize("end", ["done", "failed", "cancelled", "asleep", "job over"])
def test_a_process_is_released_when_its_continuation_ends(end: str) -> None:
    scene = Blocked()
    if end == "asleep":
        scene.unwant("out")
    elif end == "job over":
        scene.start(scene.rest)
        scene.graph.fixed.job_ended(scene.job)
        assert scene.graph.fixed.forget_released() == {}
        scene.unwant("out")
        scene.graph.deactivate(scene.node(scene.rest))
    elif end == "cancelled":
        at_once(cancel(scene.graph, scene.job, "the user said so"))
    else:
        scene.start(scene.rest)
        assert scene.graph.fixed.forget_released() == {}
        if end == "done":
            scene.finish(scene.rest, inline("out"))
        else:
            scene.fail(scene.rest)
    assert scene.graph.fixed.forget_released() == {W1: [scene.process]}
    assert scene.graph.fixed.forget_released() == {}
    validate(scene.graph)


def test_a_process_without_a_needed_continuation_is_released_at_once() -> None:
    scene = Blocked()
    scene.graph.publish(stored("out", W2))  # another producer published it
    assert scene.state(scene.rest) is TaskState.DORMANT
    assert scene.graph.fixed.forget_released() == {W1: [scene.process]}
