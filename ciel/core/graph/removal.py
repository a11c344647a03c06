"""Forgets results that a client has taken over, and whole jobs (CIB-4).

The graph keeps the lineage of an object as long as a client or a task may need the object again.
It forgets the lineage when the client declares that it will not name the object any more, or when
the job is removed.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, MutableMapping, Sequence
from typing import Any

from ciel.core.graph.lost_objects import drop
from ciel.core.graph.nodes import TaskNode
from ciel.core.graph.objects import NO_JOBS, ObjectNode
from ciel.core.graph.task_graph import INPUTS_PER_STEP, TaskGraph
from ciel.core.history import History
from ciel.core.ids import UPLOAD_PREFIX, ObjectId
from ciel.core.jobs import Job
from ciel.core.refs import Reference, locations_of
from ciel.core.tasks import ACTIVE, DONE, Mentions

Deletions = dict[str, list[ObjectId]]
"""Objects to be deleted, by location."""

_COMPACT_FROM = 1000


def hand_over(
    graph: TaskGraph,
    job: Job,
    objects: Iterable[ObjectId],
    histories: MutableMapping[str, History] | None = None,
) -> Iterator[Deletions]:
    """Release objects that the client of a job has taken over.

    Forget the objects that no other job or task needs, the tasks that produced them, and the
    histories of these tasks.

    A task stays if it has children, or an output that was not handed over or may name other
    objects. It also stays as long as the graph has a task that reads one of its outputs, since that
    task may have to run again.

    Yields the objects to be deleted whenever no steps are left.
    """
    deletions: Deletions = {}
    pending: list[ObjectId] = []
    for object_id in objects:
        if object_id in graph.objects.nodes:
            graph.unwant(object_id, job)
            job.released[object_id] = None
            pending.append(object_id)
    while pending:
        object_id = pending.pop()
        node = graph.objects.get(object_id)
        task = None if node is None else node.producer
        if node is not None and task is None:
            _forget_upload(graph, job, object_id, node, deletions)
        elif task is not None and _can_forget(graph, task, job):
            pending += _forget(graph, task, deletions)
            job.handed_over += 1
            if histories:
                histories.pop(task.spec.id, None)
        graph.steps_left -= 1
        if graph.steps_left < 0:
            yield deletions
            deletions = {}
    alive = sum(job.counts.values()) - job.handed_over
    if len(job.tasks) > 2 * alive + _COMPACT_FROM:
        job.tasks = [task_id for task_id in job.tasks if task_id in graph.tasks]
    yield deletions


def unnamed_uploads(graph: TaskGraph, uploads: Iterable[Reference]) -> Deletions:
    """Return the uploads that no task has named, by the locations where they are to be deleted."""
    deletions: Deletions = {}
    for ref in uploads:
        if ref.id.startswith(UPLOAD_PREFIX) and ref.id not in graph.objects.nodes:
            for place in locations_of(ref):
                deletions.setdefault(place, []).append(ref.id)
    return deletions


def _can_forget(graph: TaskGraph, task: TaskNode, job: Job) -> bool:
    spec = task.spec
    if task.state is not DONE or task.job is not job or task.children or job.spec.keep:
        return False
    if task.mentions is Mentions.ANYTHING or spec.parent != job.spec.id:
        return False
    for object_id in task.outputs:
        node = graph.objects.nodes[object_id]
        if node.producer is not task or node.wanters or node.holds or node.users:
            return False
        if object_id not in job.released or node.failure is not None:
            return False
    return True


def _forget_upload(
    graph: TaskGraph, job: Job, object_id: ObjectId, node: ObjectNode, deletions: Deletions
) -> None:
    """Forget an upload, if its client has released it and no task reads it any more."""
    if object_id not in job.released or object_id not in job.uploads or job.spec.keep:
        return
    if node.users or node.wanters or node.holds != 1:  # one hold is the upload itself
        return
    graph.objects.end_use(job.uploads, object_id)
    del job.released[object_id]
    for place in graph.objects.forget(node):
        deletions.setdefault(place, []).append(object_id)
    graph.objects.remove(object_id)


def _forget(graph: TaskGraph, task: TaskNode, deletions: Deletions) -> list[ObjectId]:
    """Forget a task and its outputs; return the inputs that no task names any more."""
    for object_id in task.outputs:
        del task.job.released[object_id]
        for place in drop(graph, object_id):
            deletions.setdefault(place, []).append(object_id)
        graph.remove_object(object_id)
    del graph.tasks[task.spec.id]
    alone = []
    for object_id in task.spec.inputs:
        node = graph.objects.nodes[object_id]
        node.users -= 1
        if not node.users:
            alone.append(object_id)
    return alone


def remove(
    graph: TaskGraph,
    job: Job,
    kept: Container[str],
    records: Sequence[MutableMapping[str, Any]] = (),
) -> Iterator[Deletions]:
    """Forget an ended job with its tasks and objects.

    Objects that other jobs read or that are `kept` stay, and cannot be recomputed. `records`:
    mappings by task id, from which the entries of the job's tasks are removed as well.

    Yields the objects to be deleted whenever no steps are left.
    """
    deletions = _DeletionCollector(graph, kept)
    while job.wanted:
        object_id = job.wanted.pop()
        node = graph.objects.nodes[object_id]
        node.wanters = tuple([other for other in node.wanters if other is not job]) or NO_JOBS
        job.unsettled -= not node.is_settled
        deletions.forget_if_free(object_id)
        if deletions.take_steps(1):
            yield deletions.take()
    while job.tasks:  # usually readers before producers
        task = graph.tasks.get(job.tasks.pop())
        steps = 1
        if task is not None:
            for record in records:
                record.pop(task.spec.id, None)
            if task.state in ACTIVE:  # it is recomputing a lost object
                graph.fail(task, "CANCELLED", "its job was removed")
            steps += len(task.spec.inputs) // INPUTS_PER_STEP
            _remove_task(graph, task, deletions)
        if deletions.take_steps(steps):
            yield deletions.take()
    for uses in (job.uploads, job.foreign):
        for object_id in list(uses):
            graph.objects.end_use(uses, object_id)
            deletions.forget_if_free(object_id)
            if deletions.take_steps(1):
                yield deletions.take()
    yield deletions.take()


def _remove_task(graph: TaskGraph, task: TaskNode, deletions: _DeletionCollector) -> None:
    """Forget a finished task, and the objects that only this task has named."""
    job = task.job
    del graph.tasks[task.spec.id]
    job.counts[task.state] -= 1
    job.totals[task.state] -= 1
    nodes = graph.objects.nodes
    for object_id in task.outputs:
        node = nodes[object_id]
        if node.producer is task:
            node.producer = None
        else:
            node.users -= 1
        deletions.forget_if_free(object_id)
    for object_id in task.spec.inputs:
        node = nodes[object_id]
        node.users -= 1
        node.holds -= task.holds_inputs
        deletions.forget_if_free(object_id)


class _DeletionCollector:
    """Forgets objects, and collects their copies, which are to be deleted."""

    def __init__(self, graph: TaskGraph, kept: Container[str]) -> None:
        self._graph = graph
        self._kept = kept
        self._deletions: Deletions = {}

    def forget_if_free(self, object_id: ObjectId) -> None:
        """Forget an object without a producer, if no task, job or client needs it."""
        objects = self._graph.objects
        node = objects.get(object_id)
        if node is None or node.producer is not None or node.users or node.wanters:
            return
        if objects.is_used(object_id) or object_id in self._kept:
            return
        for place in objects.forget(node):
            self._deletions.setdefault(place, []).append(object_id)
        self._graph.remove_object(object_id)

    def take_steps(self, steps: int) -> bool:
        """Take steps; return whether none are left."""
        self._graph.steps_left -= steps
        return self._graph.steps_left < 0

    def take(self) -> Deletions:
        """Return the objects to be deleted, by location, and start a new collection."""
        deletions, self._deletions = self._deletions, {}
        return deletions
