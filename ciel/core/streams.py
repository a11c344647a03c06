"""Tracks which objects grow while their producers run, and which tasks read them meanwhile.

A task counts on a stream from the moment when it may run with it, even if it waits for other
inputs, until the object is complete, the stream breaks, or the task has ended or is set back.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ciel.core.ids import ObjectId
from ciel.core.nodes import TaskNode
from ciel.core.tasks import ACTIVE, ASSIGNED

if TYPE_CHECKING:
    from ciel.core.graph import TaskGraph


class Streams:
    """The producers and the readers of growing objects, in both directions."""

    __slots__ = ("made", "readers", "reading")

    def __init__(self) -> None:
        self.made: dict[TaskNode, list[ObjectId]] = {}  # by the task whose attempt opened them
        self.readers: dict[str, dict[TaskNode, None]] = {}
        self.reading: dict[TaskNode, dict[ObjectId, None]] = {}

    def read(self, task: TaskNode, object_id: ObjectId) -> None:
        """Note that a task runs, or is about to run, with an object that still grows."""
        self.readers.setdefault(object_id, {})[task] = None
        self.reading.setdefault(task, {})[object_id] = None

    def leave(self, task: TaskNode) -> None:
        """Note that a task counts on no stream any more."""
        for object_id in self.reading.pop(task, ()):
            readers = self.readers[object_id]
            del readers[task]
            if not readers:
                del self.readers[object_id]

    def complete(self, object_id: ObjectId) -> list[TaskNode]:
        """Note that an object is complete; return the readers whose inputs are all complete now."""
        done = []
        for task in self.readers.pop(object_id, ()):
            left = self.reading[task]
            del left[object_id]
            if not left:
                del self.reading[task]
                done.append(task)
        return done

    def break_off(self, object_id: ObjectId) -> list[TaskNode]:
        """Note that a stream broke; return its readers, which then count on no stream any more."""
        readers = list(self.readers.get(object_id, ()))
        for task in readers:
            self.leave(task)
        return readers

    def problems(self, growing: dict[ObjectId, None]) -> Iterator[str]:
        """Yield every broken link; `growing` are the objects that are streams now."""
        for object_id, readers in self.readers.items():
            if object_id not in growing:
                yield f"S1 {object_id} is read as a stream, and is none"
            for task in readers:
                if object_id not in self.reading.get(task, ()):
                    yield f"S2 {task.spec.id} reads {object_id}, and does not know it"
                if task.state not in ACTIVE:
                    yield f"S3 {task.spec.id} is {task.state} and reads {object_id}"
        for task, objects in self.reading.items():
            for object_id in objects:
                if task not in self.readers.get(object_id, ()):
                    yield f"S2 {object_id} is read by {task.spec.id}, and does not list it"
        made = {object_id for objects in self.made.values() for object_id in objects}
        for object_id in growing:
            if object_id not in made:
                yield f"S4 {object_id} is a stream, and nobody makes it"
        for task in self.made:
            if task.state is not ASSIGNED:
                yield f"S5 {task.spec.id} is {task.state} and makes streams"


def count_on(graph: TaskGraph, task: TaskNode) -> None:
    """Note that a task runs, or is about to run, with those needed inputs that still grow."""
    for object_id in task.spec.needed:
        if object_id in graph.objects.growing:
            graph.streams.read(task, object_id)


def break_stream(graph: TaskGraph, object_id: ObjectId) -> None:
    """Break a stream: the attempts that read it have to be stopped."""
    graph.broken += [(task, task.attempt) for task in graph.streams.break_off(object_id)]


def end_streams(graph: TaskGraph, task: TaskNode) -> None:
    """End the streams that an attempt opened and did not complete."""
    for object_id in graph.streams.made.pop(task, ()):
        if object_id in graph.objects.growing:
            void_stream(graph, object_id)
            graph.demand((object_id,))


def void_stream(graph: TaskGraph, object_id: ObjectId) -> None:
    """Turn a growing object into a future again, since its producer does not write on."""
    graph.objects.forget(graph.objects.nodes[object_id], object_id)
    break_stream(graph, object_id)
