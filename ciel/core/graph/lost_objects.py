"""Handles objects whose last copy is lost with a worker, or dropped.

The master drops an object when no task and no job needs it. A lost object that is needed is
recomputed by its producer, and so are its producer's inputs. A lost object that cannot be
recomputed becomes an error.
"""

from __future__ import annotations

from typing import Final

from ciel.core.graph.nodes import TaskNode
from ciel.core.graph.objects import ObjectNode
from ciel.core.graph.task_graph import TaskGraph
from ciel.core.ids import ObjectId
from ciel.core.refs import Failure
from ciel.core.tasks import CANCELLED, FAILED

OBJECT_LOST: Final = "OBJECT_LOST"


def lose(graph: TaskGraph, object_id: ObjectId, location: str) -> bool:
    """Remove a location from an object.

    If no location is left and the object is needed, demand that its producer recomputes it.

    Returns whether the object was lost.
    """
    node = graph.objects.get(object_id)
    was_settled = node is not None and node.is_settled  # a stream is not settled
    if node is None:
        return False
    if not graph.objects.lose(node, location):
        if (stranded := graph.fixed.lost(object_id)) is not None:
            graph.fail(*stranded)
        return False
    _unsettle(graph, object_id, node, was_settled)
    return True


def _unsettle(graph: TaskGraph, object_id: ObjectId, node: ObjectNode, was_settled: bool) -> None:
    graph.disturbed = True
    if was_settled:
        for job in node.wanters:
            job.unsettled += 1
        graph.retention.output_gone(node.producer)
    else:
        graph.streams.break_off(object_id)
    if graph.redelegation.next_producers:
        graph.redelegation.object_lost(object_id)
    recompute(graph, object_id, node)


def recompute(graph: TaskGraph, object_id: ObjectId, node: ObjectNode) -> None:
    """Demand a missing object if it is needed; make it an error if it cannot be recomputed."""
    producer = node.producer
    why_final = why_not_recomputable(producer)
    if why_final:
        if producer is not None and producer.job.is_cancelled:
            producer.job.lost.append(object_id)
        details = f"no copy of it is left, and {why_final}"
        graph.publish(Failure(object_id, OBJECT_LOST, details))
        return
    # Tasks that were ready to read it notice the loss when they are assigned or open their inputs.
    graph.demand((object_id,))


def lose_location(graph: TaskGraph, location: str) -> list[ObjectId]:
    """Remove a location from all its objects; return the objects that had no other copy."""
    return [
        object_id
        for object_id in graph.objects.held_at(location)
        if lose(graph, object_id, location)
    ]


def drop(graph: TaskGraph, object_id: ObjectId) -> frozenset[str]:
    """Forget an object if it is still droppable; return the locations of its copies, to be deleted.

    Return nothing if it is needed.
    """
    node = graph.objects.get(object_id)
    if node is None or node.is_future or node.holds or node.wanters:
        return frozenset()
    producer = node.producer
    if node.failure is not None or producer is None or producer.state in (FAILED, CANCELLED):
        return frozenset()
    return graph.retention.forget(object_id, node)


def why_not_recomputable(producer: TaskNode | None) -> str:
    """Explain why a lost object cannot be recomputed; empty if it can."""
    if producer is None:
        return "no task produces it (its client has to upload it again)"
    if producer.job.is_cancelled:
        return "its job was cancelled"
    if producer.state is FAILED or producer.state is CANCELLED:
        return f"task {producer.spec.id} has failed since"
    return ""
