"""Decides what is deleted: intermediate objects that nothing needs, and copies that the object
table does not list.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ciel.core.graph import TaskGraph
from ciel.core.ids import ObjectId, is_output
from ciel.core.lost_objects import drop
from ciel.core.nodes import TaskNode
from ciel.core.objects import ObjectNode
from ciel.core.refs import Reference, locations_of
from ciel.master.state.workers import WorkerNode


class Kept(NamedTuple):
    """A client has put an object and called it `name`, at this time of the master's clock."""

    name: str
    since_s: float


def drop_unneeded(graph: TaskGraph) -> dict[str, list[ObjectId]]:
    """Forget what the graph says is droppable; return what is to be deleted, by location.

    A job that was submitted with `keep` loses nothing; an upload stays, since it has no maker.
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


def is_made_elsewhere(node: ObjectNode, place: str) -> bool:
    """Whether a task's output lies elsewhere, so that another attempt may have made it otherwise
    than one whose work was kept at `place`.
    """
    if node.producer is None or node.ref is None:
        return False
    return not locations_of(node.ref) <= {place}


def unlisted(
    graph: TaskGraph, worker: WorkerNode, refs: Iterable[Reference], *, idle: bool = False
) -> tuple[ObjectId, ...]:
    """Name what a worker holds and the table does not list there: an error, the work of an attempt
    that counts no more, what was forgotten. Not what another attempt may be making there now: that
    is spared till then. Nor what may be an upload that nobody has told of yet, unless it is `idle`.
    """
    doomed = []
    netloc = worker.facts.netloc
    for ref in refs:
        if netloc not in locations_of(ref):
            continue
        node = graph.objects.get(ref.id)
        if node is None:
            namesake = graph.tasks.get(ref.id.partition(":")[0])
            if namesake is not None and _may_make(worker, namesake):
                worker.spared[ref.id] = ref  # besides what it promised
            elif idle or is_output(ref.id):
                doomed.append(ref.id)
            continue
        maker = node.producer
        if maker is not None and _may_make(worker, maker):
            worker.spared[ref.id] = ref
        elif node.ref is None or netloc not in locations_of(node.ref):
            doomed.append(ref.id)
    return tuple(doomed)


def _may_make(worker: WorkerNode, task: TaskNode) -> bool:
    """Say whether an attempt at a task may run on a worker now."""
    return task.worker == worker.facts.id or task in worker.ahead
