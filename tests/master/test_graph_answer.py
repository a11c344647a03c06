"""Tests the query for the graph of a job, which the master answers in pages."""

from __future__ import annotations

from typing import Any

import pytest

from ciel.core.events import (
    AddTask,
    ReleaseObjects,
    SpawnTask,
    SubmitJob,
    TaskFault,
    TaskReported,
    WantObjects,
)
from ciel.core.ids import JobId, ObjectId
from ciel.core.refs import Reference, Stream
from ciel.core.tasks import TaskSpec
from ciel.master.state.machine import MasterMachine
from ciel.master.state.queries import topics
from ciel.testing.builders import JOB, a_fan, a_job_spec, a_task, a_worker, inline, place_of, stored

NOW_S = 100.0


def a_master(*tasks: TaskSpec, want: tuple[str, ...], known: tuple[Reference, ...] = ()) -> Any:
    """Return a machine with one job and one worker, `w1`."""
    machine = MasterMachine()
    machine.worker_joined(a_worker("w1", slots=8), NOW_S)
    machine.client_sent("c", SubmitJob(a_job_spec()), NOW_S)
    for task in tasks:
        machine.client_sent("c", AddTask(task, known), NOW_S)
    wanted = tuple([ObjectId(object_id) for object_id in want])
    machine.client_sent("c", WantObjects(JobId(JOB), wanted), NOW_S)
    machine.end_tick(NOW_S)
    return machine


def report(machine: MasterMachine, task: TaskSpec, *published: Reference) -> None:
    fault = None if published else TaskFault("RUNTIME_EXCEPTION", "no luck")
    attempt = machine.graph.tasks[task.id].attempt
    machine.worker_sent("w1", TaskReported(task.id, attempt, published, fault, 0.1), NOW_S)
    machine.end_tick(NOW_S)


def pages(machine: MasterMachine) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    first: Any = None
    while first is not None or not found:
        found.append(topics.answer(machine, "graph", {"job": "last", "first": first}, NOW_S))
        first = found[-1]["next"]
    return found


def rows(machine: MasterMachine) -> dict[str, dict[str, Any]]:
    """Return the rows of the only page, by the tasks' names."""
    (page,) = pages(machine)
    return {row["name"]: row for row in page["tasks"]}


def test_a_row_contains_the_inputs_and_outputs_of_a_task() -> None:
    first = a_task("a", "spare", inputs=["given"], name="first")
    second = a_task("b", inputs=["a"], name="second")
    machine = a_master(first, second, want=("b",), known=(stored("given", "w9:1", size_bytes=70),))
    report(machine, first, stored("a", place_of("w1"), size_bytes=5000), inline("spare", b"four"))
    told = rows(machine)
    assert told["first"] == {
        "number": 1, "name": "first", "task": first.id, "state": "done", "executor": "stdinout",
        "parent": None, "attempt": 1, "worker": None, "at": place_of("w1"), "why": [], "story": [],
        "inputs": [["given", "there", 70, None, False]],
        "outputs": [
            ["a", "there", 5000, first.id, False], ["spare", "gone", None, first.id, False]
        ],
    }  # fmt: skip
    assert (told["second"]["state"], told["second"]["worker"]) == ("assigned", "w1")
    assert told["second"]["inputs"] == [["a", "there", 5000, first.id, False]]
    assert told["second"]["outputs"] == [["b", "expected", None, second.id, True]]


def test_rows_name_the_parent_and_the_producer_of_a_delegated_output() -> None:
    parent = a_task("result", name="parent")
    machine = a_master(parent, want=("result",))
    child = a_task("result", parent=parent, name="child")
    machine.worker_sent("w1", SpawnTask(child, (), 1), NOW_S)
    told = rows(machine)
    assert told["child"]["parent"] == parent.id
    expected = [["result", "expected", None, child.id, True]]
    assert told["parent"]["outputs"] == told["child"]["outputs"] == expected


def test_a_row_contains_the_failure_once_and_earlier_attempts() -> None:
    task = a_task("a", name="once")
    machine = a_master(task, want=("a",))
    report(machine, task)
    row = rows(machine)["once"]
    assert (row["state"], row["why"], row["story"]) == (
        "failed",
        ["RUNTIME_EXCEPTION: no luck"],
        [],
    )
    assert row["outputs"] == [["a", "failed", None, task.id, True]]
    again = a_task("a", name="again", retries=1)
    machine = a_master(again, want=("a",))
    report(machine, again)
    row = rows(machine)["again"]
    assert row["why"] == []
    assert row["story"] == ["0.0 s ago: attempt 1 failed on worker w1: RUNTIME_EXCEPTION: no luck"]


def test_a_large_graph_is_sent_in_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "GRAPH_PAGE_MAX", 20)
    fan = a_fan(30)
    found = pages(a_master(*fan, want=("total",)))
    assert max(sum(len(r["inputs"]) + len(r["outputs"]) for r in p["tasks"]) for p in found) <= 20
    numbers = [row["number"] for page in found for row in page["tasks"]]
    assert sorted(set(numbers)) == list(range(1, 32))
    total = [row for page in found for row in page["tasks"] if row["task"] == fan[-1].id]
    assert len(total) > 1  # its row is split
    read = [fields[0] for row in total for fields in row["inputs"]]
    assert read == [f"leaf{n}" for n in range(30)]
    assert [fields[0] for row in total for fields in row["outputs"]] == ["total"]


def test_long_histories_shorten_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "GRAPH_PAGE_MAX", 60)
    tasks = [a_task(f"t{n}", ordinal=n) for n in range(8)]
    machine = a_master(*tasks, want=tuple(f"t{n}" for n in range(8)))
    assert len(pages(machine)) == 1
    for task in tasks:
        fault = TaskFault("RUNTIME_EXCEPTION", "x" * 5000)
        machine.worker_sent("w1", TaskReported(task.id, 1, (), fault, 0.1), NOW_S)
    found = pages(machine)
    assert len(found) == 2
    assert {len(line) for page in found for row in page["tasks"] for line in row["why"]} == {1000}


def test_tasks_with_handed_over_results_are_left_out() -> None:
    tasks = [a_task(f"t{n}", name=f"n{n}", ordinal=n) for n in range(3)]
    machine = a_master(*tasks, want=("t0", "t1", "t2"))
    report(machine, tasks[1], inline("t1"))
    machine.client_sent("c", ReleaseObjects(JobId(JOB), (ObjectId("t1"),), True), NOW_S)
    (page,) = pages(machine)
    assert [row["name"] for row in page["tasks"]] == ["n0", "n2"]
    assert page["handed_over"] == 1


@pytest.mark.parametrize("first", [[-1, 0], ["x", 1], 7, "all", [1], {"a": 1}])
def test_a_page_with_an_invalid_position_starts_at_the_beginning(first: object) -> None:
    machine = a_master(a_task("a", name="only"), want=("a",))
    page = topics.answer(machine, "graph", {"job": 1, "first": first}, NOW_S)
    assert [row["name"] for row in page["tasks"]] == ["only"]


def test_a_page_with_a_position_beyond_the_end_is_empty() -> None:
    machine = a_master(a_task("a"), want=("a",))
    page = topics.answer(machine, "graph", {"job": 1, "first": [99, 5]}, NOW_S)
    assert (page["tasks"], page["next"]) == ([], None)
    page = topics.answer(machine, "graph", {"job": 1, "first": [0, 99]}, NOW_S)
    assert [row["outputs"] for row in page["tasks"]] == [[]]


def test_an_open_stream_is_shown_as_growing() -> None:
    task = a_task("a", name="t")
    machine = a_master(task, want=("a",))
    machine.graph.publish(Stream(ObjectId("a"), frozenset((place_of("w1"),))))
    assert rows(machine)["t"]["outputs"] == [["a", "growing", None, task.id, True]]
