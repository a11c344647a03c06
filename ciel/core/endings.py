"""Decides how a job ends: which of its results are errors, and which will never be produced."""

from __future__ import annotations

from collections.abc import Generator

from ciel.core.graph import TaskGraph
from ciel.core.ids import ObjectId, TaskId
from ciel.core.jobs import Job
from ciel.core.refs import Failure
from ciel.core.tasks import ASSIGNED, DONE, RUNNABLE, WAITING, Mentions

OBJECTS_PER_STEP = 16
"""So many objects are looked at in about the time that one task takes to end."""


def failed_results(graph: TaskGraph, job: Job) -> Generator[None, None, list[ObjectId]]:
    """Name the errors among a job's results, those that a result merely lists included. Yields when
    the graph has no steps left.
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
        if type(node.ref) is Failure:
            failed.append(object_id)
        elif producer is not None and producer.spec.mentions is Mentions.INPUTS:
            inputs = producer.spec.inputs
            failed += [i for i in inputs if type(graph.objects.nodes[i].ref) is Failure]
    return failed


def stuck(graph: TaskGraph, job: Job) -> list[ObjectId]:
    """Name what a job waits for and nobody is going to make (no producer, or a circle); nothing if
    it waits for what another job is making.
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
        elif producer.state in (RUNNABLE, ASSIGNED):
            return []
        elif producer.state is WAITING:
            for source in producer.spec.inputs:
                if source not in missing and not graph.objects.nodes[source].is_consumable:
                    missing[source] = None
                    pending.append(source)
    return orphans or list(missing)


def saw_error(graph: TaskGraph, job: Job) -> Generator[None, None, TaskId | None]:
    """Name a task of a job that made its outputs from an error: they would stay as they are if what
    failed were made again. Yields when the graph has no steps left.
    """
    nodes = graph.objects.nodes
    for count, task_id in enumerate(job.tasks, 1):
        if count % OBJECTS_PER_STEP == 0:
            graph.steps_left -= 1
            if graph.steps_left < 0:
                yield
        task = graph.tasks.get(task_id)
        if task is not None and task.spec.sees_errors and task.state is DONE:
            if any(type(nodes[object_id].ref) is Failure for object_id in task.spec.inputs):
                return task.spec.id
    return None
