"""Tests how workers learn the directory and environment in which the programs of a job run."""

from __future__ import annotations

import pytest

from ciel.core.events import (
    AddTask,
    CancelJob,
    CloseJob,
    DescribeJob,
    JobPrinted,
    SubmitJob,
    TaskPrinted,
    WantObjects,
)
from ciel.core.ids import JobId
from ciel.core.jobs import CallerContext
from ciel.testing.builders import JOB, a_job_spec, a_task, a_worker, inline
from ciel_tests.scenes.master import Cluster

CONTEXT = CallerContext("/somewhere", {"LANG": "C"})


def began(*names: str) -> Cluster:
    """Return a cluster whose worker runs the first of some tasks of a job with a context."""
    cluster = Cluster(a_worker("w1", slots=1))
    tasks = [a_task(name) for name in names]
    spec = a_job_spec()._replace(context=CONTEXT)
    wanted = tuple([task.outputs[0] for task in tasks])
    cluster.says(
        SubmitJob(spec),
        *[AddTask(task, ()) for task in tasks],
        WantObjects(spec.id, wanted),
        CloseJob(spec.id),
    )
    return cluster


def take_contexts(cluster: Cluster) -> list[CallerContext | None]:
    """Return the contexts that were sent to workers since the last call."""
    cluster.lines()
    found = [message.context for message in cluster.sent if isinstance(message, DescribeJob)]
    cluster.sent.clear()
    return found


def test_a_worker_gets_the_context_before_the_first_task_and_drops_it_after_the_last() -> None:
    cluster = began("a", "b")
    peers = [type(message) for peer, message in cluster.machine.outbox if peer == "w1"]
    names = [kind.__name__ for kind in peers]
    assert names.index("DescribeJob") < names.index("AssignTask")
    assert take_contexts(cluster) == [CONTEXT]
    cluster.done("w1", a_task("a"))
    assert take_contexts(cluster) == []
    cluster.done("w1", a_task("b"))
    assert take_contexts(cluster) == [None]


@pytest.mark.parametrize("slots", [1, 3])
def test_every_other_worker_receives_the_context_too(slots: int) -> None:
    cluster = began("a")
    take_contexts(cluster)
    cluster.joins(a_worker("w2", slots=slots))
    cluster.loses("w1")
    assert take_contexts(cluster) == [CONTEXT]


def test_a_worker_forgets_a_cancelled_job() -> None:
    cluster = began("a")
    take_contexts(cluster)
    cluster.says(CancelJob(JobId(JOB), "enough"))
    cluster.failed("w1", a_task("a"), "CANCELLED")
    assert take_contexts(cluster) == [None]


def test_jobs_without_a_context_cost_no_message() -> None:
    cluster = Cluster(a_worker("w1"))
    cluster.job(a_task("a"), want=["a"])
    cluster.done("w1", a_task("a"), inline("a"))
    assert take_contexts(cluster) == []


def test_notices_reach_clients_that_do_not_subscribe_to_task_output() -> None:
    cluster = began("a")
    cluster.lines()
    spec = a_task("a")
    for is_notice in (False, True):
        cluster.worker_says("w1", TaskPrinted(spec.id, 1, 0, 5, "line\n", is_notice=is_notice))
    printed = [m for _, m in cluster.machine.outbox if isinstance(m, JobPrinted)]
    assert [message.is_notice for message in printed] == [True]
