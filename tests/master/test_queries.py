"""Scenes with the master's machine: queries, and explanations of tasks."""

from __future__ import annotations

import pytest

from ciel.core.errors import CannotRetryError
from ciel.core.events import (
    RECALLED,
    CopyTimed,
    DiskQueued,
    ServiceOpened,
    SubmitJob,
    TaskFault,
    TaskReported,
)
from ciel.core.ids import ObjectId
from ciel.core.jobs import JobState
from ciel.core.refs import Future
from ciel.core.tasks import Mentions, TaskState
from ciel.master.state.queries import explain, topics
from ciel.master.state.queries.topics import UnknownQueryError
from ciel.master.state.subscriptions import CLIENT_GRACE_S
from ciel.testing.builders import (
    JOB,
    a_job_spec,
    a_task,
    a_worker,
    inline,
    place_of,
)
from ciel_tests.scenes.master import Cluster, ask, one, two, why


def test_a_task_is_found_by_name_position_or_id() -> None:
    cluster = one()
    tasks = [a_task(f"t{n}", name=str(n + 4), ordinal=n) for n in range(3)]
    cluster.job(*tasks, want=["t0"])
    assert ask(cluster, "task", job=1, task="5")["task"] == tasks[1].id
    assert ask(cluster, "task", job="last", task="1")["task"] == tasks[0].id
    assert ask(cluster, "task", job=JOB, task=tasks[2].id)["name"] == "6"
    with pytest.raises(UnknownQueryError, match="job 1 has no task 9"):
        ask(cluster, "task", job=1, task="9")


def test_a_replica_may_report_before_its_worker_names_the_attempt() -> None:
    def address() -> str | None:
        found: str | None = ask(cluster, "service", job=1)["replicas"][0]["address"]
        return found

    cluster, replica = Cluster(), a_task("t0")  # no worker has joined, as after a restart
    cluster.job(replica, want=["t0"])
    cluster.lines()
    cluster.says(ServiceOpened(replica.id, 1, "here:1"))
    cluster.said()
    assert address() is None
    cluster.joins(a_worker("w1"))
    assert address() == "here:1"


def test_a_replica_that_has_ended_has_no_address() -> None:
    cluster, replica = one(), a_task("t0")
    cluster.job(replica, want=["t0"])
    cluster.says(ServiceOpened(replica.id, 1, "here:1"))
    cluster.done("w1", replica)
    assert ask(cluster, "service", job=1)["replicas"][0]["address"] is None
    cluster.lines()
    cluster.says(ServiceOpened(replica.id, 1, "here:1"))
    cluster.said(f"client: refused: attempt 1 of task {replica.id} does not run")


def test_tasks_and_results_are_listed_in_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "TASKS_LISTED_MAX", 2)
    monkeypatch.setattr(topics, "RESULTS_MAX", 2)
    cluster = one()
    tasks = [a_task(f"t{n}", name=f"n{n}", ordinal=n) for n in range(3)]
    cluster.job(*tasks, want=["t0", "t1", "t2"])
    cluster.done("w1", tasks[0], inline("t0"))
    page = ask(cluster, "tasks", job=1)
    assert [row["name"] for row in page["tasks"]] == ["n0", "n1"]
    assert [row["state"] for row in page["tasks"]] == ["done", "assigned"]
    page = ask(cluster, "tasks", job=1, first=page["next"])
    assert [row["name"] for row in page["tasks"]] == ["n2"]
    assert page["next"] is None
    assert len(ask(cluster, "tasks", job=1, state="done")["tasks"]) == 1
    page = ask(cluster, "results", job=1)
    assert page["results"] == [["n0", inline("t0")], ["n1", Future(ObjectId("t1"))]]
    assert ask(cluster, "results", job=1, first=page["next"])["results"][0][0] == "n2"


def test_long_failure_texts_shorten_an_answer() -> None:
    cluster = one()
    tasks = [a_task(f"t{n}", name=f"n{n}", ordinal=n) for n in range(3)]
    cluster.job(*tasks, want=["t0", "t1", "t2"])
    long = "x" * (topics.ROOM_CHARACTERS - 1)
    for task in tasks:
        fault = TaskFault("RUNTIME_EXCEPTION", long)
        cluster.worker_says("w1", TaskReported(task.id, 1, (), fault, 0.01))
    assert len(ask(cluster, "job", job=1)["failures"]) == 2
    page = ask(cluster, "results", job=1)
    assert [(name, ref.text) for name, ref in page["results"]] == [("n0", long), ("n1", long)]
    (row,) = ask(cluster, "results", job=1, first=page["next"])["results"]
    assert row[0] == "n2"
    (listed,), (alone,) = ask(cluster, "jobs"), ask(cluster, "jobs", job=1)
    assert len(str(listed)) < 2000
    assert long in str(alone)


def test_tasks_are_found_by_element_number_or_else_by_position() -> None:
    cluster = one()
    tasks = [a_task(f"t{n}", name=name, ordinal=n) for n, name in enumerate(["5", "7", "x", "9"])]
    cluster.job(*tasks, want=["t0"])

    def names(*elements: int) -> list[str]:
        return [row["name"] for row in ask(cluster, "tasks", job=1, elements=elements)["tasks"]]

    assert names(5, 9, 1) == ["5", "7", "9"]
    assert names(5, 9, 4) == ["5", "9"]
    assert names(1, 4, 1) == ["x"]


def test_jobs_are_listed_by_number() -> None:
    cluster = one()
    for number in range(1, 6):
        cluster.says(SubmitJob(a_job_spec(f"job{number}")))

    def numbers(**arguments: object) -> list[int]:
        return [summary[1] for summary in ask(cluster, "jobs", **arguments)]

    assert numbers(limit=2) == [4, 5]
    assert numbers(first=2, last=4) == [2, 3, 4]
    assert numbers(first=2, last=4, limit=1) == [4]
    assert numbers(job="job3") == numbers(job=3) == [3]
    with pytest.raises(UnknownQueryError, match="no job 9"):
        numbers(job=9)


def test_a_task_explains_why_it_does_not_run() -> None:
    cluster = Cluster()
    first = a_task("a", name="first")
    second = a_task("b", inputs=["a"], name="second")
    third = a_task("c", inputs=["b"], name="third")
    cluster.job(first, second, third, a_task("d", name="aside"), want=["c"])
    assert why(cluster, "aside") == "no job or task needs its outputs, so it does not run"
    assert why(cluster, "first").startswith("it could run, but the cluster has no worker")
    assert why(cluster, "third") == (
        "it waits for b, produced by task second, which is waiting\n"
        "second waits for a, produced by task first, which is runnable"
    )
    cluster.joins(a_worker("w1"))
    assert why(cluster, "first") == "it runs on worker w1, as attempt 1; assigned 0.0 s ago"
    cluster.failed("w1", first)
    assert why(cluster, "first") == "RUNTIME_ERROR: exit status 3"
    assert why(cluster, "third").startswith("DEPENDENCY_FAILED")


def test_the_measured_time_of_a_copy_is_recorded() -> None:
    cluster = two()
    cluster.worker_says("w1", CopyTimed(place_of("w2"), 10**6, 0.5))
    measured = cluster.machine.dispatcher.bandwidths
    assert measured.s_per_byte("host of w2", "host of w1") == 0.5e-6


def test_a_task_that_waits_for_memory_lists_what_each_worker_has() -> None:
    cluster = Cluster(a_worker("w1", slots=2, memory_bytes=3 << 30))
    large, small = (a_task(n, name=n, memory_bytes=m << 30) for n, m in (("a", 2), ("b", 2)))
    cluster.job(large, small, want=["a", "b"])
    assert topics.find_task(cluster.machine, cluster.job_of(), "b").state is TaskState.RUNNABLE
    told = explain.why(cluster.machine, cluster.machine.graph.tasks[small.id], cluster.now_s)
    assert told == [
        "it needs 2 GiB of memory, which no worker has free now:",
        "worker w1: 1 GiB of 3 GiB free, 1 of 2 slots taken, 0 more queued",
        "1 tasks of its priority or a higher one wait, including itself",
    ]


def test_a_delayed_task_takes_no_slot_and_names_the_remaining_delay() -> None:
    cluster = one()
    late = a_task("late", delay_s=5.0, name="late")
    follower = a_task("follower", inputs=["late"], name="follower")
    cluster.job(late, follower, a_task("soon", ordinal=1), want=["follower", "soon"])
    assert cluster.lines() == ["w1: run soon"]
    cluster.passes(3.0)
    assert why(cluster, "late") == "it is delayed for 2.0 s more, as its creator requested"
    cluster.passes(2.0)
    cluster.said("w1: run late")


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_delayed_task_that_a_worker_gives_back_is_not_delayed_again(is_lost: bool) -> None:
    cluster = one()
    late = a_task("late", delay_s=5.0, name="late")
    cluster.job(late, want=["late"])
    cluster.passes(5.0)
    cluster.said("w1: run late")
    if is_lost:
        cluster.loses("w1")
        cluster.joins(a_worker("w2"))
    else:
        cluster.failed("w1", late, reason=RECALLED)
    cluster.said(f"{'w2' if is_lost else 'w1'}: run late again (2)")


def test_a_failed_task_says_when_it_is_retried() -> None:
    cluster = one()
    task = a_task("a", retries=1, name="again")
    cluster.job(task, want=["a"])
    cluster.failed("w1", task)
    assert why(cluster, "again") == "attempt 1 failed; the task is retried in 0.2 s"
    story = ask(cluster, "task", job=1, task="again")["story"]
    assert story == ["0.0 s ago: attempt 1 failed on worker w1: RUNTIME_ERROR: exit status 3"]


def test_a_task_without_room_lists_what_occupies_each_worker() -> None:
    cluster = one()
    tasks = [a_task(f"t{n}", name=f"n{n}", ordinal=n) for n in range(9)]
    cluster.job(*tasks, want=[f"t{n}" for n in range(9)])
    cluster.worker_says("w1", DiskQueued(2 * 10**9, 20.0))
    assert ", 1.863 GiB queued for its disk (about 20 s)" in why(cluster, "n8")
    cluster.worker_says("w1", DiskQueued(0, 0.0))
    assert why(cluster, "n8").splitlines() == [
        "it could run, but no worker has room:",
        f"worker w1: 1 of 1 slots taken, {cluster.slots_used('w1') - 1} more queued",
        f"{9 - cluster.slots_used('w1')} tasks of its priority or a higher one are queued, "
        "including itself",
    ]


def test_a_recalled_task_runs_on_another_worker_without_blame() -> None:
    cluster = one()
    tasks = [a_task(f"t{number}", ordinal=number) for number in range(2)]
    cluster.job(*tasks, want=["t0", "t1"])
    cluster.said("w1: run t0", "w1: run t1")
    cluster.joins(a_worker("w2"))
    cluster.said()
    cluster.passes(1.0)
    cluster.said("w1: give back t1")
    fault = TaskFault(RECALLED, "it never began")
    cluster.worker_says("w1", TaskReported(tasks[1].id, 1, (), fault, 0.0))
    cluster.said("w2: run t1 again (2)")
    assert not cluster.machine.retry_states
    assert cluster.slots_used("w1") == 1


def test_an_open_detached_job_is_cancelled_when_its_client_is_gone() -> None:
    cluster = one()
    cluster.job(a_task("a"), want=["a"], open=True, detached=True)
    cluster.client_goes()
    cluster.passes(CLIENT_GRACE_S + 0.1)
    assert cluster.job_of().state is JobState.CANCELLING
    assert cluster.job_of().reason == "its client was disconnected for too long"


def test_a_closed_detached_job_goes_on_without_its_client() -> None:
    cluster = one()
    cluster.job(a_task("a"), want=["a"], detached=True)
    cluster.client_goes()
    cluster.passes(CLIENT_GRACE_S + 0.1)
    assert cluster.job_of().state is JobState.ACTIVE


def test_a_job_with_a_result_made_from_an_error_cannot_be_retried() -> None:
    cluster = one()
    bad = a_task("bad")
    seer = a_task("list", inputs=["bad"], sees_errors=True, mentions=Mentions.INPUTS)
    cluster.job(bad, seer, want=["list", "bad"])
    cluster.failed("w1", bad)
    cluster.done("w1", seer)
    with pytest.raises(CannotRetryError, match="computed its result from an error"):
        cluster.machine.retry_job(cluster.job_of(), cluster.now_s)
