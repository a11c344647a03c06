"""Handles a task that runs again and delegates its outputs to a different child than before.

A task that runs again may divide its work differently, or wait in another process. The child to
which it delegated its outputs the first time may then wait for an object that no task produces any
more. So the last child to which a task has delegated an output becomes its producer.
"""

from __future__ import annotations

from collections.abc import Iterator

from ciel.core.graph.nodes import TaskNode
from ciel.core.graph.objects import ObjectTable
from ciel.core.graph.retention import Retention
from ciel.core.ids import ObjectId
from ciel.core.tasks import CANCELLED, FAILED


class Redelegation:
    """Changes the producers of outputs that are delegated again.

    `next_producers` maps outputs that exist to the child that becomes the producer if the output
    is lost.
    """

    __slots__ = ("_nodes", "_retention", "_tasks", "next_producers")

    def __init__(
        self, tasks: dict[str, TaskNode], objects: ObjectTable, retention: Retention
    ) -> None:
        self._tasks = tasks
        self._nodes = objects.nodes
        self._retention = retention
        self.next_producers: dict[ObjectId, TaskNode] = {}

    def task_added(self, child: TaskNode) -> tuple[list[ObjectId], list[TaskNode]]:
        """Make a child the producer of the missing outputs that its parent has delegated to it.

        Return these outputs, and their former producers.
        """
        parent = self._tasks.get(child.spec.parent)
        if parent is None or set(child.spec.outputs).isdisjoint(parent.spec.outputs):
            return [], []
        replaced: dict[TaskNode, None] = {}
        inherited: list[ObjectId] = []
        for object_id in child.spec.outputs:
            before = self._nodes[object_id].producer
            if before is None or before is child:
                continue
            is_handed_on = self._retention.came_from(before, child, object_id)
            if is_handed_on or not self._retention.came_from(before, parent, object_id):
                continue
            if not self._nodes[object_id].is_future:
                self.next_producers[object_id] = child
            else:
                self._retention.take_over(object_id, child)
                replaced[before] = None
                inherited.append(object_id)
        return inherited, list(replaced)

    def taken(self, task: TaskNode) -> tuple[int, ...]:
        """Return the numbers of the outputs that children of an earlier attempt produce.

        A child that reads what the task itself has made does not count: it may have to be made
        again, by an attempt that does not know of the child.
        """
        taken = []
        for number, object_id in enumerate(task.spec.outputs):
            child = self._nodes[object_id].producer
            if child is None or child is task or child.state in (FAILED, CANCELLED):
                continue
            is_own = self._retention.came_from(child, task, object_id)
            if is_own and not any(self._is_made_by(task, item) for item in child.spec.inputs):
                taken.append(number)
        return tuple(taken)

    def _is_made_by(self, task: TaskNode, object_id: ObjectId) -> bool:
        node = self._nodes.get(object_id)
        return node is None or node.producer is task

    def object_lost(self, object_id: ObjectId) -> None:
        """Change the producer of a lost object to its next producer, if there is one."""
        child = self.next_producers.pop(object_id, None)
        if child is None or child.state in (FAILED, CANCELLED):
            return
        if self._tasks.get(child.spec.id) is child:  # else it was forgotten
            self._retention.take_over(object_id, child)

    def not_repeated(self, task: TaskNode) -> Iterator[ObjectId]:
        """Yield the missing objects that only an earlier attempt at a task created.

        The attempt that has just ended did not create them.
        """
        for object_id in task.undeclared:
            node = self._nodes[object_id]
            if node.is_future and node.producer is task:
                yield object_id
