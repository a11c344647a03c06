"""Tests what the master sends to observers: task output, counts by kind, and the timeline."""

from __future__ import annotations

from contextlib import suppress
from typing import Any
from unittest import mock

import pytest

from ciel.core.errors import CielError
from ciel.core.events import (
    AddTask,
    JobPrinted,
    ObjectSettled,
    SpawnTask,
    SubmitJob,
    TaskFault,
    TaskPrinted,
    TaskReported,
    WantObjects,
    WatchJob,
)
from ciel.core.graph.nodes import TaskNode
from ciel.core.ids import JobId, ObjectId
from ciel.core.jobs import Job, Kind
from ciel.core.tasks import TaskSpec, TaskState
from ciel.master.state import timeline
from ciel.master.state.machine import MasterMachine
from ciel.master.state.queries import topics
from ciel.master.state.queries.topics import UnknownQueryError
from ciel.testing.builders import JOB, a_job_spec, a_task, a_worker, inline, place_of

LISTENER, WATCHER = "listener", "watcher"


class Scene:
    """A machine with a job, a worker of one slot, and two clients, of which one subscribes to
    output.
    """

    def __init__(self) -> None:
        self.now_s = 100.0
        self.machine = MasterMachine()
        self.machine.worker_joined(a_worker("w1", slots=1), self.now_s)
        self.machine.client_sent(LISTENER, SubmitJob(a_job_spec()), self.now_s)
        self.machine.client_sent(LISTENER, WatchJob(JobId(JOB), prints=True), self.now_s)
        self.machine.client_sent(WATCHER, WatchJob(JobId(JOB)), self.now_s)
        self.end_turn()

    def end_turn(self) -> None:
        self.machine.end_tick(self.now_s)

    def adds(self, *tasks: TaskSpec) -> None:
        for task in tasks:
            self.machine.client_sent(LISTENER, AddTask(task, ()), self.now_s)
            wanted = (ObjectId(task.outputs[0]),)
            self.machine.client_sent(LISTENER, WantObjects(JobId(JOB), wanted), self.now_s)
        self.end_turn()

    def says(self, *messages: Any) -> None:
        for message in messages:
            self.machine.worker_sent("w1", message, self.now_s)
        self.end_turn()

    def done(self, task: TaskSpec, run_s: float = 0.5, attempt: int = 1) -> TaskReported:
        return TaskReported(task.id, attempt, (inline(task.outputs[0]),), None, run_s)

    def asks(self, topic: str, **argument: Any) -> Any:
        return topics.answer(self.machine, topic, {"job": JOB, **argument}, self.now_s)


@pytest.fixture
def scene() -> Scene:
    return Scene()


# --- task output ----------------------------------------------------------------------------------


def test_output_reaches_subscribers_before_the_result_of_its_task(scene: Scene) -> None:
    task = a_task("a", name="f")
    scene.adds(task)
    scene.machine.outbox.clear()
    scene.says(TaskPrinted(task.id, 1, 10, 5, "hi\n"), scene.done(task))
    told = [message for peer, message in scene.machine.outbox if peer == LISTENER]
    assert told[0] == JobPrinted(JobId(JOB), task.id, "f", 1, place_of("w1"), 10, 5, "hi\n")
    assert [type(message) for message in told[1:]] == [ObjectSettled]
    assert not [m for peer, m in scene.machine.outbox if peer == WATCHER and type(m) is JobPrinted]


def test_output_of_a_child_has_no_task_number(scene: Scene) -> None:
    parent = a_task("a")
    child = a_task("b", parent=parent, name="child")
    scene.adds(parent)
    scene.machine.outbox.clear()
    scene.says(SpawnTask(child, (), 1), TaskPrinted(child.id, 1, 0, 3, "x\n"))
    (printed,) = [m for _, m in scene.machine.outbox if type(m) is JobPrinted]
    assert (printed.name, printed.number) == ("child", 0)


def test_output_of_an_unknown_task_is_dropped(scene: Scene) -> None:
    scene.says(TaskPrinted(a_task("never").id, 1, 0, 3, "x\n"))
    assert not [m for _, m in scene.machine.outbox if type(m) is JobPrinted]


def test_a_client_that_watches_again_stays_subscribed(scene: Scene) -> None:
    scene.machine.client_sent(LISTENER, WatchJob(JobId(JOB)), scene.now_s)
    task = a_task("a")
    scene.adds(task)
    scene.says(TaskPrinted(task.id, 1, 0, 3, "x\n"))
    assert [peer for peer, m in scene.machine.outbox if type(m) is JobPrinted] == [LISTENER]


# --- kinds ----------------------------------------------------------------------------------------


def test_tasks_are_counted_by_kind_from_the_first_query_on(scene: Scene) -> None:
    first, second, element = a_task("a", name="f"), a_task("b", name="f"), a_task("c", name="17")
    scene.adds(first, second, element)
    f = {"name": "f", "executor": "stdinout", "spawned": False}
    elements = {**f, "name": ""}
    assigned = {"assigned": 2}
    told = scene.asks("progress")["kinds"]
    assert told[0] | {"counts": assigned} == {**f, "counts": assigned, "running": 1}
    assert sum(sum(kind["counts"].values()) for kind in told) == 3
    assert sum(kind["running"] for kind in told) == 1  # the worker has one slot
    child = a_task("d", parent=first, name="g")
    scene.says(SpawnTask(child, (), 1), scene.done(first))
    told = {
        (kind["name"], kind["spawned"]): kind["counts"] for kind in scene.asks("progress")["kinds"]
    }
    assert told["f", False]["done"] == 1
    assert told["g", True] == {"dormant": 1}
    assert elements["name"] in {name for name, _ in told}


def test_counts_by_kind_add_up_to_the_counts() -> None:
    job = Job(a_job_spec(), 1, 0.0)
    assert job.count_by_kind({}, 1)
    a, b = a_task("a", name="f"), a_task("b", name="g")
    for spec in (a, b):
        job.count(spec, None, TaskState.DORMANT)
        job.count(spec, TaskState.DORMANT, TaskState.RUNNABLE)
    job.count(a, TaskState.RUNNABLE, TaskState.ASSIGNED)
    assert job.by_kind is not None
    for state in TaskState:
        assert sum(counts[state] for counts in job.by_kind.values()) == job.counts[state]


def nodes_of(job: Job, specs: list[TaskSpec]) -> dict[str, TaskNode]:
    """Give a job tasks that are counted, but not by kind."""
    job.tasks = [spec.id for spec in specs]
    for spec in specs:
        job.count(spec, None, TaskState.DORMANT)
    return {spec.id: TaskNode(spec, job) for spec in specs}


def test_counts_by_kind_are_right_while_they_are_taken_in_parts() -> None:
    job = Job(a_job_spec(), 1, 0.0)
    specs = [a_task(f"t{n}", name="f") for n in range(5)]
    tasks = nodes_of(job, specs)

    def move(spec: TaskSpec) -> None:
        job.count(spec, TaskState.DORMANT, TaskState.RUNNABLE)
        tasks[spec.id].state = TaskState.RUNNABLE

    assert not job.count_by_kind(tasks, 2)
    move(specs[0])  # is counted by kind already
    move(specs[4])  # is not counted by kind yet
    new = a_task("new", name="f")
    job.tasks.append(new.id)
    job.count(new, None, TaskState.DORMANT)
    tasks[new.id] = TaskNode(new, job)
    assert not job.count_by_kind(tasks, 2)
    assert job.count_by_kind(tasks, 2)
    move(specs[1])
    move(new)
    assert job.by_kind == {Kind("f", "stdinout", False): job.counts}
    assert job.count_by_kind(tasks, 2)


def test_names_beyond_the_limit_share_one_kind() -> None:
    job = Job(a_job_spec(), 1, 0.0)
    specs = [a_task(f"t{n}", name=f"name {n}") for n in range(5)]
    with mock.patch("ciel.core.jobs.KINDS_MAX", 3):
        job.count_by_kind(nodes_of(job, specs), 10)
    assert job.by_kind is not None
    assert {kind.name: counts[TaskState.DORMANT] for kind, counts in job.by_kind.items()} == {
        "name 0": 1, "name 1": 1, "name 2": 1, "": 2,
    }  # fmt: skip
    assert Kind.of(specs[0]) == Kind("name 0", "stdinout", False)


# --- the timeline ---------------------------------------------------------------------------------


def spans(told: dict[str, Any]) -> list[dict[str, Any]]:
    return [dict(zip(told["fields"], span, strict=True)) for span in told["spans"]]


def test_a_span_contains_when_a_task_was_ready_assigned_and_ended(scene: Scene) -> None:
    first, second = a_task("a", name="f"), a_task("b", name="g")
    scene.adds(first, second)
    scene.now_s = 103.0
    fault = TaskFault("RUNTIME_EXCEPTION", "no")
    scene.says(scene.done(first, 2.5), TaskReported(second.id, 1, (), fault, 0.25))
    told = scene.asks("trace", jobs=[JOB], first=0)
    assert told["next"] is None
    assert told["slots"] == {"w1": 1}
    one, other = spans(told)
    assert one == {
        "job": JOB, "task": first.id, "name": "f", "executor": "stdinout", "parent": "",
        "attempt": 1, "worker": "w1", "slots": 1, "ready_at_s": 100.0, "given_at_s": 100.0,
        "ended_at_s": 103.0, "run_s": 2.5, "fault": "",
    }  # fmt: skip
    assert (other["name"], other["fault"]) == ("g", "RUNTIME_EXCEPTION")


def test_running_tasks_come_last_and_other_jobs_are_left_out(scene: Scene) -> None:
    task = a_task("a")
    scene.adds(task)
    scene.now_s = 101.5
    (span,) = spans(scene.asks("trace", jobs=[JOB], first=0))
    assert (span["task"], span["ended_at_s"], span["run_s"]) == (task.id, None, 1.5)
    assert scene.asks("trace", jobs=["other"], first=0)["spans"] == []
    assert scene.asks("trace", first=None) == {"spans": [], "next": 0}


def test_the_timeline_contains_tasks_of_a_lost_worker(scene: Scene) -> None:
    task = a_task("a")
    scene.adds(task)
    scene.machine.worker_lost("w1", "its cable", 102.0)
    (span,) = spans(scene.asks("trace", jobs=[JOB], first=0))
    assert (span["fault"], span["run_s"], span["worker"]) == ("WORKER_LOST", 2.0, "w1")


def test_old_spans_are_dropped_and_pages_name_the_next_position(scene: Scene) -> None:
    tasks = [a_task(f"t{n}") for n in range(6)]
    with mock.patch.object(timeline, "SPANS_MAX", 4), mock.patch.object(timeline, "PAGE_MAX", 3):
        scene.machine.timeline = scene.machine.attempts.timeline = timeline.Timeline()
        for task in tasks:
            scene.adds(task)
            scene.says(scene.done(task))
        first = scene.asks("trace", jobs=[JOB], first=1)
        assert ([span["task"] for span in spans(first)], first["next"], first["lost"]) == (
            [task.id for task in tasks[2:5]], 5, 1,
        )  # fmt: skip
        rest = scene.asks("trace", jobs=[JOB], first=5)
    assert ([span["task"] for span in spans(rest)], rest["next"]) == ([tasks[5].id], None)


def test_a_task_can_be_found_by_its_output(scene: Scene) -> None:
    task = a_task("a", name="f")
    scene.adds(task)
    told = topics.answer(scene.machine, "task", {"object": task.outputs[0]}, scene.now_s)
    assert (told["task"], told["runs"]) == (task.id, True)
    for unknown in ("b", None, 7):
        with pytest.raises(UnknownQueryError, match="the master knows no task that produces"):
            topics.answer(scene.machine, "task", {"object": unknown}, scene.now_s)


def test_a_task_that_waits_for_slots_is_not_overtaken(scene: Scene) -> None:
    scene.machine.worker_joined(a_worker("w1", slots=2), scene.now_s)
    small, large, other = a_task("a"), a_task("b", slots=2), a_task("c")
    scene.adds(small, large, other)
    worker = scene.machine.workers["w1"]
    assert len(worker.assigned) == 3
    assert [task.spec.id for task in worker.running_tasks()] == [small.id]
    told = scene.asks("task", task=large.id)
    assert (told["state"], told["runs"]) == ("assigned", False)
    assert told["why"][0].endswith("as attempt 1, and is queued there")


ODD: tuple[Any, ...] = (
    None, 5, -1, 2.5, True, "x", "last", "9" * 200, 10**400, [], [1], ["a", []], [-1, -1],
    [0, 10**300], {}, {"a": 1},
)  # fmt: skip
TOPICS = (
    "status", "workers", "stores", "jobs", "job", "results", "tasks", "progress", "graph", "task",
    "trace", "object", "objects",
)  # fmt: skip
KEYS = (
    "job", "first", "limit", "last", "state", "elements", "task", "object", "kept", "jobs"
)  # fmt: skip


@pytest.mark.parametrize("topic", TOPICS)
def test_every_query_is_answered_or_refused(scene: Scene, topic: str) -> None:
    task = a_task("a")
    scene.adds(task)
    scene.says(scene.done(task))
    usual = {"job": JOB, "task": task.id, "jobs": [JOB], "first": 0}
    for value in ODD:
        for argument in (value, dict.fromkeys(KEYS, value), *({**usual, k: value} for k in KEYS)):
            with suppress(CielError):
                topics.answer(scene.machine, topic, argument, scene.now_s)
