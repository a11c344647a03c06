"""Keeps track of processes that wait on a worker for the task that continues in them.

Such a process is an object: an output of the task that started it, and an input of the task that
continues in it. The worker keeps the process as long as the second task waits or runs. If the
process is needed again after that, the first task runs again and starts another process.

An attached process ran before its job existed, so no task started it. The root task of the job
continues in it, then the child to which the root task delegates its outputs, and so on. When none
of these tasks waits or runs any more, the process is released for good.
"""

from __future__ import annotations

from ciel.core.graph.nodes import TaskNode
from ciel.core.graph.objects import ObjectTable
from ciel.core.graph.retention import Retention
from ciel.core.ids import ObjectId
from ciel.core.jobs import Job
from ciel.core.refs import Failure, Fixed, locations_of
from ciel.core.tasks import ACTIVE, RUNNABLE, WAITING


class FixedProcesses:
    """The waiting processes of a graph, and the tasks that continue in them.

    `released` lists processes that a task has stopped using; another task may still need them.
    """

    __slots__ = ("_fixed", "_objects", "_retention", "_tasks", "attached", "released")

    def __init__(
        self, tasks: dict[str, TaskNode], objects: ObjectTable, retention: Retention
    ) -> None:
        self._tasks = tasks
        self._objects = objects
        self._retention = retention
        self._fixed = objects.fixed
        self.attached: dict[str, TaskNode] = {}  # the task that continues in an attached process
        self.released: list[ObjectId] = []

    def task_added(self, task: TaskNode) -> None:
        """Note that a new task may continue in an attached process."""
        for object_id in task.spec.inputs:
            if object_id in self._fixed and self._objects.nodes[object_id].producer is None:
                self.attached[object_id] = task

    def task_stopped(self, task: TaskNode) -> None:
        """Release the processes that a stopped task reads or has started."""
        for object_id in (*task.spec.inputs, *task.undeclared):
            if object_id in self._fixed:
                self.released.append(object_id)

    def job_ended(self, job: Job) -> None:
        """Release all processes of a job."""
        for object_id in self._fixed:
            producer = self._objects.nodes[object_id].producer
            if producer is not None and producer.job is job:
                self.released.append(object_id)

    def lost(self, object_id: ObjectId) -> tuple[TaskNode, str, object] | None:
        """Return the task that fails because its attached process is lost for good, and why.

        Return None if no task waits for the process.
        """
        task = self.attached.get(object_id)
        ref = self._objects.reference(object_id)
        if task is not None and task.state in (WAITING, RUNNABLE) and isinstance(ref, Failure):
            details = (
                f"the attached process in which the task continues is lost; it was at {ref.text}"
            )
            return task, ref.reason, details
        return None

    def forget_released(self) -> dict[str, list[ObjectId]]:
        """Forget released processes that no task needs; return them by location, to be ended."""
        released, self.released = self.released, []
        by_place: dict[str, list[ObjectId]] = {}
        for object_id in released:
            node = self._objects.get(object_id)
            if node is None or not isinstance(node.ref, Fixed) or node.wanters:
                continue
            if self._is_needed(object_id):
                continue
            if node.producer is None:  # a task that refers to it again fails: the process is lost
                places = locations_of(node.ref)
                self.attached.pop(object_id, None)
                for place in places:
                    self._objects.lose(node, place)
            else:
                places = self._retention.forget(object_id, node)
            for place in places:
                by_place.setdefault(place, []).append(object_id)
        return by_place

    def location_of(self, task: TaskNode) -> frozenset[str]:
        """Return the locations of the processes in which a task continues.

        The task can run only there; with more than one location it can never run.
        """
        refs = [self._objects.reference(o) for o in task.spec.inputs if o in self._fixed]
        return frozenset([ref.location for ref in refs if isinstance(ref, Fixed)])

    def _is_needed(self, object_id: ObjectId) -> bool:
        """Whether an active task continues in a process: usually a child of its producer."""
        node = self._objects.nodes[object_id]
        producer = node.producer
        if producer is None:
            return object_id not in self.attached or self.attached[object_id].state in ACTIVE
        children = [self._tasks.get(child) for child in (producer.children or {}).values()]
        readers = [child for child in children if child and object_id in child.spec.inputs]
        if len(readers) < node.users:
            known = [self._tasks.get(task_id) for task_id in producer.job.tasks]
            readers = [task for task in known if task and object_id in task.spec.inputs]
        return any(reader.state in ACTIVE for reader in readers)
