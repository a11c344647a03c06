"""Tasks that hand their outputs over otherwise when they run again.

Where a script stops depends on what is there when it runs. One that runs again, since something
that it had made on the side was lost, may stop elsewhere than before, or not at all: then nobody
will make what the task waits for that took its outputs over the first time. The one that took them
over the last time makes them instead: its heir.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ciel.core.failures import label
from ciel.core.refs import Failure
from ciel.core.tasks import ACTIVE, TaskNode

if TYPE_CHECKING:
    from ciel.core.graph import TaskGraph
    from ciel.core.ids import ObjectId


def note(graph: TaskGraph, task: TaskNode) -> None:
    """A task is handed outputs of its parent over that another took over before; or once more."""
    parent = graph.tasks.get(task.spec.parent)
    if parent is not None and not set(task.spec.outputs).isdisjoint(parent.spec.outputs):
        parent.heir = task


def miss(graph: TaskGraph, task: TaskNode) -> None:
    """A task has ended well: what it made on the side before and not now is an error for those who
    still wait for it when its heir has come in.
    """
    for object_id in task.extras:
        node = graph.objects.nodes[object_id]
        if node.ref is None and node.producer is task and graph.is_awaited(object_id):
            _come_in(graph, task)
            if graph.is_awaited(object_id):
                reason = f"{label(task)} made it once, and ended without making it again"
                graph.publish(Failure(object_id, "NO_OUTPUT", reason))


def _come_in(graph: TaskGraph, task: TaskNode) -> None:
    """Have a task's heir make what is not there of its outputs, and let those be that were to."""
    heir, task.heir = task.heir, None
    if heir is None or graph.tasks.get(heir.spec.id) is not heir:
        return
    nodes = graph.objects.nodes
    replaced: dict[TaskNode, None] = {}
    inherited: list[ObjectId] = []
    for object_id in heir.spec.outputs:
        before = nodes[object_id].producer
        if before is None or before is heir or nodes[object_id].ref is not None:
            continue
        if _stands_for(graph, before, task, object_id):
            nodes[object_id].producer = heir
            replaced[before] = None
            inherited.append(object_id)
    graph.disturbed = graph.disturbed or bool(inherited)
    for before in replaced:
        if before.state in ACTIVE and not graph.is_needed(before):
            if before.worker is not None:
                graph.unneeded.append(before)
            else:
                graph.sleep(before)
    graph.demand(inherited)


def _stands_for(graph: TaskGraph, successor: TaskNode, task: TaskNode, object_id: ObjectId) -> bool:
    """Whether an output of a task came to another by being handed over, maybe several times."""
    found: TaskNode | None = successor
    while found is not None and found is not task and object_id in found.spec.outputs:
        found = graph.tasks.get(found.spec.parent)
    return found is task
