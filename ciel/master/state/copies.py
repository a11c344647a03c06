"""Copies of streams: the worker of a reader may have received all of an object before its producer
has reported that.

The producer may still fail, so such a copy does not make the object complete. It is set aside until
the object is not a stream any more, and then listed or deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ciel.core.graph import TaskGraph
from ciel.core.ids import ObjectId
from ciel.core.refs import Failure, Reference, locations_of
from ciel.master.state.workers import WorkerNode


class EarlyCopies:
    """What workers said to hold while it still grew elsewhere."""

    def __init__(self, graph: TaskGraph) -> None:
        self._graph = graph
        self._copies: dict[ObjectId, dict[WorkerNode, Reference]] = {}

    def put_aside(self, worker: WorkerNode, refs: Iterable[Reference]) -> list[Reference]:
        """Take the copies out that come too early; return the others."""
        others = []
        for ref in refs:
            if ref.id in self._graph.objects.growing:
                self._copies.setdefault(ref.id, {})[worker] = ref
            else:
                others.append(ref)
        return others

    def take_back(self) -> Iterator[tuple[WorkerNode, Reference]]:
        """Yield the copies that are early no more, of objects that are there or are not."""
        graph = self._graph
        for object_id in [o for o in self._copies if o not in graph.objects.growing]:
            yield from self._copies.pop(object_id).items()

    def lose(self, worker: WorkerNode) -> None:
        """A worker is gone with its copies."""
        for object_id, places in list(self._copies.items()):
            places.pop(worker, None)
            if not places:
                del self._copies[object_id]


class StreamFollowers:
    """Workers that were sent a reader of an object while it grew elsewhere.

    If it breaks they follow it no longer. Most notice by themselves that no more comes, but a
    silent connection tells them nothing; and if they went on following it where nobody reads it any
    more, the next reader would be given what another attempt had begun.
    """

    def __init__(self, graph: TaskGraph) -> None:
        self._graph = graph
        self._workers: dict[ObjectId, dict[WorkerNode, None]] = {}

    def task_sent(self, worker: WorkerNode, inputs: Iterable[Reference]) -> None:
        """A worker was sent a task with these inputs."""
        for ref in inputs:
            if ref.id in self._graph.objects.growing:
                if worker.facts.netloc not in locations_of(ref):
                    self._workers.setdefault(ref.id, {})[worker] = None

    def of_broken(self) -> Iterator[tuple[WorkerNode, ObjectId]]:
        """Yield who followed what has broken since, unless somebody has all of it."""
        objects = self._graph.objects
        for object_id in [o for o in self._workers if o not in objects.growing]:
            workers = self._workers.pop(object_id)
            node = objects.get(object_id)
            if node is None or node.ref is None or type(node.ref) is Failure:
                yield from [(worker, object_id) for worker in workers]

    def lose(self, worker: WorkerNode) -> None:
        """A worker is gone with what it followed."""
        for workers in self._workers.values():
            workers.pop(worker, None)
