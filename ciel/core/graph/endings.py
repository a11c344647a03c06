"""Decides how a job ends: which of its results are errors, and which will never be produced."""

from __future__ import annotations

from collections.abc import Generator

from ciel.core.graph.task_graph import TaskGraph
from ciel.core.ids import ObjectId, TaskId
from ciel.core.jobs import Job
from ciel.core.tasks import ASSIGNED, DONE, RUNNABLE, WAITING, Mentions

OBJECTS_PER_STEP = 16
"""The number of objects that count as one step: checking them takes as long as ending one task."""


def failed_results(graph: TaskGraph, job: Job) -> Generator[None, None, list[ObjectId]]:
    """Return the errors among a job's results, including objects that a result only lists.

    Yields when the graph has no steps left.
    """
    failed: list[ObjectId] = []
    for count, object_id in enumerate(list(job.wanted), 1):
        node = graph.objects.get(object_id)
        if count % OBJECTS_PER_STEP == 0:
            graph.steps_left -= 1
            if graph.steps_left < 0:
                yield
        if node is None:
            continue
        producer = node.producer
        if node.failure is not None:
            failed.append(object_id)
        elif producer is not None and producer.spec.mentions is Mentions.INPUTS:
            inputs = producer.spec.inputs
            failed += [i for i in inputs if graph.objects.nodes[i].failure is not None]
    return failed


def stuck(graph: TaskGraph, job: Job) -> list[ObjectId]:
    """Return the objects that a job waits for and that no task will produce.

    They have no producer, or depend on each other. Return nothing if the job waits for an object
    that another job is producing, or will produce when its predecessors have ended.
    """
    missing: dict[ObjectId, None] = {}
    for object_id in job.wanted:
        if not graph.objects.nodes[object_id].is_settled:
            missing[object_id] = None
    pending = list(missing)
    orphans = []
    while pending:
        object_id = pending.pop()
        producer = graph.objects.nodes[object_id].producer
        if producer is None:
            orphans.append(object_id)
        elif producer.state in (RUNNABLE, ASSIGNED) or producer.job.postponed is not None:
            return []
        elif producer.state is WAITING:
            for source in producer.spec.inputs:
                if source not in missing and not graph.objects.nodes[source].is_consumable:
                    missing[source] = None
                    pending.append(source)
    return orphans or list(missing)


def saw_error(graph: TaskGraph, job: Job) -> Generator[None, None, TaskId | None]:
    """Return a task of a job that computed its outputs from an error, or None.

    A retry of the failed task would not change these outputs. Yields when the graph has no steps
    left.
    """
    nodes = graph.objects.nodes
    for count, task_id in enumerate(job.tasks, 1):
        if count % OBJECTS_PER_STEP == 0:
            graph.steps_left -= 1
            if graph.steps_left < 0:
                yield
        task = graph.tasks.get(task_id)
        if task is not None and task.spec.sees_errors and task.state is DONE:
            if any(nodes[object_id].failure is not None for object_id in task.spec.inputs):
                return task.spec.id
    return None
