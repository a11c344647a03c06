"""Cancels all tasks of a job, fails its missing results, and retries its failed tasks.

`cancel` and `retry_tasks` are generators. They yield when the graph has no steps left, and the
caller continues them when it has; other events may change the graph in between.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable

from ciel.core.graph.endings import OBJECTS_PER_STEP
from ciel.core.graph.lost_objects import OBJECT_LOST, recompute
from ciel.core.graph.nodes import TaskNode
from ciel.core.graph.task_graph import TaskGraph
from ciel.core.ids import ObjectId
from ciel.core.jobs import Job
from ciel.core.refs import Failure
from ciel.core.tasks import CANCELLED, DONE, FAILED, Mentions

_RETRIED = frozenset((DONE, FAILED, CANCELLED))


def cancel(graph: TaskGraph, job: Job, details: str) -> Generator[None, None, None]:
    """Cancel all unfinished tasks of a job, and fail its missing wanted objects."""
    job.is_cancelled = True
    graph.cancelling.add(job)
    for task_id in job.tasks:
        if task_id in graph.tasks:
            graph.fail(graph.tasks[task_id], "CANCELLED", details)
        graph.steps_left -= 1
        if graph.steps_left < 0:
            yield
    for place, object_id in enumerate(list(job.wanted)):
        node = graph.objects.nodes.get(object_id)
        is_missing = node is not None and job in node.wanters and not node.is_settled
        if is_missing:
            graph.publish(Failure(object_id, "CANCELLED", details))
        if is_missing or place % OBJECTS_PER_STEP == 0:
            graph.steps_left -= 1
            if graph.steps_left < 0:
                yield
    graph.cancelling.discard(job)


def fail_missing(graph: TaskGraph, job: Job, details: str) -> None:
    """Fail the missing wanted objects of a job, and the tasks of the job that would produce them.

    Its finished tasks may still run again to recompute lost objects.
    """
    for object_id in list(job.wanted):
        node = graph.objects.nodes[object_id]
        producer = node.producer
        if not node.is_settled and producer is not None and producer.job is job:
            graph.fail(producer, "CANCELLED", details)
        if not node.is_settled:
            graph.publish(Failure(object_id, "CANCELLED", details))


def _produces_any(graph: TaskGraph, task: TaskNode) -> bool:
    """Whether a task is the producer of at least one of its outputs."""
    return any(graph.objects.nodes[object_id].producer is task for object_id in task.outputs)


def retry_tasks(
    graph: TaskGraph, job: Job, objects: Iterable[ObjectId] | None = None
) -> Generator[None, None, int]:
    """Reset the failed tasks on which a job's results (or `objects`) depend.

    Return how many tasks may run again. A task that saw an error keeps its output. A cancelled job
    has all its cancelled tasks reset. The caller must always call `end_retry` afterwards.
    """
    nodes = graph.objects.nodes
    graph.retrying.add(job)
    postponed: dict[ObjectId, None] = {}
    job.postponed = postponed
    retried: dict[TaskNode, None] = {}
    if objects is None and job.is_cancelled:
        for place, task_id in enumerate(job.tasks):
            cancelled = graph.tasks.get(task_id)
            if cancelled is not None and cancelled.state is CANCELLED:
                if _produces_any(graph, cancelled):
                    retried[cancelled] = None
            if place % OBJECTS_PER_STEP == 0:
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
    job.is_cancelled = False
    seen: set[ObjectId] = set()
    pending = list(job.wanted)[::-1] if objects is None else list(objects)
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
        failed = known.failure is not None or object_id in expected
        if failed and task.state in _RETRIED:
            retried[task] = None
        elif known.is_future:
            # It was not produced because its reader failed first; its own inputs may have failed.
            pass
        elif failed or task.spec.sees_errors or task.mentions is Mentions.NOTHING:
            continue
        pending += task.spec.inputs
    for task in reversed(retried):  # usually producers before readers
        if task.state in _RETRIED:
            graph.reset_failed(task)
        graph.steps_left -= 1
        if graph.steps_left < 0:
            yield
    if not retried:
        return 0
    job.postponed = None
    graph.demanding += postponed
    for task in retried:
        graph.demand_outputs(task)
        graph.steps_left -= 1
        if graph.steps_left < 0:
            yield
    return len(retried)


def _forget_loss(graph: TaskGraph, job: Job, object_id: ObjectId) -> bool:
    """Turn an object that was lost while its job was cancelled into a future again.

    Return False if the object exists, or has another error.
    """
    node = graph.objects.nodes.get(object_id)
    if node is None or node.producer is None or node.producer.job is not job:
        return False
    if node.failure is None or node.failure.reason != OBJECT_LOST:
        return False
    graph.objects.forget(node)
    for wanter in node.wanters:
        wanter.unsettled += 1
    return True


def end_retry(graph: TaskGraph, job: Job) -> None:
    """End a retry: demand the objects whose demand was postponed during it."""
    postponed, job.postponed = job.postponed, None
    for object_id in postponed or ():
        node = graph.objects.nodes.get(object_id)
        if node is not None and node.is_future:
            recompute(graph, object_id, node)
    graph.retrying.discard(job)
