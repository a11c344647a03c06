"""Assigns undeclared objects to the tasks that produce them.

The id of such an object starts with the id of the task that produces it.
"""

from __future__ import annotations

from collections.abc import Iterable

from ciel.core.graph.nodes import TaskNode
from ciel.core.graph.objects import ObjectTable
from ciel.core.graph.retention import Retention
from ciel.core.ids import ObjectId, TaskId, root_task_id
from ciel.core.jobs import Job
from ciel.core.refs import Future, Reference


class UndeclaredOutputs:
    """Adds undeclared outputs to the `undeclared` of their tasks."""

    __slots__ = ("_objects", "_retention", "_tasks")

    def __init__(
        self, tasks: dict[str, TaskNode], objects: ObjectTable, retention: Retention
    ) -> None:
        self._tasks = tasks
        self._objects = objects
        self._retention = retention

    def adopt(self, task: TaskNode, refs: Iterable[Reference]) -> None:
        """Make undeclared objects outputs of a task, if their ids start with its id."""
        prefix = f"{task.spec.id}:"
        found = []
        for ref in refs:
            if ref.id.startswith(prefix):
                node = self._objects.ensure(ref.id)
                if node.producer is None and node.is_future:
                    node.producer = task
                    node.holds += self._retention.holds_outputs(task)
                    found.append(ref.id)
        task.undeclared += tuple(found)

    def named(self, object_id: ObjectId, job: Job) -> None:
        """Make an object an undeclared output of its producer, if that is a task of the job.

        The id of the object starts with the id of its producer. Called when a task of the job names
        the object for the first time.
        """
        name = root_task_id(job.spec.id)
        if not object_id.startswith(f"{name}:"):
            name = TaskId(object_id.partition(":")[0])
        owner = self._tasks.get(name)
        if owner is not None and owner.job is job:
            self.adopt(owner, (Future(object_id),))
