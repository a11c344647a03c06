"""Processes that wait in the middle of a task, on one worker, for what goes on with them.

Such a process is an object, too: an output of the task that left it there, and an input of its
continuation. It is kept for as long as that waits or runs, whatever else may name it; if it is
needed again, the task that left it there leaves another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ciel.core.ids import ObjectId
from ciel.core.refs import Fixed
from ciel.core.tasks import ACTIVE, TaskNode

if TYPE_CHECKING:
    from ciel.core.graph import TaskGraph
    from ciel.core.jobs import Job


def let_go(graph: TaskGraph, task: TaskNode) -> None:
    """A task does not go on, at least not now: what waits for it, or what it left, may end."""
    for object_id in (*task.spec.inputs, *task.extras):
        if object_id in graph.objects.fixed:
            graph.released.append(object_id)


def let_all_go(graph: TaskGraph, job: Job) -> None:
    """A job is over."""
    for object_id in graph.objects.fixed:
        producer = graph.objects.nodes[object_id].producer
        if producer is not None and producer.job is job:
            graph.released.append(object_id)


def forget_released(graph: TaskGraph) -> dict[str, list[ObjectId]]:
    """Forget what was let go and nobody goes on with; return what is to be ended, by location."""
    released, graph.released = graph.released, []
    by_place: dict[str, list[ObjectId]] = {}
    for object_id in released:
        node = graph.objects.get(object_id)
        if node is None or not isinstance(node.ref, Fixed) or node.wanters:
            continue
        if not _is_needed(graph, object_id):
            for place in graph.forget_object(object_id, node):
                by_place.setdefault(place, []).append(object_id)
    return by_place


def place_of(graph: TaskGraph, task: TaskNode) -> frozenset[str]:
    """Name the locations at which a task can run only: of none or one, unless it never can."""
    fixed = graph.objects.fixed
    refs = [graph.objects.reference(o) for o in task.spec.inputs if o in fixed]
    return frozenset([ref.location for ref in refs if isinstance(ref, Fixed)])


def _is_needed(graph: TaskGraph, object_id: ObjectId) -> bool:
    """Whether a task is to go on with a process: a child of who left it, as a rule."""
    node = graph.objects.nodes[object_id]
    producer = node.producer
    if producer is None:
        return True  # nobody could leave another
    children = [graph.tasks.get(child) for child in (producer.children or {}).values()]
    readers = [child for child in children if child and object_id in child.spec.inputs]
    if len(readers) < node.others:
        known = [graph.tasks.get(task_id) for task_id in producer.job.tasks]
        readers = [task for task in known if task and object_id in task.spec.inputs]
    return any(reader.state in ACTIVE for reader in readers)
