"""Scenes with the master's machine: the demand that it reports to launchers of workers."""

from __future__ import annotations

from typing import Any

from ciel.core.events import CancelJob
from ciel.core.ids import JobId
from ciel.master.state.queries.demand import EXAMINED_MAX
from ciel.testing.builders import JOB, a_task, a_worker, place_of, stored
from ciel_tests.scenes.master import Cluster, ask


def waiting(cluster: Cluster) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ask(cluster, "demand")["waiting"]
    return found


def test_without_workers_all_runnable_tasks_wait_by_their_needs() -> None:
    cluster = Cluster()
    tasks = [a_task(f"a{n}", ordinal=n) for n in range(3)]
    tasks.append(a_task("big", ordinal=3, slots=4, memory_bytes=1 << 30))
    tasks.append(a_task("later", ordinal=4, inputs=["big"]))
    cluster.job(*tasks, want=["a0", "a1", "a2", "later"])
    assert waiting(cluster) == [
        {"tasks": 3, "slots": 1, "memory_bytes": 0, "typical_s": None},
        {"tasks": 1, "slots": 4, "memory_bytes": 1 << 30, "typical_s": None},
    ]
    assert ask(cluster, "demand")["workers"] == []


def test_running_tasks_do_not_wait_and_tasks_queued_on_a_worker_do() -> None:
    cluster = Cluster(a_worker("w1")._replace(allocation="7_1"))
    tasks = [a_task(f"a{n}", ordinal=n) for n in range(3)]
    cluster.job(*tasks, want=["a0", "a1", "a2"])
    assert sum(row["tasks"] for row in waiting(cluster)) == 2
    (worker,) = ask(cluster, "demand")["workers"]
    assert (worker["allocation"], worker["busy"], worker["has_objects"]) == ("7_1", True, False)


def test_the_run_time_of_the_tasks_of_a_job_is_reported() -> None:
    cluster = Cluster(a_worker("w1"))
    tasks = [a_task(f"a{n}", ordinal=n) for n in range(4)]
    cluster.job(*tasks, want=["a0", "a1", "a2", "a3"])
    cluster.done("w1", tasks[0])
    (row,) = waiting(cluster)
    assert (row["tasks"], row["typical_s"]) == (2, 0.01)


def test_a_worker_with_an_object_says_so() -> None:
    cluster = Cluster(a_worker("w1"))
    task = a_task("a0")
    cluster.job(task, want=["a0"], open=True)
    cluster.done("w1", task, stored("a0", place_of("w1")))
    (worker,) = ask(cluster, "demand")["workers"]
    assert (worker["busy"], worker["has_objects"]) == (False, True)


def test_of_a_long_queue_a_part_is_examined_and_the_rest_is_estimated() -> None:
    cluster = Cluster()
    names = [f"a{n}" for n in range(EXAMINED_MAX + 500)]
    cluster.job(*[a_task(name, ordinal=n) for n, name in enumerate(names)], want=names)
    assert [row["tasks"] for row in waiting(cluster)] == [EXAMINED_MAX + 500]


def test_cancelled_tasks_do_not_wait() -> None:
    cluster = Cluster()
    cluster.job(a_task("a0"), want=["a0"], open=True)
    cluster.says(CancelJob(JobId(JOB), "by its user"))
    assert waiting(cluster) == []
