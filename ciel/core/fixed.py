"""Keeps processes that wait on one worker in the middle of a task.

Such a process is an object: an output of the task that left it, and an input of the task that goes
on in it. The worker keeps the process as long as that second task waits or runs. If the process is
needed again, the first task runs again and leaves another one.

An attached process was there before its job. No task left it: the root task of its job goes on in
it, then the child to which that delegates its outputs, and so on. When none of these tasks is left,
the process is released for good.
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
    """Release the processes that a task read or left, as it does not go on for now."""
    for object_id in (*task.spec.inputs, *task.extras):
        if object_id in graph.objects.fixed:
            graph.released.append(object_id)


def let_all_go(graph: TaskGraph, job: Job) -> None:
    """Release all processes of a job that has ended."""
    for object_id in graph.objects.fixed:
        producer = graph.objects.nodes[object_id].producer
        if producer is not None and producer.job is job:
            graph.released.append(object_id)


def miss(graph: TaskGraph, object_id: ObjectId) -> None:
    """Fail the task that was to go on in an attached process, as that is gone for good."""
    task = graph.objects.attached.get(object_id)
    ref = graph.objects.reference(object_id)
    if task is not None and task.state in (WAITING, RUNNABLE) and isinstance(ref, Failure):
        details = f"the process that it is to go on in was at {ref.text}, and is lost with that"
        graph.fail(task, ref.reason, details)


def forget_released(graph: TaskGraph) -> dict[str, list[ObjectId]]:
    """Forget released processes that no task needs; return them by location, to be ended."""
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
