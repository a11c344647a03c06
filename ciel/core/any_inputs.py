"""Lets a task run as soon as one of several inputs is there: the last `any_count` inputs of its
spec are alternatives.

The task waits for its other inputs like any task, and for its *choice*, an entry with a name of its
own in the waiting table. The choice is made when an alternative counts: an alternative that is
complete, or that has failed, if the task sees errors. A stream does not count. As long as the task
waits or runs, `TaskGraph.choosers` demands all alternatives, complete ones included, so that a lost
one is recomputed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ciel.core.failures import passed_on
from ciel.core.ids import ObjectId
from ciel.core.nodes import TaskNode
from ciel.core.objects import ObjectNode, ObjectTable
from ciel.core.refs import Failure, Future, Reference
from ciel.core.tasks import TaskSpec

if TYPE_CHECKING:
    from ciel.core.graph import TaskGraph


def choice_of(spec: TaskSpec) -> ObjectId:
    """Name a task's choice, as no object can be named."""
    return ObjectId(f"any {spec.id}")


def waits_for(spec: TaskSpec) -> tuple[ObjectId, ...]:
    """Name all that a task may wait for."""
    return (*spec.inputs, choice_of(spec)) if spec.any_count else spec.inputs


def _counts(node: ObjectNode, spec: TaskSpec) -> bool:
    return node.is_settled and (spec.sees_errors or type(node.ref) is not Failure)


def is_made(objects: ObjectTable, spec: TaskSpec) -> bool:
    """Whether an alternative counts now."""
    nodes = objects.nodes
    return any(_counts(nodes[object_id], spec) for object_id in spec.alternatives)


def last_failure(objects: ObjectTable, spec: TaskSpec) -> Failure | None:
    """Return an alternative's failure if the task sees no errors and they all have failed."""
    failure: Failure | None = None
    if not spec.sees_errors:
        for object_id in reversed(spec.alternatives):  # most come in order: soon one is not there
            ref = objects.nodes[object_id].ref
            if not isinstance(ref, Failure):
                return None
            failure = failure or ref
    return failure


def begin(graph: TaskGraph, task: TaskNode, missing: list[ObjectId]) -> list[ObjectId]:
    """Have a task count on its alternatives, and its choice among what is `missing` unless it is
    made; return all that is to be demanded. It fails if there is nothing to choose.
    """
    spec = task.spec
    if (failure := last_failure(graph.objects, spec)) is not None:
        graph.fail(task, *passed_on(graph.objects, failure))
        return []
    demanded = [*missing, *spec.alternatives]
    graph.choosers.wait(task, spec.alternatives)
    if not is_made(graph.objects, spec):
        missing.append(choice_of(spec))
    return demanded


def leave(graph: TaskGraph, task: TaskNode) -> None:
    """A task has run, or is not to run: what of its alternatives is not there may not be needed."""
    graph.choosers.forget(task, task.spec.alternatives)
    graph.release_demand(list(task.spec.alternatives))


def offer(graph: TaskGraph, object_id: ObjectId) -> list[tuple[TaskNode, str, object]]:
    """An object is settled: let those go on for which it is enough; return those that fail by it,
    since it was the last that they could have had.
    """
    node = graph.objects.nodes[object_id]
    failing: list[tuple[TaskNode, str, object]] = []
    for task in graph.choosers.waiters_of(object_id):
        choice = choice_of(task.spec)
        if not graph.waiting.is_awaited(choice):
            continue
        if _counts(node, task.spec):
            for ready in graph.waiting.release(choice):
                graph.make_runnable(ready)
        elif (failure := last_failure(graph.objects, task.spec)) is not None:
            graph.waiting.forget(task, waits_for(task.spec))
            failing.append((task, *passed_on(graph.objects, failure)))
    return failing


def given(objects: ObjectTable, spec: TaskSpec) -> tuple[Reference, ...]:
    """Return a task's inputs as it is given them now: alternatives that do not count are futures,
    whatever is known of them.
    """
    inputs = tuple([objects.reference(object_id) for object_id in spec.inputs])
    if not spec.any_count:
        return inputs
    alternatives = [
        ref if _counts(objects.nodes[ref.id], spec) else Future(ref.id)
        for ref in inputs[-spec.any_count :]
    ]
    return (*inputs[: -spec.any_count], *alternatives)
