"""Scenes with the master's machine: workers that end and are started again with their objects."""

from __future__ import annotations

from typing import Any

import pytest

from ciel.core.events import (
    RESTART_GRACE_S,
    AddTask,
    CloseJob,
    ObjectsStored,
    ReplicateObjects,
    StoreListed,
    StreamsOpened,
    SubmitJob,
    WantObjects,
    WorkerLeft,
)
from ciel.core.ids import ObjectId
from ciel.core.jobs import JobState
from ciel.core.refs import Failure, Fixed, Reference, Stream
from ciel.core.tasks import TaskSpec, TaskState
from ciel.master.service import worker_facts
from ciel.master.state import invariants
from ciel.master.state.workers import WorkerFacts
from ciel.testing.builders import JOB, a_job_spec, a_task, a_worker, place_of, stored
from ciel_tests.scenes.master import Cluster, ask, inputs_lost

PLACE = place_of("w1")
MAKER, READER = a_task("a"), a_task("b", inputs=["a"], ordinal=1)
A = stored("a", PLACE, size_bytes=5000)
UPLOAD = stored("upload:1", PLACE, size_bytes=5000)


def a_life(worker: str, *, at: str = "w1", spool: str = "spool1") -> WorkerFacts:
    """A worker with a work directory. Another life of it has the same directory."""
    facts = a_worker(worker, netloc=place_of(at))
    return facts._replace(spool=spool, keeps_objects=True)


class Scene(Cluster):
    """A cluster whose tables are checked after each step."""

    def end_turn(self) -> None:
        super().end_turn()
        assert list(invariants.problems(self.machine)) == []

    def lists(self, worker: str, *refs: Reference) -> None:
        """A worker that has joined reports all its objects."""
        self.worker_says(worker, ObjectsStored(refs, kept=True), StoreListed())

    def wants_b(self) -> None:
        """The client adds the task that reads the object a."""
        self.says(AddTask(READER, ()), WantObjects(JOB, READER.outputs))

    def has_a(self) -> bool:
        return self.machine.graph.objects.reference(ObjectId("a")) == A


def a_scene() -> Scene:
    """The worker w1 has made the object a; w2 has no work directory."""
    scene = Scene(a_life("w1"), a_worker("w2"))
    scene.job(MAKER, want=["a"], open=True)
    scene.done("w1", MAKER, A)
    scene.said("w1: run a", "client: a is there")
    return scene


def test_objects_of_a_worker_that_is_started_again_are_not_recomputed() -> None:
    scene = a_scene()
    scene.loses("w1")
    scene.wants_b()
    scene.passes(RESTART_GRACE_S - 0.1)
    scene.said()
    reason = scene.machine.graph.tasks[READER.id].reason
    assert reason == f"only the worker at {PLACE} has a: it has ended, and may come back"
    scene.joins(a_life("w1b"))
    scene.said()  # the worker has not said yet that it has the object
    scene.lists("w1b", A)
    scene.said("w1b: run b")
    scene.passes(10 * RESTART_GRACE_S)
    scene.said()
    assert scene.has_a()


def test_they_are_recomputed_after_a_grace_time() -> None:
    scene = a_scene()
    scene.loses("w1")
    scene.wants_b()
    scene.passes(RESTART_GRACE_S)
    scene.said("w2: run a again (2)")
    assert not scene.machine.context.table.suspects


def test_objects_that_it_does_not_list_are_lost_at_once() -> None:
    scene = a_scene()
    scene.loses("w1")
    scene.wants_b()
    scene.joins(a_life("w1b"))
    scene.lists("w1b")
    (order,) = scene.lines()
    assert order.endswith(": run a again (2)")


def test_its_attempts_run_again_at_once_and_other_tasks_go_on() -> None:
    scene = a_scene()
    pair = [a_task("c", ordinal=2), a_task("d", ordinal=3)]
    scene.says(
        *[AddTask(task, ()) for task in pair], WantObjects(JOB, (ObjectId("c"), ObjectId("d")))
    )
    nodes = scene.machine.graph.tasks
    pair.sort(key=lambda task: str(nodes[task.id].worker))
    assert [nodes[task.id].worker for task in pair] == ["w1", "w2"]
    scene.lines()
    scene.loses("w1")
    scene.wants_b()  # it waits
    scene.done("w2", pair[1])
    scene.done("w2", pair[0], attempt=2)
    assert [scene.state(task) for task in pair] == [TaskState.DONE, TaskState.DONE]
    assert scene.state(READER) is TaskState.RUNNABLE


def test_a_worker_without_a_work_directory_is_not_awaited() -> None:
    scene = Scene(a_life("w1")._replace(keeps_objects=False), a_worker("w2"))
    scene.job(MAKER, want=["a"], open=True)
    scene.done("w1", MAKER, A)
    scene.lines()
    scene.loses("w1")
    scene.said("w2: run a again (2)")


def test_a_worker_that_left_or_was_silent_is_not_awaited() -> None:
    scene = a_scene()
    scene.machine.worker_lost("w1", "it left", scene.now_s)
    scene.end_turn()
    scene.said("w2: run a again (2)")


def test_a_reader_that_finds_no_worker_waits_for_it() -> None:
    """Its host refuses the connection, which is not a loss of the object."""
    reader = a_task("b", inputs=["a"], ordinal=1, slots=2)
    scene = Scene(a_life("w1"), a_worker("w2", slots=2))
    scene.job(MAKER, want=["a"], open=True)
    maker_at = str(scene.machine.graph.tasks[MAKER.id].worker)
    scene.done(maker_at, MAKER, A)
    scene.says(AddTask(reader, ()), WantObjects(JOB, reader.outputs))
    assert "w2: run b" in scene.lines()
    scene.loses("w1")
    scene.worker_says("w2", inputs_lost(reader, PLACE))
    scene.said()
    assert scene.has_a()
    scene.joins(a_life("w1b"))
    scene.worker_says("w2", inputs_lost(reader, PLACE))  # of an attempt that has ended
    scene.said()
    scene.lists("w1b", A)
    scene.said("w2: run b again (2)")


def test_a_worker_that_ends_again_before_it_lists_its_objects_gets_no_more_time() -> None:
    scene = a_scene()
    scene.loses("w1")
    scene.passes(RESTART_GRACE_S / 2)
    scene.joins(a_life("w1b"))
    scene.loses("w1b")
    scene.said()
    scene.passes(RESTART_GRACE_S / 2)
    scene.said("w2: run a again (2)")


def test_a_worker_that_lists_its_objects_in_time_is_awaited_again_when_it_ends() -> None:
    scene = a_scene()
    for life in range(3):
        scene.loses("w1" if life == 0 else f"life{life}")
        scene.passes(RESTART_GRACE_S - 0.1)
        scene.joins(a_life(f"life{life + 1}"))
        scene.lists(f"life{life + 1}", A)
    scene.said()
    assert scene.has_a()


def test_a_worker_that_lists_its_objects_slowly_is_waited_for() -> None:
    scene = a_scene()
    scene.loses("w1")
    scene.joins(a_life("w1b"))
    scene.passes(3 * RESTART_GRACE_S)
    scene.said()
    scene.lists("w1b", A)
    assert scene.has_a()


def test_a_worker_that_is_started_again_elsewhere_does_not_delay_recomputing() -> None:
    scene = a_scene()
    scene.loses("w1")
    scene.joins(a_life("w1b", at="w9"))
    (order,) = scene.lines()
    assert order.endswith(": run a again (2)")


def test_a_worker_that_replaces_one_that_still_counts_as_alive_keeps_its_objects() -> None:
    """It has joined before the master noticed the death."""
    scene = a_scene()
    scene.joins(a_life("w1b"))
    scene.lists("w1b", A)
    scene.said()
    assert list(scene.machine.workers) == ["w2", "w1b"]
    assert scene.has_a()


def test_an_upload_survives_a_restart_of_the_only_worker() -> None:
    """Without any worker, no time would be saved by giving up."""
    scene = Scene(a_life("w1"))
    reader = a_task("b", inputs=["upload:1"])
    scene.says(SubmitJob(a_job_spec()), AddTask(reader, (UPLOAD,)))
    scene.says(WantObjects(JOB, reader.outputs), CloseJob(JOB))
    scene.said("w1: run b")
    scene.loses("w1")
    scene.passes(10 * RESTART_GRACE_S, "nobody")
    scene.said()
    scene.joins(a_life("w1b"))
    scene.lists("w1b", UPLOAD)
    scene.said("w1b: run b again (2)")


def test_an_upload_is_lost_after_the_grace_time() -> None:
    scene = Scene(a_life("w1"), a_worker("w2"))
    reader = a_task("b", inputs=["upload:1"])
    scene.says(SubmitJob(a_job_spec()), AddTask(reader, (UPLOAD,)))
    scene.says(WantObjects(JOB, reader.outputs), CloseJob(JOB))
    scene.loses("w1")
    assert scene.job_of().state is JobState.ACTIVE
    scene.passes(RESTART_GRACE_S)
    assert isinstance(scene.machine.graph.objects.reference(ObjectId("b")), Failure)


def test_a_master_that_restarts_waits_for_it_too() -> None:
    """The journal says that it left when nothing is expected of it any more."""
    scene = a_scene()
    journal = scene.machine.journal
    scene.loses("w1")
    assert WorkerLeft("w1") not in journal
    scene.joins(a_life("w1b"))
    scene.lists("w1b", A)
    assert WorkerLeft("w1") in journal
    scene.loses("w1b")
    scene.joins(a_life("w1c"))
    scene.loses("w1c")
    assert [WorkerLeft("w1b") in journal, WorkerLeft("w1c") in journal] == [True, False]
    scene.passes(RESTART_GRACE_S)
    assert journal.count(WorkerLeft("w1c")) == 1


def test_a_process_that_waits_on_it_is_lost_at_once() -> None:
    scene = Scene(a_life("w1"), a_worker("w2"))
    scene.job(MAKER, want=["a"], open=True)
    scene.done("w1", MAKER, Fixed(ObjectId("a"), PLACE))
    scene.lines()
    scene.loses("w1")
    scene.said("w2: run a again (2)")


def test_its_objects_are_copied_only_if_it_does_not_come_back() -> None:
    scene = Scene(a_life("w1"), a_worker("w2"), a_worker("w3"))
    for worker in ("w1", "w2", "w3"):
        scene.lists(worker)
    both = stored("upload:1", PLACE, place_of("w2"), size_bytes=5000)
    scene.says(SubmitJob(a_job_spec()._replace(open=True)), ReplicateObjects(JOB, 2, (both,)))
    scene.lines()
    scene.loses("w1")
    scene.said()
    scene.joins(a_life("w1b"))
    scene.lists("w1b", UPLOAD)
    scene.said()
    scene.loses("w1b")
    scene.passes(RESTART_GRACE_S)
    scene.said("w3: copy upload:1")


def test_many_objects_are_given_up_in_slices() -> None:
    scene = a_scene()
    scene.machine.bulk.steps_per_tick = 3
    tasks = [a_task(f"m{n}", ordinal=n + 10) for n in range(20)]
    scene.says(*[AddTask(task, ()) for task in tasks])
    scene.says(WantObjects(JOB, tuple([task.outputs[0] for task in tasks])))
    finish(scene, tasks)
    scene.lines()
    scene.loses("w1")
    assert not scene.lines()
    scene.passes(RESTART_GRACE_S)
    held = scene.machine.graph.objects.held_at
    assert scene.machine.has_more
    assert PLACE in scene.machine.context.table.suspects
    while scene.machine.has_more:
        scene.end_turn()
    assert not held(PLACE)
    assert PLACE not in scene.machine.context.table.suspects


def finish(scene: Scene, tasks: list[TaskSpec]) -> None:
    """The workers run tasks; all results are on w1."""
    graph = scene.machine.graph
    while any(graph.tasks[task.id].state is not TaskState.DONE for task in tasks):
        for task in tasks:
            node = graph.tasks[task.id]
            if node.state is TaskState.ASSIGNED and node.worker is not None:
                scene.done(node.worker, task, stored(task.outputs[0], PLACE, size_bytes=5000))


@pytest.mark.parametrize("value", ["yes", 1, None])
def test_a_worker_says_by_true_or_false_whether_it_keeps_its_objects(value: Any) -> None:
    about = {"worker": "w1", "netloc": "host1:9001", "host": "h", "slots": 1, "executors": []}
    assert not worker_facts(about).keeps_objects
    assert worker_facts(about | {"keeps_objects": True}).keeps_objects
    with pytest.raises(ValueError, match="keeps_objects must be true or false"):
        worker_facts(about | {"keeps_objects": value})


def test_the_status_of_copies_counts_only_workers_that_are_there() -> None:
    scene = Scene(a_life("w1"), a_worker("w2"))
    both = stored("upload:1", PLACE, place_of("w2"), size_bytes=5000)
    scene.says(SubmitJob(a_job_spec()._replace(open=True)), ReplicateObjects(JOB, 2, (both,)))
    scene.loses("w1")
    assert ask(scene, "object", object="upload:1")["copies"]["there"] == 1


def test_a_stream_on_it_breaks_at_once() -> None:
    scene = Scene(a_life("w1"), a_worker("w2"))
    scene.job(MAKER, want=["a"], open=True)
    here = frozenset((PLACE,))
    scene.worker_says("w1", StreamsOpened(MAKER.id, 1, (Stream(ObjectId("a"), here),)))
    scene.lines()
    scene.loses("w1")
    scene.said("w2: run a again (2)")
