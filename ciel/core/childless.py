"""Releases the inputs of a task early if it created no objects beyond its declared outputs.

Most calls of functions are such tasks: their outputs name no other object, and are deleted when no
job wants them. A task that spawned tasks or put objects keeps its outputs and inputs, like a task
whose outputs may mention any object (ADR 12).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ciel.core.nodes import TaskNode
from ciel.core.tasks import Mentions
from ciel.core.undeclared_outputs import is_named_by_others

if TYPE_CHECKING:
    from ciel.core.graph import TaskGraph
    from ciel.core.ids import ObjectId


def look(graph: TaskGraph, task: TaskNode) -> None:
    """A task has ended: see whether it is bare."""
    if task.spec.mentions is not Mentions.OWN or task.children or task.extras or task.is_childless:
        return
    task.is_childless = True
    if is_named_by_others(graph, task):
        return
    for object_id in task.outputs:
        node = graph.objects.nodes[object_id]
        if node.producer is task:
            node.holds -= 1
            graph.drop_if_unused(object_id, node)


def leave(graph: TaskGraph, task: TaskNode) -> None:
    """A task may run again, and otherwise: if it was bare, it is not now."""
    if not task.is_childless:
        return
    task.is_childless = False
    if not is_named_by_others(graph, task):
        for object_id in task.outputs:
            node = graph.objects.nodes[object_id]
            node.holds += node.producer is task


def take_over(graph: TaskGraph, object_id: ObjectId, task: TaskNode) -> None:
    """Make another task the producer of an output, and keep the output as that one's are kept."""
    node = graph.objects.nodes[object_id]
    before = node.producer
    if before is not None:
        node.holds += _holds_outputs(graph, task) - _holds_outputs(graph, before)
    node.producer = task


def _holds_outputs(graph: TaskGraph, task: TaskNode) -> bool:
    """Whether the outputs of a task are kept while it exists, since anything may name them."""
    return task.mentions is Mentions.ANYTHING or is_named_by_others(graph, task)
