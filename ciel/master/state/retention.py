"""Decides which objects are deleted.

These are intermediate objects that are not needed, and copies that the object table does not list.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ciel.core.events import CompareObjects, DropObjects
from ciel.core.graph.lost_objects import drop
from ciel.core.graph.nodes import TaskNode
from ciel.core.graph.objects import ObjectNode
from ciel.core.graph.task_graph import TaskGraph
from ciel.core.ids import ObjectId, is_output
from ciel.core.refs import Concrete, Reference, differs_in_content, locations_of
from ciel.master.state.context import Context
from ciel.master.state.workers import WorkerNode


class Kept(NamedTuple):
    """An object that a client stored under a `name`, and when, by the master's clock."""

    name: str
    since_s: float


def drop_unneeded(graph: TaskGraph) -> dict[str, list[ObjectId]]:
    """Forget droppable objects of the graph; return the copies to be deleted, by location.

    Objects of a job that was submitted with `keep` stay; so do uploads, since no task can recompute
    them.
    """
    droppable, graph.retention.droppable = graph.retention.droppable, []
    by_place: dict[str, list[ObjectId]] = {}
    for object_id in droppable:
        node = graph.objects.get(object_id)
        if node is None or node.producer is None or node.producer.job.spec.keep:
            continue
        for place in drop(graph, object_id):
            by_place.setdefault(place, []).append(object_id)
    return by_place


def has_copy_elsewhere(node: ObjectNode, place: str) -> bool:
    """Whether a task's output has a copy at another location than `place`.

    Another attempt may have produced that copy, with different content.
    """
    if node.producer is None or node.ref is None:
        return False
    return not locations_of(node.ref) <= {place}


class UnlistedCopies:
    """Copies that workers have and that the object table may not list.

    They are checked at the end of the tick, since a later message may list them; copies that are
    not listed are deleted.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._suspects: list[_Suspect] = []

    def __bool__(self) -> bool:
        return bool(self._suspects)

    def add(
        self,
        worker: WorkerNode,
        refs: Iterable[Reference],
        *,
        idle: bool = False,
        second: bool = False,
    ) -> None:
        """Check copies at the end of the tick.

        `idle`: no client will name them. `second`: an attempt has produced them after another one
        at the same task, so they are compared with the first ones.
        """
        self._suspects.append(_Suspect(worker, tuple(refs), idle, second))

    def delete(self) -> None:
        """Order workers to delete the copies that the table does not list."""
        suspects, self._suspects = self._suspects, []
        for suspect in suspects:
            worker, refs, idle, second = suspect
            if self._context.table.by_id.get(worker.facts.id) is not worker:
                continue
            if worker.is_listing:  # it repeats earlier reports, and lists its objects after
                self._suspects.append(suspect)
            elif unlisted := _unlisted(self._context.graph, worker, refs, idle=idle):
                firsts = self._firsts(refs, unlisted) if second else {}
                if firsts:
                    self._context.send(worker.facts.id, CompareObjects(tuple(firsts.values())))
                if rest := tuple([o for o in unlisted if o not in firsts]):
                    self._context.send(worker.facts.id, DropObjects(rest))

    def _firsts(
        self, seconds: Iterable[Reference], unlisted: tuple[ObjectId, ...]
    ) -> dict[ObjectId, Reference]:
        """Return the first results of which a worker may have others, by its second results."""
        firsts: dict[ObjectId, Reference] = {}
        for ref in seconds:
            node = self._context.graph.objects.get(ref.id)
            if ref.id in unlisted and node is not None and isinstance(node.ref, Concrete):
                if not differs_in_content(node.ref, ref):  # else the difference was noted
                    firsts[ref.id] = node.ref
        return firsts


class _Suspect(NamedTuple):
    worker: WorkerNode
    refs: tuple[Reference, ...]
    is_idle: bool
    is_second: bool


def _unlisted(
    graph: TaskGraph, worker: WorkerNode, refs: Iterable[Reference], *, idle: bool
) -> tuple[ObjectId, ...]:
    """Return the objects that a worker holds although the table does not list them there.

    These are errors, outputs of superseded attempts, and forgotten objects. Two kinds are left out.
    Another attempt may be producing an object there now: its deletion is postponed until the
    attempt ends. Another object may be an upload that no job has named yet, unless it is `idle`.
    """
    unlisted = []
    netloc = worker.facts.netloc
    for ref in refs:
        if netloc not in locations_of(ref):
            continue
        node = graph.objects.get(ref.id)
        if node is None:
            namesake = graph.tasks.get(ref.id.partition(":")[0])
            if namesake is not None and _may_produce(worker, namesake):
                worker.postponed_deletions[ref.id] = ref  # it may be an undeclared output
            elif idle or is_output(ref.id):
                unlisted.append(ref.id)
            continue
        producer = node.producer
        if producer is not None and _may_produce(worker, producer):
            worker.postponed_deletions[ref.id] = ref
        elif node.ref is None or netloc not in locations_of(node.ref):
            unlisted.append(ref.id)
    return tuple(unlisted)


def _may_produce(worker: WorkerNode, task: TaskNode) -> bool:
    """Return whether an attempt at a task may run on a worker now."""
    return task.worker == worker.facts.id or task in worker.eager
