"""Continues the work that the graph deferred because the steps of its owner were used up.

The graph may have to notify readers, to activate producers, and to deactivate producers whose
outputs are not needed any more.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from ciel.core.graph import any_inputs
from ciel.core.graph.failures import propagated
from ciel.core.refs import CONSUMABLE, STREAMS, Failure, Reference

if TYPE_CHECKING:
    from ciel.core.graph.nodes import TaskNode
    from ciel.core.graph.task_graph import TaskGraph
    from ciel.core.ids import ObjectId

NOTIFIED_AT_ONCE: Final = 100
"""So many readers of one object are notified before the remaining steps are checked again."""


def resume(graph: TaskGraph) -> None:
    """Continue the deferred work while steps are left."""
    while graph.steps_left > 0:
        if graph.notifying:
            _notify_some(graph, graph.notifying.popleft())
        elif graph.demanding:
            graph.steps_left -= 1
            graph.demand(_last_of(graph.demanding))
        elif graph.releasing:
            graph.steps_left -= 1
            graph.release_demand(_last_of(graph.releasing))
        else:
            return


def notify_now(graph: TaskGraph, task: TaskNode) -> None:
    """Notify one task of the awaited objects that exist, before the deferred notification."""
    for object_id in task.spec.inputs:
        ref = graph.objects.reference(object_id)
        if type(ref) in CONSUMABLE and type(ref) is not Failure:
            if task in graph.waiting.awaited.get(object_id, ()):
                _notify(graph, task, ref)


def _notify(graph: TaskGraph, task: TaskNode, ref: Reference) -> None:
    if type(ref) in STREAMS:
        graph.streams.add_read(task, ref.id)
    if graph.waiting.release_one(task, ref.id):
        graph.make_runnable(task)


def _last_of(objects: list[ObjectId]) -> list[ObjectId]:
    some = objects[-NOTIFIED_AT_ONCE:]
    del objects[-NOTIFIED_AT_ONCE:]
    return some


def _notify_some(graph: TaskGraph, object_id: ObjectId) -> None:
    """Notify some of the tasks that still wait for an object, unless it was lost meanwhile."""
    graph.steps_left -= 1
    node = graph.objects.get(object_id)
    waiters = graph.waiting.awaited.get(object_id)
    if node is None or waiters is None or not node.is_consumable:
        return
    ref = node.ref
    cause = propagated(graph.objects, ref) if isinstance(ref, Failure) else None
    for task in list(islice(waiters, NOTIFIED_AT_ONCE)):
        graph.steps_left -= 1
        if task not in graph.waiting.awaited.get(object_id, ()):
            continue  # it failed when an earlier task of this list failed
        if cause is not None and not task.spec.sees_errors:
            graph.waiting.forget(task, any_inputs.waits_for(task.spec))
            graph.fail(task, *cause)
            continue
        if ref is not None:
            _notify(graph, task, ref)
    if object_id in graph.waiting.awaited:
        graph.notifying.appendleft(object_id)
