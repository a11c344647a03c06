"""Processes that wait in the middle of a task, on one worker, for what goes on with them.

Such a process is an object, too: an output of the task that left it there, and an input of its
continuation. It is kept for as long as that waits or runs, whatever else may name it; if it is
needed again, the task that left it there leaves another.

One that was there before its job was attached, and nobody left it: its job's root task goes on in
it, then who that hands its outputs over to, and so on. When none of these is left it goes for good.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ciel.core.ids import ObjectId
from ciel.core.nodes import TaskNode
from ciel.core.refs import Failure, Fixed, locations_of
from ciel.core.tasks import ACTIVE, RUNNABLE, WAITING

if TYPE_CHECKING:
    from ciel.core.graph import TaskGraph
    from ciel.core.jobs import Job


def note(graph: TaskGraph, task: TaskNode) -> None:
    """A task was added: it may be to go on in a process that was attached."""
    for object_id in task.spec.inputs:
        if object_id in graph.objects.fixed and graph.objects.nodes[object_id].producer is None:
            graph.objects.attached[object_id] = task


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


def miss(graph: TaskGraph, object_id: ObjectId) -> None:
    """An object is not where it was said to be: if it is a process that was attached, nobody leaves
    another, and a task that was to go on in it never can.
    """
    task = graph.objects.attached.get(object_id)
    ref = graph.objects.reference(object_id)
    if task is not None and task.state in (WAITING, RUNNABLE) and isinstance(ref, Failure):
        details = f"the process that it is to go on in was at {ref.text}, and is lost with that"
        graph.fail(task, ref.reason, details)


def forget_released(graph: TaskGraph) -> dict[str, list[ObjectId]]:
    """Forget what was let go and nobody goes on with; return what is to be ended, by location."""
    released, graph.released = graph.released, []
    by_place: dict[str, list[ObjectId]] = {}
    for object_id in released:
        node = graph.objects.get(object_id)
        if node is None or not isinstance(node.ref, Fixed) or node.wanters:
            continue
        if _is_needed(graph, object_id):
            continue
        if node.producer is None:  # to name it again is an error that says so
            places = locations_of(node.ref)
            graph.objects.attached.pop(object_id, None)
            for place in places:
                graph.objects.lose(node, object_id, place)
        else:
            places = graph.forget_object(object_id, node)
        for place in places:
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
        return (
            object_id not in graph.objects.attached
            or graph.objects.attached[object_id].state in ACTIVE
        )
    children = [graph.tasks.get(child) for child in (producer.children or {}).values()]
    readers = [child for child in children if child and object_id in child.spec.inputs]
    if len(readers) < node.others:
        known = [graph.tasks.get(task_id) for task_id in producer.job.tasks]
        readers = [task for task in known if task and object_id in task.spec.inputs]
    return any(reader.state in ACTIVE for reader in readers)
