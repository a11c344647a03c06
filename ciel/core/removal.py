"""What the graph forgets: results that were handed over, and whole jobs (CIB-4).

Lineage is kept for as long as anybody may need an object again. It goes when a client says that it
will not name an object any more, and when a job is removed.
"""

from __future__ import annotations

from collections.abc import Iterable

from ciel.core.graph import TaskGraph, TaskNode
from ciel.core.ids import ObjectId
from ciel.core.jobs import Job
from ciel.core.tasks import DONE, Mentions

Deletions = dict[str, list[ObjectId]]
"""What is to be deleted, by location."""

_COMPACT_FROM = 1000


def hand_over(graph: TaskGraph, job: Job, objects: Iterable[ObjectId]) -> Deletions:
    """Have a job want objects no longer, and forget those that nobody else needs, with the tasks
    that made them.

    A task stays if it has children, or an output that is still needed, or whose content may name
    others.
    """
    deletions: Deletions = {}
    for object_id in objects:
        graph.unwant(object_id, job)
        node = graph.objects.get(object_id)
        task = None if node is None else node.producer
        if task is not None and _is_over(graph, task, job):
            _forget(graph, task, deletions)
            job.handed_over += 1
    alive = sum(job.counts.values()) - job.handed_over
    if len(job.tasks) > 2 * alive + _COMPACT_FROM:
        job.tasks = [task_id for task_id in job.tasks if task_id in graph.tasks]
    return deletions


def _is_over(graph: TaskGraph, task: TaskNode, job: Job) -> bool:
    spec = task.spec
    if task.state is not DONE or task.job is not job or task.children or job.spec.keep:
        return False
    if spec.mentions is Mentions.ANYTHING or spec.parent != job.spec.id:
        return False
    for object_id in spec.outputs:
        node = graph.objects.nodes[object_id]
        if node.producer is not task or node.wanters or node.holds or not node.is_settled:
            return False
    return True


def _forget(graph: TaskGraph, task: TaskNode, deletions: Deletions) -> None:
    for object_id in task.spec.outputs:
        for place in graph.drop(object_id):
            deletions.setdefault(place, []).append(object_id)
        graph.objects.remove(object_id)
    del graph.tasks[task.spec.id]


def remove(graph: TaskGraph, job: Job, others: Iterable[Job]) -> Deletions:
    """Forget an ended job with its tasks and objects, but for objects that `others` read: those
    stay as they are, and cannot be made again.
    """
    used: set[ObjectId] = set()
    for other in others:
        if other is not job:
            used.update(other.foreign)
            used.update(other.uploads)
    doomed = dict.fromkeys(job.uploads) | job.wanted | job.foreign
    for object_id in job.wanted:
        node = graph.objects.nodes[object_id]
        node.wanters = tuple([other for other in node.wanters if other is not job])
    for task_id in job.tasks:
        task = graph.tasks.pop(task_id, None)
        if task is not None:
            graph.waiting.forget(task, task.spec.inputs)
            doomed |= dict.fromkeys(task.spec.outputs)
            if task.holds_inputs:
                for object_id in task.spec.inputs:
                    graph.objects.nodes[object_id].holds -= 1
    deletions: Deletions = {}
    for object_id in doomed:
        doomed_node = graph.objects.get(object_id)
        if doomed_node is None:
            continue
        maker = doomed_node.producer
        if maker is not None and maker.job is not job:
            continue
        if doomed_node.wanters or object_id in used:
            doomed_node.producer = None
            continue
        for place in graph.objects.forget(doomed_node, object_id):
            deletions.setdefault(place, []).append(object_id)
        graph.objects.remove(object_id)
    job.tasks.clear()
    return deletions
