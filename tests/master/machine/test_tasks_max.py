"""Scenes with the master's machine: a job that has as many tasks as the master permits."""

from __future__ import annotations

import pytest

from ciel.core.errors import TooManyTasksError
from ciel.core.events import AddTask, SpawnTask
from ciel.core.ids import ObjectId
from ciel.core.tasks import Mentions
from ciel.master.state.machine import MasterMachine
from ciel.testing.builders import a_job_spec, a_task, a_worker
from ciel_tests.scenes.master import Cluster

REASON = (
    "job {job} has 3 tasks, and no job may have more (--tasks-max of the master): does a task "
    "spawn tasks for ever?"
)


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster(a_worker("w1"))
    cluster.machine.context.tasks_max = 3
    return cluster


def test_a_client_that_adds_one_more_task_fails_its_job(cluster: Cluster) -> None:
    tasks = [a_task(name, ordinal=number) for number, name in enumerate("abcd")]
    cluster.job(*tasks[:3], want=["a"], open=True)
    cluster.lines()
    cluster.says(AddTask(tasks[0], ()))  # it is known, so it is no other task
    assert cluster.lines() == []
    cluster.says(AddTask(tasks[3], ()))
    reason = REASON.format(job=tasks[0].job)
    assert f"client: refused: {reason}" in (lines := cluster.lines())
    assert f"client: failed: a task was rejected: {reason}" in lines


def test_a_task_that_spawns_for_ever_fails_and_so_does_its_job(cluster: Cluster) -> None:
    parent = a_task("a", mentions=Mentions.ANYTHING)
    cluster.job(parent, want=["a"])
    cluster.lines()
    for number in range(3):
        child = a_task(f"c{number}", parent=parent, ordinal=number)
        cluster.worker_says("w1", SpawnTask(child, (), 1))
    lines = cluster.lines()
    assert "w1: stop a (1)" in lines
    assert "client: a is BAD_SPAWN" in lines
    assert REASON.format(job=parent.job) in lines[-1]


def test_a_whole_job_with_too_many_tasks_is_refused_and_leaves_nothing() -> None:
    machine = MasterMachine(tasks_max=3)
    tasks = [AddTask(a_task(name, ordinal=number), ()) for number, name in enumerate("abcd")]
    wanted = (ObjectId("a"),)
    with pytest.raises(TooManyTasksError):
        machine.submit_job(a_job_spec(), tasks, wanted, 1.0)
    assert not machine.graph.tasks


def test_any_number_is_possible() -> None:
    cluster = Cluster(a_worker("w1"))
    cluster.job(*[a_task(f"t{number}", ordinal=number) for number in range(5000)], want=["t0"])
    assert "w1: run t0" in cluster.lines()
