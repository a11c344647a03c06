"""Tracks copies of growing objects.

The worker of a reader may have received all of an object before the producer has reported that it
is complete.

The producer may still fail, so such a copy does not make the object complete. It is set aside until
the object is not a stream any more, and then listed or deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ciel.core.graph.task_graph import TaskGraph
from ciel.core.ids import ObjectId
from ciel.core.refs import Reference, locations_of
from ciel.master.state.workers import WorkerNode


class EarlyCopies:
    """The copies that workers have reported while the object still grew elsewhere."""

    def __init__(self, graph: TaskGraph) -> None:
        self._graph = graph
        self._copies: dict[ObjectId, dict[WorkerNode, Reference]] = {}

    def put_aside(self, worker: WorkerNode, refs: Iterable[Reference]) -> list[Reference]:
        """Set aside the copies of objects that still grow; return the remaining copies."""
        others = []
        for ref in refs:
            if ref.id in self._graph.objects.growing:
                self._copies.setdefault(ref.id, {})[worker] = ref
            else:
                others.append(ref)
        return others

    def take_back(self) -> Iterator[tuple[WorkerNode, Reference]]:
        """Yield the set-aside copies of objects that do not grow any more, complete or not."""
        graph = self._graph
        for object_id in [o for o in self._copies if o not in graph.objects.growing]:
            yield from self._copies.pop(object_id).items()

    def lose(self, worker: WorkerNode) -> None:
        """Forget the copies of a lost worker."""
        for object_id, places in list(self._copies.items()):
            places.pop(worker, None)
            if not places:
                del self._copies[object_id]


class StreamFollowers:
    """Tracks the workers that copy a growing object from another worker, for a reader.

    If the stream breaks, the master orders these workers to stop copying. A worker whose
    connection only becomes silent does not notice that the stream broke; it would give the next
    reader the copy that a failed attempt has started.
    """

    def __init__(self, graph: TaskGraph) -> None:
        self._graph = graph
        self._workers: dict[ObjectId, dict[WorkerNode, None]] = {}

    def task_sent(self, worker: WorkerNode, inputs: Iterable[Reference]) -> None:
        """Note that the master sent a worker a task with these inputs."""
        for ref in inputs:
            if ref.id in self._graph.objects.growing:
                if worker.facts.netloc not in locations_of(ref):
                    self._workers.setdefault(ref.id, {})[worker] = None

    def of_broken(self) -> Iterator[tuple[WorkerNode, ObjectId]]:
        """Yield the workers that copied a stream which broke, unless the object is complete."""
        objects = self._graph.objects
        for object_id in [o for o in self._workers if o not in objects.growing]:
            workers = self._workers.pop(object_id)
            node = objects.get(object_id)
            if node is None or node.ref is None or node.failure is not None:
                yield from [(worker, object_id) for worker in workers]

    def lose(self, worker: WorkerNode) -> None:
        """Forget a lost worker."""
        for workers in self._workers.values():
            workers.pop(worker, None)
