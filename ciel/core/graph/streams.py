"""Tracks which objects grow while their producers run, and which tasks read them meanwhile.

A task becomes a reader of a stream when the stream is consumable, even while the task waits for
other inputs. It stops being a reader when the object is complete, the stream breaks, or the task
ends or is reset.
"""

from __future__ import annotations

from collections.abc import Iterator

from ciel.core.graph.nodes import TaskNode
from ciel.core.graph.objects import ObjectTable
from ciel.core.ids import ObjectId
from ciel.core.tasks import ACTIVE, ASSIGNED


class Streams:
    """The producers and the readers of growing objects, in both directions.

    The owner of the graph empties two lists after each tick. `broken_readers` contains attempts to
    be stopped because a stream that they read broke. `completed_readers` contains readers whose
    inputs are all complete now.
    """

    __slots__ = (
        "_growing",
        "_objects",
        "broken_readers",
        "completed_readers",
        "opened",
        "readers",
        "reading",
    )

    def __init__(self, objects: ObjectTable) -> None:
        self._objects = objects
        self._growing = objects.growing
        self.opened: dict[TaskNode, list[ObjectId]] = {}  # by producer
        self.readers: dict[str, dict[TaskNode, None]] = {}
        self.reading: dict[TaskNode, dict[ObjectId, None]] = {}
        self.broken_readers: list[tuple[TaskNode, int]] = []
        self.completed_readers: list[TaskNode] = []

    def add_reader(self, task: TaskNode) -> None:
        """Make a task a reader of those of its required inputs that are streams."""
        for object_id in task.spec.needed:
            if object_id in self._growing:
                self.add_read(task, object_id)

    def add_read(self, task: TaskNode, object_id: ObjectId) -> None:
        """Make a task a reader of an object that grows, or that may grow (see `adopt`)."""
        self.readers.setdefault(object_id, {})[task] = None
        self.reading.setdefault(task, {})[object_id] = None

    def remove_reader(self, task: TaskNode) -> None:
        """Note that a task reads no stream any more."""
        for object_id in self.reading.pop(task, ()):
            readers = self.readers[object_id]
            del readers[task]
            if not readers:
                del self.readers[object_id]

    def complete(self, object_id: ObjectId) -> None:
        """Note that an object is complete.

        Add the readers whose inputs are all complete now to `completed_readers`.
        """
        for task in self.readers.pop(object_id, ()):
            left = self.reading[task]
            del left[object_id]
            if not left:
                del self.reading[task]
                self.completed_readers.append(task)

    def break_off(self, object_id: ObjectId) -> None:
        """Note that a stream broke; move its readers to `broken_readers`, with their attempts."""
        readers = list(self.readers.get(object_id, ()))
        for task in readers:
            self.remove_reader(task)
        self.broken_readers += [(task, task.attempt) for task in readers]

    def reset(self, object_id: ObjectId) -> None:
        """Turn a growing object into a future again, since its producer has stopped writing it."""
        self._objects.forget(self._objects.nodes[object_id])
        self.break_off(object_id)

    def end(self, task: TaskNode) -> list[ObjectId]:
        """Break the streams that an attempt opened and did not complete; return their objects.

        Another attempt may have to produce them.
        """
        incomplete = [o for o in self.opened.pop(task, ()) if o in self._growing]
        for object_id in incomplete:
            self.reset(object_id)
        return incomplete

    def problems(self) -> Iterator[str]:
        """Yield every broken link."""
        for object_id, readers in self.readers.items():
            if self._objects.nodes[object_id].is_settled:
                yield f"S1 {object_id} has readers, but is not a stream"
            for task in readers:
                if object_id not in self.reading.get(task, ()):
                    yield f"S2 {task.spec.id} is a reader of {object_id}, but does not list it"
                if task.state not in ACTIVE:
                    yield f"S3 {task.spec.id} is {task.state} and reads {object_id}"
        for task, objects in self.reading.items():
            for object_id in objects:
                if task not in self.readers.get(object_id, ()):
                    yield f"S2 {object_id} is read by {task.spec.id}, but does not list it"
        opened = {object_id for objects in self.opened.values() for object_id in objects}
        for object_id in self._growing:
            if object_id not in opened:
                yield f"S4 {object_id} is a stream that no task produces"
        for task in self.opened:
            if task.state is not ASSIGNED:
                yield f"S5 {task.spec.id} is {task.state} and produces streams"
