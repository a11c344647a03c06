"""Handles a task that runs again and delegates its outputs to a different child than before.

A task that runs again may divide its work differently, or wait in another process. The child that
it created for its outputs the first time may then wait for an object that no task produces any
more. So the child that a task created last for an output becomes the producer of that output: its
heir.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ciel.core.childless import take_over
from ciel.core.failures import label
from ciel.core.nodes import TaskNode
from ciel.core.refs import Failure
from ciel.core.tasks import ACTIVE, CANCELLED, FAILED

if TYPE_CHECKING:
    from ciel.core.graph import TaskGraph
    from ciel.core.ids import ObjectId


def note(graph: TaskGraph, heir: TaskNode) -> None:
    """Make a child the producer of those outputs of its parent that the parent just handed to it
    and that are not there, and let earlier producers sleep that nobody needs any more.
    """
    parent = graph.tasks.get(heir.spec.parent)
    if parent is None or set(heir.spec.outputs).isdisjoint(parent.spec.outputs):
        return
    nodes = graph.objects.nodes
    replaced: dict[TaskNode, None] = {}
    inherited: list[ObjectId] = []
    for object_id in heir.spec.outputs:
        before = nodes[object_id].producer
        if before is None or before is heir:
            continue
        is_handed_on = _came_from(graph, before, heir, object_id)
        if is_handed_on or not _came_from(graph, before, parent, object_id):
            continue
        if nodes[object_id].ref is not None:
            graph.objects.heirs[object_id] = heir  # it takes over when the object is lost
        else:
            take_over(graph, object_id, heir)
            replaced[before] = None
            inherited.append(object_id)
    if inherited and heir.state is CANCELLED:  # with its job, which is tried again since then
        graph.try_again(heir)
    graph.disturbed = graph.disturbed or bool(inherited)
    for before in replaced:
        if before.state in ACTIVE and not graph.is_needed(before):
            if before.worker is not None:
                graph.unneeded.append(before)
            else:
                graph.sleep(before)
    graph.demand(inherited)


def lose(graph: TaskGraph, object_id: ObjectId) -> None:
    """Make the heir the producer of an object that was lost, if there is one."""
    heir = graph.objects.heirs.pop(object_id, None)
    if heir is None or heir.state in (FAILED, CANCELLED):
        return
    if graph.tasks.get(heir.spec.id) is heir:  # it may have been forgotten
        take_over(graph, object_id, heir)


def miss(graph: TaskGraph, task: TaskNode) -> None:
    """Publish an error for each object that a task created in an earlier attempt and not in the one
    that just ended, if somebody still waits for it.
    """
    for object_id in task.extras:
        node = graph.objects.nodes[object_id]
        if node.ref is None and node.producer is task and graph.is_awaited(object_id):
            reason = f"{label(task)} made it once, and ended without making it again"
            graph.publish(Failure(object_id, "NO_OUTPUT", reason))


def _came_from(graph: TaskGraph, producer: TaskNode, task: TaskNode, object_id: ObjectId) -> bool:
    """Whether a task handed an output over to its producer, maybe through several others."""
    found: TaskNode | None = producer
    while found is not None and found is not task and object_id in found.spec.outputs:
        found = graph.tasks.get(found.spec.parent)
    return found is task
