"""Copies of objects that grow: a reader's worker has all of one before its maker has said so.

The maker may fail yet, so such a copy settles nothing. It is put aside until the object is no
stream any more: then it is known like any copy, or deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ciel.core.graph import TaskGraph
from ciel.core.ids import ObjectId
from ciel.core.refs import Reference
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
