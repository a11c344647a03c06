"""What the graph forgets: results that were handed over, and whole jobs (CIB-4).

Lineage is kept for as long as anybody may need an object again. It goes when a client says that it
will not name an object any more, and when a job is removed.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, MutableMapping

from ciel.core.graph import TaskGraph
from ciel.core.ids import ObjectId
from ciel.core.jobs import Job
from ciel.core.losses import drop
from ciel.core.objects import ObjectNode
from ciel.core.refs import Failure
from ciel.core.story import Story
from ciel.core.tasks import DONE, Mentions, TaskNode

Deletions = dict[str, list[ObjectId]]
"""What is to be deleted, by location."""

_COMPACT_FROM = 1000


def hand_over(
    graph: TaskGraph,
    job: Job,
    objects: Iterable[ObjectId],
    stories: MutableMapping[str, Story] | None = None,
) -> Deletions:
    """Have a job want objects no longer, and forget those that nobody else needs, with the tasks
    that made them, and their stories.

    A task stays if it has children, or an output that was not handed over, or whose content may
    name others; and for as long as another is there that reads one of them, since that may have to
    run again.
    """
    deletions: Deletions = {}
    pending = [object_id for object_id in objects if object_id in graph.objects.nodes]
    for object_id in pending:
        graph.unwant(object_id, job)
        job.promised[object_id] = None
    while pending:
        object_id = pending.pop()
        node = graph.objects.get(object_id)
        task = None if node is None else node.producer
        if node is not None and task is None:
            _forget_upload(graph, job, object_id, node, deletions)
        elif task is not None and _is_over(graph, task, job):
            pending += _forget(graph, task, deletions)
            job.handed_over += 1
            if stories:
                stories.pop(task.spec.id, None)
    alive = sum(job.counts.values()) - job.handed_over
    if len(job.tasks) > 2 * alive + _COMPACT_FROM:
        job.tasks = [task_id for task_id in job.tasks if task_id in graph.tasks]
    return deletions


def _is_over(graph: TaskGraph, task: TaskNode, job: Job) -> bool:
    spec = task.spec
    if task.state is not DONE or task.job is not job or task.children or job.spec.keep:
        return False
    if task.mentions is Mentions.ANYTHING or spec.parent != job.spec.id:
        return False
    for object_id in task.outputs:
        node = graph.objects.nodes[object_id]
        if node.producer is not task or node.wanters or node.holds or node.others:
            return False
        if object_id not in job.promised or type(node.ref) is Failure:
            return False
    return True


def _forget_upload(
    graph: TaskGraph, job: Job, object_id: ObjectId, node: ObjectNode, deletions: Deletions
) -> None:
    """Forget an object that no task makes, if its client has released it and no task is left that
    reads it.
    """
    if object_id not in job.promised or object_id not in job.uploads or job.spec.keep:
        return
    if node.others or node.wanters or node.holds != 1:  # the upload's own hold
        return
    del job.uploads[object_id], job.promised[object_id]
    for place in graph.objects.forget(node, object_id):
        deletions.setdefault(place, []).append(object_id)
    graph.objects.remove(object_id)


def _forget(graph: TaskGraph, task: TaskNode, deletions: Deletions) -> list[ObjectId]:
    """Forget a task with its outputs; return those of its inputs that no task names any more."""
    for object_id in task.outputs:
        del task.job.promised[object_id]
        for place in drop(graph, object_id):
            deletions.setdefault(place, []).append(object_id)
        graph.objects.remove(object_id)
    del graph.tasks[task.spec.id]
    alone = []
    for object_id in task.spec.inputs:
        node = graph.objects.nodes[object_id]
        node.others -= 1
        if not node.others:
            alone.append(object_id)
    return alone


def remove(
    graph: TaskGraph, job: Job, others: Iterable[Job], kept: Container[str] = ()
) -> Deletions:
    """Forget an ended job with its tasks, none of which may be active, and objects, but for objects
    that `others` read, or that are `kept`: those stay as they are, and cannot be made again.
    """
    doomed = job.uploads | job.wanted | job.foreign
    for object_id in job.wanted:
        node = graph.objects.nodes[object_id]
        node.wanters = tuple([other for other in node.wanters if other is not job])
    for task_id in job.tasks:
        task = graph.tasks.pop(task_id, None)
        if task is not None:
            doomed |= dict.fromkeys(task.outputs)
            for object_id in task.spec.inputs:
                node = graph.objects.nodes[object_id]
                node.others -= 1
                node.holds -= task.holds_inputs
            for object_id in task.outputs:
                node = graph.objects.nodes[object_id]
                node.others -= node.producer is not task
    deletions: Deletions = {}
    used = _used_by(others, job) if doomed else set()
    for object_id in doomed:
        doomed_node = graph.objects.get(object_id)
        if doomed_node is None:
            continue
        maker = doomed_node.producer
        if maker is not None and maker.job is not job:
            continue
        if doomed_node.wanters or doomed_node.others or object_id in used or object_id in kept:
            doomed_node.producer = None
            continue
        for place in graph.objects.forget(doomed_node, object_id):
            deletions.setdefault(place, []).append(object_id)
        graph.objects.remove(object_id)
    job.tasks.clear()
    return deletions


def _used_by(others: Iterable[Job], job: Job) -> set[ObjectId]:
    used: set[ObjectId] = set()
    for other in others:
        if other is not job:
            used.update(other.foreign)
            used.update(other.uploads)
    return used
