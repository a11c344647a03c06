"""Decides which objects are kept because a task may still refer to them.

Objects that jobs want are kept in any case.

`ObjectNode.holds` counts the reasons:

- A task holds its inputs until it has finished, and longer while one of its outputs may name them.
- If the outputs of a task may name any object, or if the outputs of its parent may, the task holds
  its own outputs as well.
- A task that created no objects beyond its declared outputs stops holding when it has finished: its
  outputs name no other object. Most calls of functions are such tasks. They are called childless. A
  task that spawned tasks or put objects keeps outputs and inputs (ADR 12). Children to which it has
  delegated its own outputs do not count: they create no other objects for it.
"""

from __future__ import annotations

from collections.abc import Sequence

from ciel.core.graph.nodes import TaskNode
from ciel.core.graph.objects import ObjectNode, ObjectTable
from ciel.core.ids import ObjectId
from ciel.core.refs import Concrete, Value
from ciel.core.tasks import FINISHED, Mentions


class Retention:
    """Counts the holds of the objects of a graph.

    `droppable` lists objects without a hold and without a job that wants them; the owner of the
    graph empties it after each tick.
    """

    __slots__ = ("_nodes", "_objects", "_tasks", "droppable")

    def __init__(self, tasks: dict[str, TaskNode], objects: ObjectTable) -> None:
        self._tasks = tasks
        self._objects = objects
        self._nodes = objects.nodes
        self.droppable: list[ObjectId] = []

    def task_added(
        self, task: TaskNode, parent: TaskNode | None, producing: Sequence[ObjectId]
    ) -> None:
        """Hold the outputs of a new task if other objects may refer to them."""
        anything = Mentions.ANYTHING
        if task.mentions is anything or (parent is not None and parent.mentions is anything):
            for object_id in producing:
                self._nodes[object_id].holds += 1

    def task_ended(self, task: TaskNode) -> None:
        """Release the objects that a finished task cannot name any more."""
        if task.spec.mentions is Mentions.OWN:
            if not (task.undeclared or task.is_childless or self._has_own_children(task)):
                task.is_childless = True
                self._change_holds(task, -1)
        self.release_inputs(task)

    def _has_own_children(self, task: TaskNode) -> bool:
        """Whether a task has children to which it has not only delegated outputs."""
        if not task.children:
            return False
        return any(
            child is None or not all(o in task.spec.outputs for o in child.spec.outputs)
            for child in map(self._tasks.get, task.children.values())
        )

    def _change_holds(self, task: TaskNode, change: int) -> None:
        """Change the holds of the outputs of a childless task, and of its children: it does not
        name these any more, or may name them again.
        """
        if not self._is_named_by_parent(task):
            self._hold_outputs(task, change)
        for child in map(self._tasks.get, (task.children or {}).values()):
            if child is not None and child.mentions is not Mentions.ANYTHING:
                self._hold_outputs(child, change)

    def _hold_outputs(self, task: TaskNode, change: int) -> None:
        for object_id in task.outputs:
            node = self._nodes[object_id]
            if node.producer is task or self.came_from(node.producer, task, object_id):
                node.holds += change
                self.drop_if_unused(object_id, node)

    def came_from(self, producer: TaskNode | None, task: TaskNode, object_id: ObjectId) -> bool:
        """Whether a task produces an object, or has delegated it to its producer, directly or
        through other tasks.
        """
        found = producer
        while found is not None and found is not task and object_id in found.spec.outputs:
            found = self._tasks.get(found.spec.parent)
        return found is task

    def task_reopened(self, task: TaskNode) -> None:
        """Undo `task_ended`: the task may run again, and create other objects then."""
        if task.is_childless:
            self._change_holds(task, 1)
            task.is_childless = False
        self._hold_inputs(task)

    def holds_outputs(self, task: TaskNode) -> bool:
        """Return whether the outputs of a task are held while the task is known."""
        return task.mentions is Mentions.ANYTHING or self._is_named_by_parent(task)

    def _is_named_by_parent(self, task: TaskNode) -> bool:
        parent = self._tasks.get(task.spec.parent)
        return parent is not None and parent.mentions is Mentions.ANYTHING

    def take_over(self, object_id: ObjectId, task: TaskNode) -> None:
        """Make another task the producer of an output, and adapt the holds of the output."""
        node = self._nodes[object_id]
        before = node.producer
        if before is not None:
            node.holds += self.holds_outputs(task) - self.holds_outputs(before)
        node.producer = task

    def output_settled(self, producer: TaskNode) -> None:
        """Hold the inputs of a task because an output that may refer to them exists."""
        if producer.spec.mentions is Mentions.INPUTS:
            producer.live_outputs += 1
            self._hold_inputs(producer)  # the output may exist again after it was lost

    def output_gone(self, producer: TaskNode | None) -> None:
        """Undo `output_settled`: an output was lost or forgotten."""
        if producer is not None and producer.spec.mentions is Mentions.INPUTS:
            producer.live_outputs -= 1
            self.release_inputs(producer)

    def forget(self, object_id: ObjectId, node: ObjectNode) -> frozenset[str]:
        """Turn an object into a future again; return the locations of its copies."""
        places = self._objects.forget(node)
        self.output_gone(node.producer)
        return places

    def drop_if_unused(self, object_id: ObjectId, node: ObjectNode) -> None:
        if not node.holds and not node.wanters and isinstance(node.ref, Concrete | Value):
            self.droppable.append(object_id)

    def release_inputs(self, task: TaskNode) -> None:
        """Release the inputs of a finished task whose outputs do not refer to them."""
        mentions = task.mentions
        if mentions is Mentions.ANYTHING or not task.spec.inputs or task.state not in FINISHED:
            return
        if mentions is Mentions.INPUTS and task.live_outputs > 0:
            return
        if not task.holds_inputs:
            return
        task.holds_inputs = False
        for object_id in task.spec.inputs:
            node = self._nodes[object_id]
            node.holds -= 1
            if not node.holds:
                self.drop_if_unused(object_id, node)

    def _hold_inputs(self, task: TaskNode) -> None:
        if not task.holds_inputs:
            task.holds_inputs = True
            for object_id in task.spec.inputs:
                self._nodes[object_id].holds += 1
