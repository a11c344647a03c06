"""The tasks of a job all at once: those that run, ending them by force, and trying again what
failed.
"""

from __future__ import annotations

from collections.abc import Iterable

from ciel.core.graph import TaskGraph
from ciel.core.ids import ObjectId
from ciel.core.jobs import Job
from ciel.core.refs import Failure
from ciel.core.tasks import ASSIGNED, CANCELLED, DONE, FAILED, Mentions, TaskNode

_REVIVED = frozenset((DONE, FAILED, CANCELLED))


def running(graph: TaskGraph, job: Job) -> list[TaskNode]:
    """List the assigned tasks of a job."""
    if not job.counts[ASSIGNED]:
        return []
    tasks = graph.tasks
    known = [tasks[task_id] for task_id in job.tasks if task_id in tasks]
    return [task for task in known if task.state is ASSIGNED]


def cancel(graph: TaskGraph, job: Job, details: str) -> None:
    """End all unfinished tasks of a job, with what it still wants."""
    job.called_off = True
    for task_id in job.tasks:
        if task_id in graph.tasks:
            graph.fail(graph.tasks[task_id], "CANCELLED", details)
    for object_id in [o for o in job.wanted if not graph.objects.nodes[o].is_settled]:
        graph.publish(Failure(object_id, "CANCELLED", details))


def _makes_any(graph: TaskGraph, task: TaskNode) -> bool:
    """Whether a task makes an output, and no other makes all of them instead."""
    return any(graph.objects.nodes[object_id].producer is task for object_id in task.outputs)


def revive(graph: TaskGraph, job: Job, objects: Iterable[ObjectId] | None = None) -> int:
    """Have what failed of a job's results (or of these objects), or of what they name, made again;
    return how many tasks may run again. One that saw an error is not among them: its output stays
    as it is. Of a job that was cancelled all cancelled tasks are, since those that run again find
    their children there.
    """
    nodes = graph.objects.nodes
    revived: dict[TaskNode, None] = {}
    if objects is None and job.called_off:
        known = [graph.tasks[task_id] for task_id in job.tasks if task_id in graph.tasks]
        cancelled = [task for task in known if task.state is CANCELLED]
        revived = dict.fromkeys([task for task in cancelled if _makes_any(graph, task)])
    job.called_off = False
    seen: set[ObjectId] = set()
    pending = list(reversed(job.wanted)) if objects is None else list(objects)
    while pending:
        object_id = pending.pop()
        task = nodes[object_id].producer
        if object_id in seen or task is None or task.job is not job:
            continue
        seen.add(object_id)
        failed = type(nodes[object_id].ref) is Failure
        if failed and task.state in _REVIVED:
            revived[task] = None
        elif nodes[object_id].ref is None:
            pass  # who needed it failed before, so it was not made: what it needs may have failed
        elif failed or task.spec.sees_errors or task.mentions is Mentions.NOTHING:
            continue
        pending += task.spec.inputs
    for task in revived:
        for object_id in task.outputs:
            node = nodes[object_id]
            if node.producer is task and type(node.ref) is Failure:
                graph.objects.forget(node, object_id)
                for wanter in node.wanters:
                    wanter.unsettled += 1
        graph.reopen(task)
    for task in revived:
        graph.demand_outputs(task)
    return len(revived)
