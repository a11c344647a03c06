"""The tasks of a job all at once: ending them by force, and trying again what failed.

Each is a generator that yields whenever the graph has no steps left, and is to be continued when
there are some: other things may happen to the graph in between.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable

from ciel.core.endings import LOOKED_AT_PER_STEP
from ciel.core.graph import TaskGraph
from ciel.core.ids import ObjectId
from ciel.core.jobs import Job
from ciel.core.losses import OBJECT_LOST, make_again
from ciel.core.nodes import TaskNode
from ciel.core.refs import Failure
from ciel.core.tasks import CANCELLED, DONE, FAILED, Mentions

_REVIVED = frozenset((DONE, FAILED, CANCELLED))


def cancel(graph: TaskGraph, job: Job, details: str) -> Generator[None, None, None]:
    """End all unfinished tasks of a job, with what it still wants."""
    job.called_off = True
    graph.ending.add(job)
    for task_id in job.tasks:
        if task_id in graph.tasks:
            graph.fail(graph.tasks[task_id], "CANCELLED", details)
        graph.steps_left -= 1
        if graph.steps_left < 0:
            yield
    for place, object_id in enumerate(list(job.wanted)):
        is_missing = object_id in job.wanted and not graph.objects.nodes[object_id].is_settled
        if is_missing:
            graph.publish(Failure(object_id, "CANCELLED", details))
        if is_missing or place % LOOKED_AT_PER_STEP == 0:
            graph.steps_left -= 1
            if graph.steps_left < 0:
                yield
    graph.ending.discard(job)


def _makes_any(graph: TaskGraph, task: TaskNode) -> bool:
    """Whether a task makes an output, and no other makes all of them instead."""
    return any(graph.objects.nodes[object_id].producer is task for object_id in task.outputs)


def revive(
    graph: TaskGraph, job: Job, objects: Iterable[ObjectId] | None = None
) -> Generator[None, None, int]:
    """Have what failed of a job's results (or of these objects), or of what they name, made again;
    return how many tasks may run again. One that saw an error is not among them: its output stays
    as it is. Of a job that was cancelled all cancelled tasks are, since those that run again find
    their children there. `stop_reviving` is to be called when it is over, in whatever way.
    """
    nodes = graph.objects.nodes
    graph.reviving.add(job)
    postponed: dict[ObjectId, None] = {}
    job.postponed = postponed
    revived: dict[TaskNode, None] = {}
    if objects is None and job.called_off:
        for place, task_id in enumerate(job.tasks):
            cancelled = graph.tasks.get(task_id)
            if cancelled is not None and cancelled.state is CANCELLED:
                if _makes_any(graph, cancelled):
                    revived[cancelled] = None
            if place % LOOKED_AT_PER_STEP == 0:
                graph.steps_left -= 1
                if graph.steps_left < 0:
                    yield
    expected: dict[ObjectId, None] = {}
    while job.lost:
        object_id = job.lost.pop()
        if _forget_loss(graph, job, object_id):
            expected[object_id] = None
            postponed[object_id] = None
        graph.steps_left -= 1
        if graph.steps_left < 0:
            yield
    job.called_off = False
    seen: set[ObjectId] = set()
    pending = list(reversed(job.wanted)) if objects is None else list(objects)
    while pending:
        graph.steps_left -= 1
        if graph.steps_left < 0:
            yield
        object_id = pending.pop()
        known = nodes.get(object_id)
        task = None if known is None else known.producer
        if known is None or object_id in seen or task is None or task.job is not job:
            continue
        seen.add(object_id)
        failed = type(known.ref) is Failure or object_id in expected
        if failed and task.state in _REVIVED:
            revived[task] = None
        elif known.ref is None:
            pass  # who needed it failed before, so it was not made: what it needs may have failed
        elif failed or task.spec.sees_errors or task.mentions is Mentions.NOTHING:
            continue
        pending += task.spec.inputs
    for task in reversed(revived):  # what it reads before it, as a rule
        if task.state in _REVIVED:
            graph.try_again(task)
        graph.steps_left -= 1
        if graph.steps_left < 0:
            yield
    if not revived:
        return 0
    job.postponed = None
    graph.demanding += postponed
    for task in revived:
        graph.demand_outputs(task)
        graph.steps_left -= 1
        if graph.steps_left < 0:
            yield
    return len(revived)


def _forget_loss(graph: TaskGraph, job: Job, object_id: ObjectId) -> bool:
    """Let an object be expected again that was lost while its job was called off; False if another
    error took its place, or it is there.
    """
    node = graph.objects.nodes.get(object_id)
    if node is None or node.producer is None or node.producer.job is not job:
        return False
    if type(node.ref) is not Failure or node.ref.reason != OBJECT_LOST:
        return False
    graph.objects.forget(node, object_id)
    for wanter in node.wanters:
        wanter.unsettled += 1
    return True


def stop_reviving(graph: TaskGraph, job: Job) -> None:
    """No more tasks of a job are put back: what was lost meanwhile waits for that no longer."""
    postponed, job.postponed = job.postponed, None
    for object_id in postponed or ():
        node = graph.objects.nodes.get(object_id)
        if node is not None and node.ref is None:
            make_again(graph, object_id, node)
    graph.reviving.discard(job)
