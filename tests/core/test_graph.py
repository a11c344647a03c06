"""The graph in scenes: after each step the whole outbox is compared, and every link is checked."""

from __future__ import annotations

import sys
from collections.abc import Iterable

import pytest

from ciel.core import choices
from ciel.core.arrivals import introduce, open_streams, publish_early
from ciel.core.endings import failed_results, stuck
from ciel.core.errors import InvalidTaskError, InvalidTransitionError
from ciel.core.fixed import forget_released, let_all_go, place_of
from ciel.core.graph import TaskGraph
from ciel.core.ids import ObjectId
from ciel.core.jobs import Job
from ciel.core.losses import drop, lose, lose_location
from ciel.core.refs import Concrete, Failure, Fixed, Future, Reference, Stream, Tombstone
from ciel.core.removal import hand_over, remove
from ciel.core.revival import cancel, revive, running
from ciel.core.tasks import Mentions, TaskNode, TaskSpec, TaskState
from ciel.testing.builders import a_chain, a_fan, a_job, a_task, failed, inline, stored

W1, W2 = "w1:8001", "w2:8001"


class Scene:
    """A graph with one job. Tasks are called by the first object that they make."""

    def __init__(self, *tasks: TaskSpec, wanted: Iterable[str] = ()) -> None:
        self.graph = TaskGraph()
        self.job = a_job()
        self.add(*tasks)
        self.want(*wanted)

    def add(self, *tasks: TaskSpec, job: Job | None = None) -> None:
        for task in tasks:
            self.graph.add(task, job or self.job)
        self.graph.validate()

    def want(self, *names: str) -> None:
        for name in names:
            self.graph.want(ObjectId(name), self.job)
        self.graph.validate()

    def unwant(self, *names: str) -> None:
        for name in names:
            self.graph.unwant(ObjectId(name), self.job)
        self.graph.validate()

    def upload(self, ref: Reference) -> None:
        introduce(self.graph, ref, self.job)

    def node(self, spec: TaskSpec) -> TaskNode:
        return self.graph.tasks[spec.id]

    def state(self, spec: TaskSpec) -> TaskState:
        return self.node(spec).state

    def start(self, spec: TaskSpec, place: str = W1) -> int:
        assert self.graph.is_ready(self.node(spec))
        return self.graph.assign(self.node(spec), place)

    def finish(self, spec: TaskSpec, *published: Reference) -> None:
        self.graph.finish(self.node(spec), published)
        self.graph.validate()

    def run(self, *specs: TaskSpec, place: str = W1) -> None:
        """Run tasks that make all they promise, and store it where they run."""
        for spec in specs:
            self.start(spec, place)
            self.finish(spec, *[stored(output, place) for output in spec.outputs])

    def fail(self, spec: TaskSpec, details: str = "no luck") -> None:
        self.graph.fail(self.node(spec), "RUNTIME_EXCEPTION", details)
        self.graph.validate()

    def lose(self, name: str, place: str = W1) -> bool:
        lost = lose(self.graph, ObjectId(name), place)
        self.graph.validate()
        return lost

    def stream(self, spec: TaskSpec, *names: str, place: str = W1) -> None:
        """Have a running task open outputs as streams."""
        refs = [Stream(ObjectId(name), frozenset((place,))) for name in names]
        open_streams(self.graph, self.node(spec), refs)
        self.graph.validate()

    def follow(self) -> list[str]:
        """Stop who reads what broke, as the master does; return who was running, in order."""
        graph = self.graph
        stopped: list[str] = []
        while graph.broken:
            task, attempt = graph.broken.pop()
            if task.state is TaskState.RUNNABLE or task.state is TaskState.WAITING:
                graph.recheck(task)
            elif task.state is TaskState.ASSIGNED and task.attempt == attempt:
                stopped.append(task.spec.outputs[0])
                graph.requeue(task)
        graph.validate()
        return stopped

    def drop_all(self) -> dict[str, list[str]]:
        """Drop what may be dropped; where copies of what lie."""
        droppable, self.graph.droppable = self.graph.droppable, []
        places = {name: sorted(drop(self.graph, name)) for name in droppable}
        self.graph.validate()
        return {name: held for name, held in places.items() if held}

    def ref(self, name: str) -> Reference:
        return self.graph.objects.reference(ObjectId(name))

    def error(self, name: str) -> Failure:
        ref = self.ref(name)
        assert isinstance(ref, Failure)
        return ref

    def said(
        self,
        runnable: Iterable[str] = (),
        settled: Iterable[str] = (),
        unneeded: Iterable[str] = (),
        droppable: Iterable[str] = (),
    ) -> None:
        """Compare and empty all four outboxes: this was said, and nothing else."""
        graph = self.graph
        assert [task.spec.outputs[0] for task in graph.runnable] == list(runnable)
        assert graph.settled == list(settled)
        assert [task.spec.outputs[0] for task in graph.unneeded] == list(unneeded)
        assert graph.droppable == list(droppable)
        for box in (graph.runnable, graph.settled, graph.unneeded, graph.droppable):
            box.clear()


# --- laziness -------------------------------------------------------------------------------------


def test_nothing_runs_that_nobody_wants() -> None:
    a, b = a_chain(2)
    scene = Scene(a, b)
    scene.said()
    assert scene.state(a) is scene.state(b) is TaskState.DORMANT


def test_a_wanted_object_wakes_its_producers_and_nobody_else() -> None:
    leaf0, leaf1, total = a_fan(2)
    aside = a_task("aside", inputs=["leaf0"])
    scene = Scene(leaf0, leaf1, total, aside, wanted=["total"])
    scene.said(runnable=["leaf1", "leaf0"])
    assert scene.state(total) is TaskState.WAITING
    assert scene.state(aside) is TaskState.DORMANT


def test_a_task_is_runnable_with_the_last_of_its_inputs() -> None:
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


def test_wanting_twice_is_wanting_once() -> None:
    scene = Scene(a_task("a"), wanted=["a", "a"])
    scene.said(runnable=["a"])
    assert scene.job.unsettled == 1


def test_what_is_there_already_is_settled_at_once() -> None:
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


def test_children_may_take_over_some_outputs_each() -> None:
    parent = a_task("a", "b", "c", "d")
    scene = Scene(parent, wanted=["a", "b", "c", "d"])
    scene.said(runnable=["a"])
    scene.start(parent)
    one, two = a_task("b", parent=parent), a_task("d", "c", parent=parent, ordinal=1)
    scene.add(one, two)
    scene.said(runnable=["b", "d"])
    scene.finish(parent, inline("a"))
    scene.said(settled=["a"])  # and nothing is missing
    scene.run(one)
    scene.said(settled=["b"])
    scene.run(two)
    scene.said(settled=["d", "c"])


def test_a_parent_that_runs_again_may_make_what_it_had_handed_over() -> None:
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


def test_a_parent_that_fails_keeps_those_outputs_alive_that_it_had_handed_over() -> None:
    parent = a_task("a", "b")
    scene = Scene(parent, wanted=["a", "b"])
    scene.start(parent)
    child = a_task("b", parent=parent)
    scene.add(child)
    scene.fail(parent, "exit status 3")
    assert scene.error("a").details == "exit status 3"
    scene.run(child)
    assert not isinstance(scene.ref("b"), Failure)


def test_an_output_neither_made_nor_delegated_is_an_error() -> None:
    task = a_task("a", "b")
    scene = Scene(task, wanted=["a", "b"])
    scene.said(runnable=["a"])
    scene.start(task)
    scene.finish(task, inline("a"))
    scene.said(settled=["a", "b"])
    error = scene.error("b")
    assert error.reason == "NO_OUTPUT"
    assert error.text.startswith(f"task {task.id} ended well, but without making output 1 of 2")


def test_the_graph_grows_by_what_its_tasks_find_out() -> None:
    """Fibonacci numbers: a task for n > 1 spawns two and delegates its output to their sum."""
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


def test_a_rerun_that_spawns_the_same_children_is_not_noticed() -> None:
    parent = a_task("a")
    child = a_task("b", parent=parent)
    scene = Scene(parent, child, wanted=["a"])
    scene.run(parent)
    scene.lose("a")
    scene.start(parent)
    scene.add(child)
    assert scene.graph.divergent == []


def test_a_rerun_that_spawns_another_child_is_noted() -> None:
    parent = a_task("a")
    scene = Scene(parent, wanted=["a"])
    scene.start(parent)
    scene.add(a_task("b", parent=parent, ordinal=3))
    scene.graph.requeue(scene.node(parent))
    scene.start(parent)
    scene.add(a_task("b", parent=parent, ordinal=3, salt="random"))
    assert scene.graph.divergent == [(parent.id, 3)]


def test_of_two_tasks_that_make_the_same_only_the_first_runs() -> None:
    first, second = a_task("memo", ordinal=0), a_task("memo", ordinal=1)
    scene = Scene(first, second, a_task("after", inputs=["memo"]), wanted=["memo", "after"])
    scene.said(runnable=["memo"])
    assert scene.state(second) is TaskState.DORMANT
    scene.run(first)
    scene.said(runnable=["after"], settled=["memo"])
    scene.add(a_task("memo", ordinal=2))
    scene.said()


# --- errors ---------------------------------------------------------------------------------------


def test_an_error_reaches_the_end_of_a_chain_and_is_told_once() -> None:
    chain = a_chain(50)
    scene = Scene(*chain, wanted=["c49"])
    scene.said(runnable=["c0"])
    scene.start(chain[0])
    scene.fail(chain[0], "exit status 3")
    scene.said(settled=["c49"])
    error = scene.error("c49")
    assert error.reason == "DEPENDENCY_FAILED"
    assert error.details == "its input c0 failed (RUNTIME_EXCEPTION): exit status 3"
    assert {scene.state(task) for task in chain} == {TaskState.FAILED}


def test_an_error_stops_work_for_what_has_failed_alone() -> None:
    bad, good, total = a_task("bad"), a_task("good"), a_task("total", inputs=["bad", "good"])
    scene = Scene(bad, good, total, wanted=["total"])
    scene.said(runnable=["good", "bad"])
    scene.start(bad)
    scene.start(good)
    scene.fail(bad)
    scene.said(settled=["total"], unneeded=["good"])


def test_a_task_that_sees_errors_runs_on_them() -> None:
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


def test_an_output_that_was_made_stays_when_its_task_fails_later() -> None:
    task = a_task("a", "b")
    scene = Scene(task, wanted=["a", "b"])
    scene.start(task)
    scene.graph.publish(inline("a"))
    scene.fail(task)
    scene.said(runnable=["a"], settled=["a", "b"])
    assert scene.ref("a") == inline("a")
    assert scene.error("b").reason == "RUNTIME_EXCEPTION"


def test_a_fixed_object_that_no_task_made_is_lost_as_an_error_with_its_place() -> None:
    scene = Scene(wanted=["process"])
    scene.upload(Fixed(ObjectId("process"), W1))
    scene.said(settled=["process"])
    scene.lose("process")
    assert scene.error("process") == failed("process", "LOST_FIXED_OBJECT", W1)


# --- loss -----------------------------------------------------------------------------------------


def test_a_copy_elsewhere_makes_a_loss_harmless() -> None:
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


def test_a_loss_that_nobody_minds_starts_nothing() -> None:
    task = a_task("a", "b")
    scene = Scene(task, wanted=["a"])
    scene.run(task)
    scene.said(runnable=["a"], settled=["a"], droppable=["b"])
    assert scene.lose("b")
    scene.said()
    assert scene.ref("b") == Future(ObjectId("b"))


def test_a_loss_where_it_never_lay_changes_nothing() -> None:
    task = a_task("a")
    scene = Scene(task, wanted=["a"])
    scene.run(task, place=W1)
    scene.said(runnable=["a"], settled=["a"])
    assert not scene.lose("a", W2)
    assert not scene.lose("unknown", W1)
    scene.said()


def test_only_producers_of_what_is_missing_run_again() -> None:
    first, second, third = a_chain(3)
    scene = Scene(first, second, third, wanted=["c2"])
    scene.run(first, place=W2)
    scene.run(second, third, place=W1)
    scene.said(runnable=["c0", "c1", "c2"], settled=["c2"], droppable=["c0", "c1"])
    assert lose_location(scene.graph, W1) == ["c1", "c2"]
    scene.graph.validate()
    scene.said(runnable=["c1"])
    scene.run(second, place=W2)
    scene.said(runnable=["c2"], droppable=["c0"])
    assert scene.start(third, W2) == 2


def test_a_runnable_task_learns_of_a_loss_when_it_is_to_start() -> None:
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


def test_an_upload_that_is_lost_is_an_error_that_says_so() -> None:
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
    details = "its input upload failed (OBJECT_LOST): no copy of it is left, and no task makes it "
    details += "(whoever sent it has to send it again)"
    assert scene.error("a").details == details


def test_a_stream_that_is_lost_is_made_again() -> None:
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


LONG = 20_000


def a_long_chain_that_ran() -> tuple[Scene, list[TaskSpec]]:
    chain = a_chain(LONG)
    scene = Scene(*chain, wanted=[f"c{LONG - 1}"])
    assert run_all(scene) == LONG
    assert isinstance(scene.ref(f"c{LONG - 1}"), Concrete)
    return scene, chain


def run_all(scene: Scene) -> int:
    """Run whatever is runnable without checks between, which would take quadratic time."""
    count = 0
    graph = scene.graph
    while graph.runnable:
        task = graph.runnable.pop()
        if graph.is_ready(task):
            graph.assign(task, W1)
            graph.finish(task, [stored(output, W1) for output in task.spec.outputs])
            count += 1
    graph.validate()
    return count


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


def test_a_chain_of_twenty_thousand_fails_at_once_and_goes_to_sleep_at_once() -> None:
    chain = a_chain(LONG)
    scene = Scene(*chain, wanted=[f"c{LONG - 1}"])
    scene.unwant(f"c{LONG - 1}")
    assert scene.job.counts[TaskState.DORMANT] == LONG
    scene.want(f"c{LONG - 1}")
    scene.fail(chain[0])
    assert scene.job.counts[TaskState.FAILED] == LONG
    assert scene.error(f"c{LONG - 1}").reason == "DEPENDENCY_FAILED"


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
def test_what_is_needed_or_cannot_be_made_is_never_dropped(name: str) -> None:
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


def test_what_a_list_mentions_stays_as_long_as_the_list() -> None:
    item = a_task("item")
    listing = a_task("list", inputs=["item"], mentions=Mentions.INPUTS)
    scene = Scene(item, listing, wanted=["list"])
    scene.run(item, listing)
    scene.said(runnable=["item", "list"], settled=["list"])
    assert scene.drop_all() == {}
    scene.unwant("list")
    assert scene.drop_all() == {"list": [W1]}
    assert scene.drop_all() == {"item": [W1]}


def test_a_lost_list_is_made_again_from_what_it_mentioned() -> None:
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


def test_what_a_task_that_mentions_anything_saw_stays_for_good() -> None:
    item = a_task("item")
    free = a_task("free", inputs=["item"], mentions=Mentions.ANYTHING)
    scene = Scene(item, free, wanted=["free"])
    scene.run(item, free)
    scene.unwant("free")
    assert scene.drop_all() == {}


def test_what_children_of_a_free_task_make_stays_for_good() -> None:
    free = a_task("free", mentions=Mentions.ANYTHING)
    child = a_task("part", parent=free)
    reader = a_task("free", inputs=["part"], parent=free, ordinal=1)
    scene = Scene(free, wanted=["free"])
    scene.start(free)
    scene.add(child, reader)
    scene.finish(free)
    scene.run(child, reader)
    assert scene.drop_all() == {}


def test_a_task_that_made_nothing_besides_names_nothing() -> None:
    item = a_task("item", mentions=Mentions.OWN)
    own = a_task("own", inputs=["item"], mentions=Mentions.OWN)
    scene = Scene(item, own, wanted=["own"])
    scene.run(item)
    assert scene.drop_all() == {}
    scene.run(own)
    assert scene.drop_all() == {"item": [W1]}
    scene.unwant("own")
    assert scene.drop_all() == {"own": [W1]}


def test_a_task_that_spawned_keeps_what_its_children_made() -> None:
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


def test_a_task_that_named_nothing_may_do_so_when_it_runs_again() -> None:
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


def test_an_upload_that_is_handed_over_goes_with_the_last_task_that_read_it() -> None:
    first = a_task("first", inputs=["up"], mentions=Mentions.OWN)
    other = a_task("other", inputs=["up"], mentions=Mentions.OWN)
    scene = Scene(wanted=[])
    scene.upload(stored("up", W1))
    scene.add(first, other)
    scene.want("first", "other")
    scene.run(first, other)
    assert hand_over(scene.graph, scene.job, [ObjectId("up")]) == {}
    assert hand_over(scene.graph, scene.job, [ObjectId("first")]) == {W1: ["first"]}
    gone = hand_over(scene.graph, scene.job, [ObjectId("other")])
    assert {name for names in gone.values() for name in names} == {"other", "up"}
    assert scene.graph.objects.nodes == {}
    assert scene.job.uploads == {}
    scene.graph.validate()


def test_a_dropped_object_is_made_again_when_a_lost_result_needs_it() -> None:
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


def test_a_dropped_object_is_made_again_for_a_late_reader() -> None:
    first, second = a_chain(2)
    scene = Scene(first, second, wanted=["c1"])
    scene.run(first, second)
    assert scene.drop_all() == {"c0": [W1]}
    scene.said(runnable=["c0", "c1"], settled=["c1"])
    scene.add(a_task("late", inputs=["c0"]))
    scene.want("late")
    scene.said(runnable=["c0"])


# --- losing interest ------------------------------------------------------------------------------


def test_unwanting_puts_everything_upstream_to_sleep() -> None:
    leaf0, leaf1, total = a_fan(2)
    scene = Scene(leaf0, leaf1, total, wanted=["total"])
    scene.said(runnable=["leaf1", "leaf0"])
    scene.start(leaf0)
    scene.unwant("total")
    scene.said(unneeded=["leaf0"])
    assert scene.state(leaf1) is scene.state(total) is TaskState.DORMANT
    scene.graph.sleep(scene.node(leaf0))
    scene.graph.validate()
    assert scene.job.counts[TaskState.DORMANT] == 3
    assert scene.job.unsettled == 0


def test_what_another_reader_needs_goes_on() -> None:
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


def test_a_requeued_task_that_nobody_needs_any_more_sleeps() -> None:
    task = a_task("a")
    scene = Scene(task, wanted=["a"])
    scene.start(task)
    scene.unwant("a")
    scene.graph.requeue(scene.node(task))
    assert scene.state(task) is TaskState.DORMANT


def test_a_step_that_makes_no_sense_is_refused_with_the_state_it_met() -> None:
    task = a_task("a")
    scene = Scene(task)
    with pytest.raises(InvalidTransitionError, match="dormant: cannot become assigned"):
        scene.graph.assign(scene.node(task), W1)
    with pytest.raises(InvalidTransitionError, match="dormant: cannot become runnable"):
        scene.graph.requeue(scene.node(task))
    scene.graph.validate()


# --- the end of a job -----------------------------------------------------------------------------


def test_cancelling_ends_all_that_is_unfinished() -> None:
    first, second, third = a_chain(3)
    scene = Scene(first, second, third, a_task("aside"), wanted=["c2", "nobody makes it"])
    scene.run(first)
    scene.start(second)
    scene.said(runnable=["c0", "c1"])
    cancel(scene.graph, scene.job, "the user said so")
    scene.graph.validate()
    assert scene.state(first) is TaskState.DONE
    assert scene.job.counts[TaskState.CANCELLED] == 3
    assert scene.error("c2") == failed("c2", "CANCELLED", "the user said so")
    assert scene.error("nobody makes it").reason == "CANCELLED"
    assert scene.job.unsettled == 0


def test_removing_a_job_forgets_all_of_it_and_says_what_lies_where() -> None:
    first, second = a_chain(2)
    scene = Scene()
    scene.upload(stored("upload", W2))
    scene.add(first, second, a_task("c2", inputs=["c1", "upload"]), a_task("never", inputs=["x"]))
    scene.want("c1", "nobody makes it")
    scene.run(first, place=W1)
    scene.run(second, place=W2)
    deletions = remove(scene.graph, scene.job, ())
    assert {place: sorted(names) for place, names in deletions.items()} == {
        W1: ["c0"],
        W2: ["c1", "upload"],
    }
    assert not scene.graph.tasks
    assert not scene.graph.objects.nodes
    assert scene.graph.objects.held_at(W1) == scene.graph.objects.held_at(W2) == []
    scene.graph.validate()


def test_removing_a_job_leaves_what_another_job_wants() -> None:
    task = a_task("a")
    scene = Scene(task, wanted=["a"])
    scene.run(task)
    other = a_job("other")
    scene.graph.want(ObjectId("a"), other)
    assert remove(scene.graph, scene.job, ()) == {}
    assert scene.ref("a") == stored("a", W1)


def test_the_running_tasks_of_a_job_are_listed() -> None:
    scene = Scene(*a_chain(2), aside := a_task("aside"), wanted=["c1", "aside"])
    assert running(scene.graph, scene.job) == []
    scene.start(aside)
    assert running(scene.graph, scene.job) == [scene.node(aside)]


def test_failed_results_include_those_that_a_result_lists() -> None:
    bad, good = a_task("bad"), a_task("good")
    listing = a_task("list", inputs=["good", "bad"], mentions=Mentions.INPUTS, sees_errors=True)
    scene = Scene(bad, good, listing, wanted=["list", "bad"])
    scene.start(bad)
    scene.fail(bad)
    scene.run(good, listing)
    assert failed_results(scene.graph, scene.job) == ["bad", "bad"]
    scene.unwant("bad")
    assert failed_results(scene.graph, scene.job) == ["bad"]


def test_stuck_names_what_nobody_makes() -> None:
    scene = Scene(a_task("a", inputs=["orphan"]), a_task("b", inputs=["a"]), wanted=["b"])
    assert stuck(scene.graph, scene.job) == ["orphan"]
    scene.want("other orphan")
    assert sorted(stuck(scene.graph, scene.job)) == ["orphan", "other orphan"]


def test_stuck_names_a_circle() -> None:
    scene = Scene(a_task("a", inputs=["b"]), a_task("b", inputs=["a"]), wanted=["a"])
    scene.said()
    assert sorted(stuck(scene.graph, scene.job)) == ["a", "b"]


def test_a_circle_can_be_failed() -> None:
    scene = Scene(a_task("a", inputs=["b"]), a_task("b", inputs=["a"]), wanted=["a"])
    scene.graph.publish(failed("b", "NEVER_MADE", "a circle"))
    scene.graph.validate()
    scene.said(settled=["a"])
    assert scene.error("a").reason == "DEPENDENCY_FAILED"


# --- news of objects ------------------------------------------------------------------------------


def test_news_of_nothing_new_is_not_told_again() -> None:
    task = a_task("a")
    scene = Scene(task, wanted=["a"])
    scene.run(task)
    scene.said(runnable=["a"], settled=["a"])
    scene.graph.publish(stored("a", W1))
    scene.graph.publish(stored("a", W2))
    scene.graph.publish(Tombstone(ObjectId("a"), frozenset(("w9:8001",))))
    scene.graph.validate()
    scene.said()
    assert scene.ref("a") == stored("a", W1, W2)


def test_a_place_is_told_all_that_it_holds() -> None:
    scene = Scene()
    for name in ("a", "b"):
        scene.upload(stored(name, W1, W2))
    scene.upload(inline("c"))
    assert scene.graph.objects.held_at(W1) == ["a", "b"]
    scene.lose("a", W1)
    assert scene.graph.objects.held_at(W1) == ["b"]
    assert scene.graph.objects.held_at(W2) == ["a", "b"]


def test_removing_a_job_leaves_what_a_task_of_another_reads() -> None:
    scene = Scene()
    scene.upload(stored("upload", W1))
    first, second = a_chain(2)
    scene.add(first, second, wanted := a_task("aside"))
    scene.want("c1", "aside")
    scene.run(first, second, wanted)
    other = a_job("other")
    reader = a_task("reader", inputs=["c1", "upload"], job="other", mentions=Mentions.NOTHING)
    scene.add(reader, job=other)
    deletions = remove(scene.graph, scene.job, (scene.job, other))
    assert {place: sorted(names) for place, names in deletions.items()} == {W1: ["aside", "c0"]}
    assert scene.ref("c1") == stored("c1", W1)
    scene.graph.validate()
    scene.graph.want(ObjectId("reader"), other)
    scene.run(reader)
    deletions = remove(scene.graph, other, (other,))
    assert {place: sorted(names) for place, names in deletions.items()} == {
        W1: ["c1", "reader", "upload"]
    }
    assert not scene.graph.objects.nodes


# --- results that are handed over -----------------------------------------------------------------


def programs(count: int) -> list[TaskSpec]:
    return [a_task(f"p{number}", mentions=Mentions.NOTHING) for number in range(count)]


def test_a_result_that_is_handed_over_is_forgotten_with_its_task() -> None:
    first, second = programs(2)
    scene = Scene(first, second, wanted=["p0", "p1"])
    scene.run(first)
    assert hand_over(scene.graph, scene.job, [ObjectId("p0")]) == {W1: ["p0"]}
    scene.graph.validate()
    assert list(scene.graph.tasks) == [second.id]
    assert list(scene.graph.objects.nodes) == ["p1"]
    assert scene.job.counts[TaskState.DONE] == 1
    assert scene.job.handed_over == 1


def test_what_is_still_needed_is_not_forgotten_when_it_is_handed_over() -> None:
    first, second = programs(2)
    reader = a_task("reader", inputs=["p0"], mentions=Mentions.NOTHING)
    scene = Scene(first, second, reader, wanted=["p0", "p1", "reader"])
    scene.run(first)
    assert hand_over(scene.graph, scene.job, [ObjectId("p0"), ObjectId("p1")]) == {}
    scene.graph.validate()
    assert len(scene.graph.tasks) == 3
    assert scene.state(second) is TaskState.DORMANT
    assert scene.job.handed_over == 0


def test_a_failure_is_never_forgotten() -> None:
    (first,) = programs(1)
    scene = Scene(first, wanted=["p0"])
    scene.start(first)
    scene.fail(first)
    assert hand_over(scene.graph, scene.job, [ObjectId("p0")]) == {}
    assert scene.error("p0").reason == "RUNTIME_EXCEPTION"


def test_a_job_that_hands_its_results_over_keeps_no_list_of_them() -> None:
    tasks = programs(5000)
    scene = Scene()
    for task in tasks:
        scene.graph.add(task, scene.job)
        scene.graph.want(task.outputs[0], scene.job)
        scene.graph.assign(scene.node(task), W1)
        scene.graph.finish(scene.node(task), [inline(task.outputs[0])])
        hand_over(scene.graph, scene.job, task.outputs)
    scene.graph.validate()
    assert scene.job.counts[TaskState.DONE] == 5000
    assert len(scene.job.tasks) <= 1001
    assert not scene.job.wanted
    assert not scene.graph.objects.nodes


# --- another try for what failed ------------------------------------------------------------------


def test_what_failed_is_revived_with_all_that_failed_by_it() -> None:
    first, second = a_chain(2)
    good = a_task("good")
    scene = Scene(first, second, good, wanted=["c1", "good"])
    scene.run(good)
    scene.start(first)
    scene.fail(first)
    scene.said(runnable=["c0", "good"], settled=["good", "c1"])
    assert revive(scene.graph, scene.job) == 2
    scene.graph.validate()
    scene.said(runnable=["c0"])
    assert scene.job.unsettled == 1
    scene.run(first, second)
    scene.said(runnable=["c1"], settled=["c1"], droppable=["c0"])
    assert scene.job.unsettled == 0


def test_what_failed_under_a_task_that_was_not_needed_any_more_is_revived() -> None:
    bad = a_task("bad")
    deep, middle = a_task("deep", inputs=["bad"]), a_task("middle", inputs=["deep"])
    top = a_task("top", inputs=["bad", "middle"])
    scene = Scene(bad, deep, middle, top, wanted=["deep", "top"])
    scene.unwant("deep")
    scene.start(bad)
    scene.fail(bad)
    assert scene.state(deep) is TaskState.FAILED
    assert scene.state(middle) is TaskState.DORMANT
    revive(scene.graph, scene.job)
    assert scene.state(top) is scene.state(middle) is scene.state(deep) is TaskState.WAITING


def test_an_output_that_was_not_made_is_tried_again() -> None:
    task = a_task("a", "b")
    scene = Scene(task, wanted=["a", "b"])
    scene.start(task)
    scene.finish(task, stored("a", W1))
    assert scene.error("b").reason == "NO_OUTPUT"
    assert revive(scene.graph, scene.job) == 1
    scene.run(task)
    assert scene.ref("b") == stored("b", W1)


def test_where_nothing_failed_there_is_nothing_to_revive() -> None:
    task = a_task("a")
    scene = Scene(task, wanted=["a"])
    scene.run(task)
    assert revive(scene.graph, scene.job) == 0


# --- what was not promised ------------------------------------------------------------------------


def extra(spec: TaskSpec, name: str = "pub:0") -> ObjectId:
    return ObjectId(f"{spec.id}:{name}")


def test_what_a_task_publishes_under_its_own_name_is_its_output_and_made_again() -> None:
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


def test_an_output_that_was_made_once_and_not_again_is_an_error_for_those_who_wait() -> None:
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
    """A task whose output was handed over, again and again. What the first of those that took it
    over needs is lost, so that the task runs again; it is returned with the last of them.
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
def test_who_takes_outputs_over_when_a_task_runs_again_makes_them(times: int) -> None:
    """The task stops elsewhere than before, and does not make again what it had made for that."""
    scene, maker, former = handed_over(times=times)
    heir = a_task("a", parent=maker, salt="otherwise")
    scene.add(heir)
    assert scene.state(heir) is TaskState.DORMANT
    scene.finish(maker)
    assert scene.state(former) is TaskState.DORMANT
    scene.run(heir)
    assert scene.ref("a") == stored("a", W1)


def test_who_took_outputs_over_at_first_makes_them_if_he_can_do_so_after_all() -> None:
    scene, maker, former = handed_over(times=1)
    heir = a_task("a", parent=maker, salt="otherwise")
    scene.add(heir)
    scene.finish(maker, stored(extra(maker), W2))
    assert scene.state(heir) is TaskState.DORMANT
    scene.run(former)


def test_of_several_the_one_who_took_outputs_over_the_last_time_makes_them() -> None:
    scene, maker, former = handed_over(times=1)
    others = [a_task("a", parent=maker, salt=salt) for salt in ("otherwise", "again otherwise")]
    for heir in (*others, others[0]):
        scene.add(heir)
        scene.graph.requeue(scene.node(maker))
        scene.start(maker)
    scene.finish(maker)
    assert scene.state(former) is scene.state(others[1]) is TaskState.DORMANT
    scene.run(others[0])


def test_an_heir_who_lacks_the_same_is_no_help() -> None:
    scene, maker, former = handed_over(times=1)
    heir = a_task("a", inputs=[extra(maker)], parent=maker, salt="otherwise")
    scene.add(heir)
    scene.finish(maker)
    assert scene.error(extra(maker)).reason == "NO_OUTPUT"
    assert scene.error("a").reason == "DEPENDENCY_FAILED"
    assert scene.state(former) is TaskState.DORMANT


def test_a_task_that_makes_its_outputs_by_itself_when_it_runs_again_needs_no_heir() -> None:
    scene, maker, former = handed_over(times=2)
    scene.finish(maker, stored("a", W2))
    assert scene.ref("a") == stored("a", W2)
    assert scene.state(former) is TaskState.DORMANT


def test_what_a_child_awaits_under_the_name_of_its_parent_is_for_that_to_make() -> None:
    parent = a_task("a")
    child = a_task("b", inputs=[extra(parent), extra(parent, "pub:1")], parent=parent)
    scene = Scene(parent, child, wanted=["a", "b"])
    scene.start(parent)
    scene.graph.publish(stored(extra(parent), W2))  # an earlier attempt made it
    scene.lose(extra(parent), W2)
    assert scene.ref(extra(parent)) == Future(extra(parent))
    scene.finish(parent, inline("a"), inline(extra(parent)))
    assert scene.error(extra(parent, "pub:1")).reason == "NO_OUTPUT"
    assert scene.state(child) is TaskState.FAILED


def test_what_bears_the_name_of_another_task_is_not_adopted() -> None:
    maker, other = a_task("a"), a_task("b")
    scene = Scene(maker, other, wanted=["a"])
    scene.start(maker)
    scene.finish(maker, inline("a"), inline(extra(other)))
    assert scene.node(maker).extras == scene.node(other).extras == ()


def test_what_a_child_is_told_of_is_there_before_its_parent_ends() -> None:
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
def test_an_output_that_was_not_promised_is_kept_like_the_others(mentions: Mentions) -> None:
    maker = a_task("a", mentions=mentions)
    scene = Scene(maker, wanted=["a"])
    scene.start(maker)
    scene.finish(maker, inline("a"), stored(extra(maker), W1))
    is_named = mentions is Mentions.ANYTHING
    assert scene.drop_all() == ({} if is_named else {extra(maker): [W1]})
    assert remove(scene.graph, scene.job, []) == ({W1: [extra(maker)]} if is_named else {})
    assert not scene.graph.objects.nodes


def test_a_task_is_not_forgotten_before_what_it_did_not_promise() -> None:
    maker = a_task("a")
    scene = Scene(maker, wanted=["a"])
    scene.start(maker)
    scene.finish(maker, inline("a"), inline(extra(maker)))
    hand_over(scene.graph, scene.job, [ObjectId("a")])
    assert maker.id in scene.graph.tasks
    hand_over(scene.graph, scene.job, [ObjectId("a"), extra(maker)])
    assert not scene.graph.tasks


# --- processes that wait --------------------------------------------------------------------------


class Blocked(Scene):
    """A task that left a process at W1, and the continuation that it delegated its output to."""

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


def test_what_goes_on_with_a_process_can_run_where_that_waits() -> None:
    scene = Blocked()
    scene.said(runnable=["out", "out"])
    assert place_of(scene.graph, scene.node(scene.rest)) == {W1}
    assert forget_released(scene.graph) == {}


def test_a_process_that_is_lost_is_made_again_by_who_left_it() -> None:
    scene = Blocked()
    scene.start(scene.rest)
    scene.graph.requeue(scene.node(scene.rest))
    assert lose_location(scene.graph, W1) == [scene.process]
    assert not scene.graph.is_ready(scene.node(scene.rest))
    scene.block(W2)
    assert place_of(scene.graph, scene.node(scene.rest)) == {W2}
    assert scene.state(scene.rest) is TaskState.RUNNABLE


def test_a_task_that_did_not_wait_the_second_time_leaves_its_continuation_asleep() -> None:
    scene = Blocked()
    lose_location(scene.graph, W1)
    assert not scene.graph.is_ready(scene.node(scene.rest))
    scene.start(scene.first)
    scene.finish(scene.first, inline("out"))
    assert scene.state(scene.rest) is TaskState.DORMANT
    assert scene.ref("out") == inline("out")
    assert scene.ref(scene.process) == Future(scene.process)


@pytest.mark.parametrize("end", ["done", "failed", "cancelled", "asleep", "job over"])
def test_a_process_ends_with_who_goes_on_with_it(end: str) -> None:
    scene = Blocked()
    if end == "asleep":
        scene.unwant("out")
    elif end == "job over":
        scene.start(scene.rest)
        let_all_go(scene.graph, scene.job)
        assert forget_released(scene.graph) == {}
        scene.unwant("out")
        scene.graph.sleep(scene.node(scene.rest))
    elif end == "cancelled":
        cancel(scene.graph, scene.job, "the user said so")
    else:
        scene.start(scene.rest)
        assert forget_released(scene.graph) == {}
        if end == "done":
            scene.finish(scene.rest, inline("out"))
        else:
            scene.fail(scene.rest)
    assert forget_released(scene.graph) == {W1: [scene.process]}
    assert forget_released(scene.graph) == {}
    scene.graph.validate()


def test_a_process_that_nobody_goes_on_with_is_let_go_at_once() -> None:
    scene = Blocked()
    scene.graph.publish(stored("out", W2))  # it came otherwise
    assert scene.state(scene.rest) is TaskState.DORMANT
    assert forget_released(scene.graph) == {W1: [scene.process]}


# --- objects that grow ----------------------------------------------------------------------------


def streaming(length: int) -> tuple[Scene, list[TaskSpec]]:
    """Tasks that all run: each opened its output as a stream, and the next one reads it."""
    tasks = a_chain(length)
    scene = Scene(*tasks, wanted=[tasks[-1].outputs[0]])
    for task in tasks:
        scene.start(task)
        refs = [Stream(task.outputs[0], frozenset((W1,)))]
        open_streams(scene.graph, scene.node(task), refs)
    scene.graph.validate()
    scene.said(runnable=[task.outputs[0] for task in tasks])
    return scene, tasks


def test_a_reader_runs_while_what_it_reads_grows_and_its_maker_is_needed_for_it() -> None:
    scene, (maker, reader) = streaming(2)
    assert scene.graph.is_needed(scene.node(maker))
    assert scene.node(reader) in scene.graph.streams.reading
    scene.unwant("c1")
    scene.said(unneeded=["c1"])
    scene.graph.sleep(scene.node(reader))
    scene.said(unneeded=["c0"])


def test_a_reader_counts_when_all_it_reads_is_whole() -> None:
    one, two = a_task("one"), a_task("two")
    reader = a_task("both", inputs=["one", "two"])
    scene = Scene(one, two, reader, wanted=["both"])
    for task in (one, two):
        scene.start(task)
        scene.stream(task, task.outputs[0])
    scene.start(reader)
    scene.finish(one, stored("one", W1))
    assert scene.graph.whole == []
    scene.finish(two, inline("two"))
    assert scene.graph.whole == [scene.node(reader)]
    assert not scene.graph.streams.reading


@pytest.mark.parametrize("end", ["requeued", "lost", "not made"])
def test_readers_stop_and_wait_when_what_they_read_breaks(end: str) -> None:
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


def test_who_waits_for_more_counts_on_a_stream_too() -> None:
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


def test_a_maker_that_sleeps_breaks_its_streams() -> None:
    scene, (maker, reader) = streaming(2)
    scene.unwant("c1")
    scene.graph.sleep(scene.node(reader))
    scene.graph.sleep(scene.node(maker))
    assert scene.ref("c0") == Future(ObjectId("c0"))
    assert scene.follow() == []


def test_readers_of_what_failed_fail_unless_they_see_errors() -> None:
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


def test_a_stream_breaks_when_its_maker_delegates_it() -> None:
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


def test_only_its_maker_opens_a_stream() -> None:
    maker, other = a_chain(2)
    scene = Scene(maker, other, wanted=["c1"])
    scene.start(maker)
    scene.stream(maker, "c1")
    assert scene.ref("c1") == Future(ObjectId("c1"))


def test_an_upload_cannot_be_a_stream() -> None:
    scene = Scene(a_task("a", inputs=["upload"]), wanted=["a"])
    scene.upload(Stream(ObjectId("upload"), frozenset((W1,))))
    assert scene.ref("upload") == Future(ObjectId("upload"))


# --- choices --------------------------------------------------------------------------------------


def a_choice(*, sees_errors: bool = False) -> tuple[TaskSpec, TaskSpec, TaskSpec]:
    """Two tasks, and one that needs what either of them makes."""
    first = a_task("either", any_of=["a", "b"], sees_errors=sees_errors)
    return a_task("a"), a_task("b", ordinal=1), first


def given(scene: Scene, spec: TaskSpec) -> list[Reference]:
    return list(choices.given(scene.graph.objects, spec))


def test_one_that_is_there_is_enough_and_the_others_stay_wanted_until_the_end() -> None:
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


def test_who_chooses_waits_for_what_it_needs_as_any_task_does() -> None:
    both = a_task("both", inputs=["n"], any_of=["a", "b"])
    a, n = a_task("a"), a_task("n", ordinal=1)
    scene = Scene(a, n, both, wanted=["both"])
    scene.run(a)
    assert scene.state(both) is TaskState.WAITING
    scene.run(n)
    assert scene.state(both) is TaskState.RUNNABLE
    assert given(scene, both) == [stored("n", W1), stored("a", W1), Future(ObjectId("b"))]


def test_what_nobody_is_going_to_make_keeps_nobody_waiting() -> None:
    either = a_task("either", any_of=["nobody's", "a"])
    a = a_task("a")
    scene = Scene(either, a, wanted=["either"])
    scene.run(a)
    assert scene.state(either) is TaskState.RUNNABLE


def test_who_sees_errors_may_choose_one() -> None:
    a, b, either = a_choice(sees_errors=True)
    scene = Scene(a, b, either, wanted=["either"])
    scene.fail(a)
    assert scene.state(either) is TaskState.RUNNABLE
    assert given(scene, either) == [failed("a"), Future(ObjectId("b"))]
    assert scene.state(b) is TaskState.RUNNABLE


def test_who_sees_no_errors_chooses_another_and_fails_with_the_last() -> None:
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


def test_an_error_is_not_given_to_who_sees_none() -> None:
    a, b, either = a_choice()
    scene = Scene(a, b, either, wanted=["either"])
    scene.fail(a)
    scene.run(b)
    assert given(scene, either) == [Future(ObjectId("a")), stored("b", W1)]


def test_what_failed_and_is_made_after_all_can_be_chosen() -> None:
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


def test_a_choice_that_is_lost_before_the_task_runs_is_waited_for_again() -> None:
    a, b, either = a_choice()
    scene = Scene(a, b, either, wanted=["either"])
    scene.run(a)
    scene.lose("a")
    assert scene.state(a) is TaskState.RUNNABLE
    assert not scene.graph.is_ready(scene.node(either))
    scene.graph.validate()
    assert scene.state(either) is TaskState.WAITING
    scene.run(b)
    assert scene.graph.is_ready(scene.node(either))


def test_of_two_that_are_there_one_may_be_lost_and_is_made_again() -> None:
    a, b, either = a_choice()
    scene = Scene(a, b, either, wanted=["either"])
    scene.run(a, b)
    scene.lose("a")
    assert scene.graph.is_ready(scene.node(either))
    assert given(scene, either) == [Future(ObjectId("a")), stored("b", W1)]
    assert scene.state(a) is TaskState.RUNNABLE


def test_what_grows_cannot_be_chosen_and_is_given_as_a_future() -> None:
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


def test_a_growing_alternative_is_made_again_if_it_breaks() -> None:
    a, b, either = a_choice()
    scene = Scene(a, b, either, wanted=["either"])
    scene.start(a)
    scene.stream(a, "a")
    scene.graph.requeue(scene.node(a))
    assert scene.state(a) is TaskState.RUNNABLE
    scene.run(a)
    assert scene.state(either) is TaskState.RUNNABLE


@pytest.mark.parametrize("is_made", [False, True])
def test_nothing_is_made_for_a_choice_that_nobody_needs_any_more(is_made: bool) -> None:
    a, b, either = a_choice()
    scene = Scene(a, b, either, wanted=["either"])
    if is_made:
        scene.run(b)
    scene.unwant("either")
    assert scene.state(either) is scene.state(a) is TaskState.DORMANT
    scene.want("either")
    assert scene.state(a) is TaskState.RUNNABLE


def test_an_attempt_that_came_to_nothing_and_is_not_needed_lets_its_alternatives_sleep() -> None:
    a, b, either = a_choice()
    scene = Scene(a, b, either, wanted=["either"])
    scene.run(b)
    scene.start(either)
    scene.unwant("either")
    scene.graph.requeue(scene.node(either))
    scene.graph.validate()
    assert scene.state(either) is scene.state(a) is TaskState.DORMANT


def test_a_child_that_chooses_keeps_awake_what_its_parent_was_waiting_for() -> None:
    """So goes a script that selects in a loop: nothing stops between two steps of it."""
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
    cancel(scene.graph, scene.job, "enough")
    scene.graph.validate()
    assert scene.error("either").reason == "CANCELLED"
    assert not scene.graph.choosers.awaited
