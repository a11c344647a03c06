"""Tests the explanation why a task runs, waits, or does not run, for every state and reason.
tests/stories covers the commands that show it.
"""

from __future__ import annotations

from typing import Any

import pytest

from ciel.core.events import (
    AddTask,
    CloseJob,
    DiskQueued,
    InputsLost,
    SpawnTask,
    StoresReported,
    StreamsOpened,
    SubmitJob,
    TaskFault,
    TaskReported,
    WantObjects,
)
from ciel.core.history import EVENTS_MAX, TEXT_MAX_LENGTH
from ciel.core.ids import JobId, ObjectId
from ciel.core.refs import Reference, Stream
from ciel.core.tasks import RETRIES_MAX, TaskSpec
from ciel.master.state.machine import MasterMachine
from ciel.master.state.queries import topics
from ciel.testing.builders import JOB, a_job_spec, a_task, a_worker, inline, place_of, stored


class Told:
    """A machine with a job and workers that explains its tasks."""

    def __init__(
        self, *tasks: TaskSpec, want: str = "", known: tuple[Reference, ...] = (),
        workers: int = 1, slots: int = 1, is_closed: bool = False,
    ) -> None:  # fmt: skip
        self.now_s = 100.0
        self.machine = machine = MasterMachine()
        for number in range(workers):
            machine.worker_joined(a_worker(f"w{number + 1}", slots=slots), self.now_s)
        machine.client_sent("c", SubmitJob(a_job_spec()), self.now_s)
        for task in tasks:
            machine.client_sent("c", AddTask(task, known), self.now_s)
        wanted = tuple([ObjectId(name) for name in want.split()])
        machine.client_sent("c", WantObjects(JobId(JOB), wanted), self.now_s)
        if is_closed:
            machine.client_sent("c", CloseJob(JobId(JOB)), self.now_s)
        machine.end_tick(self.now_s)

    def hears(self, *messages: Any, worker: str = "w1") -> None:
        for message in messages:
            self.machine.worker_sent(worker, message, self.now_s)
        self.machine.end_tick(self.now_s)

    def reports(self, task: TaskSpec, *published: Reference, reason: str = "") -> None:
        """Report the current attempt of a task from its worker."""
        node = self.machine.graph.tasks[task.id]
        assert node.worker is not None
        fault = TaskFault(reason, "no luck") if reason else None
        self.hears(TaskReported(task.id, node.attempt, published, fault, 0.1), worker=node.worker)

    def of(self, name: str) -> dict[str, Any]:
        asked = {"job": "last", "task": name}
        told: dict[str, Any] = topics.answer(self.machine, "task", asked, self.now_s)
        return told

    def why(self, name: str) -> list[str]:
        told: list[str] = self.of(name)["why"]
        return told


def test_a_running_task_names_its_worker_and_start() -> None:
    told = Told(a_task("a", name="first"), want="a")
    told.now_s += 2.5
    assert told.of("first")["runs"]
    assert told.why("first") == ["it runs on worker w1, as attempt 1; assigned 2.5 s ago"]


def test_a_task_queued_at_a_worker_says_what_occupies_the_slots() -> None:
    tasks = [a_task(f"t{n}", name=f"n{n}", ordinal=n) for n in range(2)]
    told = Told(*tasks, want="t0 t1")
    assert told.why("n1") == [
        "it was assigned to worker w1 as attempt 1, and is queued there",
        "worker w1: 1 of 1 slots taken, 1 more queued",
    ]


def test_a_task_whose_input_is_being_fetched_names_it_and_its_source() -> None:
    away = stored("words", "w9:1", size_bytes=3 << 20)
    told = Told(a_task("a", inputs=["words"], name="count"), want="a", known=(away,))
    assert not told.of("count")["runs"]
    first, *_, last = told.why("count")
    assert first == "it was assigned to worker w1 as attempt 1, and is queued there"
    assert last == "the worker fetches words, 3 MiB, from w9:1"


@pytest.mark.parametrize(
    "host, ways",
    [
        ("host of w1", "a link to the file of w2:8001, a copy by HTTP from w2:8001"),
        ("host of w2", "a copy by HTTP from w2:8001"),
    ],
)
def test_the_ways_to_fetch_an_input_are_listed_in_their_order(host: str, ways: str) -> None:
    away = stored("words", "w2:8001", size_bytes=3 << 20)
    told = Told(a_task("a", inputs=["words"], name="count"), want="a", known=(away,))
    told.machine.worker_joined(a_worker("w2", host=host), told.now_s)
    assert told.why("count")[-1] == f"the worker tries, in this order: {ways}"


def test_a_waiting_task_names_its_producer_and_eager_dispatch() -> None:
    first = a_task("a", name="first")
    told = Told(first, a_task("b", inputs=["a"], name="second"), want="b")
    assert told.why("second") == [
        "it waits for a, produced by task first, which runs on worker w1",
        "it was dispatched eagerly to worker w1, and starts there as soon as it can",
    ]


def test_a_task_whose_input_has_no_producer_says_so() -> None:
    told = Told(a_task("a", inputs=["words"], name="count"), want="a")
    assert told.why("count") == ["it waits for words, which no task produces yet"]


def test_a_task_on_a_worker_with_a_full_store_says_so() -> None:
    told = Told(a_task("a", name="large"), want="a")
    level = {"name": "disk", "capacity_bytes": 100 << 20, "used_bytes": 99 << 20}
    told.hears(StoresReported((level,), 0))
    assert told.why("large")[1:] == [
        "the store of worker w1 is full (99 MiB of 100 MiB in disk): writers wait until "
        "there is space, or fail"
    ]


def test_a_task_that_waits_for_a_disk_names_the_bytes_and_time() -> None:
    tasks = [a_task(f"t{n}", name=f"n{n}", ordinal=n) for n in range(2)]
    told = Told(*tasks, want="t0 t1")
    told.hears(DiskQueued(3 << 30, 20.0))
    assert told.why("n1")[1].endswith("3 GiB queued for its disk (about 20 s)")


def test_a_task_whose_report_is_held_names_its_growing_input_and_the_producer() -> None:
    maker, reader = a_task("a", name="maker"), a_task("b", inputs=["a"], name="reader")
    told = Told(maker, reader, want="a b", slots=2)
    told.hears(StreamsOpened(maker.id, 1, (Stream(ObjectId("a"), frozenset(("w1:1",))),)))
    told.reports(reader, inline("b"))
    assert told.of("reader")["state"] == "assigned"
    assert told.why("reader")[0].endswith(
        "succeeded on worker w1; its report is held until a is complete, produced by task maker, "
        "which runs on worker w1"
    )


def test_a_task_that_delegated_its_output_names_the_child() -> None:
    parent = a_task("result", name="parent")
    told = Told(parent, want="result", slots=2)
    child = a_task("result", parent=parent, name="child")
    told.hears(SpawnTask(child, (), 1))
    told.reports(parent)
    assert told.why("parent") == [
        "it succeeded at attempt 1",
        "result was delegated to task child, which runs on worker w1",
    ]


def test_a_task_that_delegated_its_output_to_a_task_of_its_name_shows_the_id() -> None:
    parent = a_task("result", name="my.sw")
    told = Told(parent, want="result", slots=2)
    child = a_task("result", parent=parent, name="my.sw")
    told.hears(SpawnTask(child, (), 1))
    told.reports(parent)
    assert told.why(parent.id)[1] == (
        f"result was delegated to task my.sw ({child.id}), which runs on worker w1"
    )


def test_a_task_that_left_out_an_output_says_so() -> None:
    told = Told(a_task("a", "b", name="half"), want="a b")
    told.reports(told.machine.graph.tasks[next(iter(told.machine.graph.tasks))].spec, inline("a"))
    first, second = told.why("half")
    assert first == "it succeeded at attempt 1"
    assert second.startswith("NO_OUTPUT: task half succeeded, but did not produce output 1 of 2: ")


def test_a_task_that_failed_by_its_input_names_the_task_that_failed_first() -> None:
    first = a_task("a", name="fetch")
    others = (a_task("b", inputs=["a"], name="sort"), a_task("c", inputs=["b"], name="count"))
    told = Told(first, *others, want="c")
    told.reports(first, reason="RUNTIME_EXCEPTION")
    assert told.why("fetch") == ["RUNTIME_EXCEPTION: no luck"]
    assert told.why("count") == [
        "DEPENDENCY_FAILED: task fetch failed (RUNTIME_EXCEPTION): no luck\n"
        "tasks that read its output a cannot run"
    ]


def test_the_history_contains_failures_before_a_users_retry() -> None:
    task = a_task("a", name="once")
    told = Told(task, want="a", is_closed=True)
    told.reports(task, reason="RUNTIME_EXCEPTION")
    assert told.of("once")["story"] == []  # the reason of the failure contains it
    told.machine.retry_job(next(iter(told.machine.jobs.values())), told.now_s)
    told.machine.end_tick(told.now_s)
    assert told.of("once")["story"] == [
        "0.0 s ago: attempt 1 failed: RUNTIME_EXCEPTION: no luck",
        "0.0 s ago: its user retried it",
    ]


def test_the_history_contains_inputs_that_could_not_be_fetched() -> None:
    made = stored("words", place_of("w1"), size_bytes=5000)
    task = a_task("a", inputs=["words"], name="count")
    told = Told(task, want="a", known=(made,))
    told.hears(InputsLost(task.id, 1, ((ObjectId("words"), place_of("w1")),), "it is damaged"))
    story = told.of("count")["story"]
    assert story == ["0.0 s ago: attempt 1 could not get its inputs: it is damaged"]


def test_a_task_retried_a_thousand_times_has_a_short_history() -> None:
    task = a_task("a", name="stubborn", retries=RETRIES_MAX)
    told = Told(task, want="a")
    for attempt in range(1, RETRIES_MAX + 2):
        fault = TaskFault("RUNTIME_EXCEPTION", f"attempt {attempt}: {'x' * 10_000}")
        told.hears(TaskReported(task.id, attempt, (), fault, 0.1))
        told.now_s += 60.0
        told.machine.end_tick(told.now_s)
    assert told.of("stubborn")["state"] == "failed"
    story = told.of("stubborn")["story"]
    assert len(story) == EVENTS_MAX + 1
    assert "attempt 1 failed on worker w1" in story[0]
    assert f"({RETRIES_MAX + 1 - EVENTS_MAX} more)" in story
    assert f"attempt {RETRIES_MAX + 1} failed on worker w1" in story[-1]
    assert max(map(len, story)) < TEXT_MAX_LENGTH + 40


def test_a_task_that_is_about_to_be_placed_is_queued_for_a_worker() -> None:
    told = Told(a_task("a", name="first"), a_task("b", name="second", ordinal=1), want="a b")
    # before the end of the event-loop iteration
    told.machine.worker_joined(a_worker("w2", slots=2), told.now_s)
    told.machine.worker_lost("w1", "it was killed", told.now_s)
    first, *workers = told.why("first")
    assert first == "it can run, and is queued for a worker that has room:"
    assert workers[0] == "worker w2: 0 of 2 slots taken, 0 more queued"
