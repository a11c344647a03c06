"""Checks the invariants of a task graph; each broken invariant is reported with its code.

O1-O7: objects agree with locations, and with the tasks that name them. S1-S5: streams agree with
their producers and readers. T1-T5: tasks wait for missing objects that an active task produces.
T6-T8: tasks with alternatives demand all of them, and wait until one is enough. J1-J4: the counts
of jobs are right, and their wanted objects are being produced. Deferred work (see `deferred`) is an
exception: tasks may still wait for an object that exists, and producers may not be active yet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ciel.core.errors import InvariantError
from ciel.core.graph import any_inputs
from ciel.core.graph.nodes import TaskNode
from ciel.core.graph.task_graph import TaskGraph
from ciel.core.tasks import ACTIVE, ASSIGNED, DONE, WAITING, TaskState


def validate(graph: TaskGraph) -> None:
    """Check every link of a graph in both directions, for tests; raises InvariantError."""
    for problem in problems(graph):
        raise InvariantError(problem.split()[0], problem)


def problems(graph: TaskGraph) -> Iterator[str]:
    """Yield every broken invariant, its code first."""
    yield from graph.objects.problems()
    yield from graph.streams.problems()
    yield from _name_problems(graph)
    yield from _task_problems(graph)
    yield from _job_problems(graph)


def differing_children(graph: TaskGraph) -> Iterator[tuple[TaskNode, int]]:
    """Yield each parent whose attempts created different tasks, with the number of the child."""
    for task in graph.tasks.values():
        parent = graph.tasks.get(task.spec.parent)
        if parent is not None and parent.children is not None:
            if parent.children.get(task.spec.ordinal, task.spec.id) != task.spec.id:
                yield parent, task.spec.ordinal


def _name_problems(graph: TaskGraph) -> Iterator[str]:
    users: Counter[str] = Counter()
    for task_id, task in graph.tasks.items():
        for object_id in (*task.spec.inputs, *task.outputs):
            node = graph.objects.get(object_id)
            if node is None:
                yield f"O5 {task_id} names {object_id}, which was forgotten"
            users[object_id] += node is None or node.producer is not task
        for object_id in task.undeclared:
            if not object_id.startswith(f"{task_id}:") or object_id in task.spec.outputs:
                yield f"O7 {object_id} is not an extra output of {task_id}"
    for known_id, known in graph.objects.nodes.items():
        if known.users != users[known_id]:
            yield f"O5 {known_id} is named by {users[known_id]} users, it counts {known.users}"


def _task_problems(graph: TaskGraph) -> Iterator[str]:
    notifying = set(graph.notifying)
    for task_id, task in graph.tasks.items():
        spec = task.spec
        if task.state is WAITING:
            awaited = [i for i in any_inputs.waits_for(spec) if task in graph.waiting.waiters_of(i)]
            if not awaited or graph.waiting.missing_of(task) != len(awaited):
                yield f"T1 {task_id} waits for {awaited}, but its count differs"
            for object_id in awaited:
                if object_id not in graph.objects.nodes:
                    continue  # the name of its choice, not of an object
                if object_id in notifying:
                    continue
                if graph.objects.nodes[object_id].is_consumable:
                    yield f"T2 {task_id} waits for {object_id}, which exists"
                producer = graph.objects.nodes[object_id].producer
                is_deferred = bool(graph.demanding) or task.job in graph.cancelling | graph.retrying
                is_deferred |= producer is not None and producer.job.postponed is not None
                if producer is not None and producer.state not in ACTIVE and not is_deferred:
                    yield f"T3 {task_id} waits for {object_id}, its producer is {producer.state}"
        elif task in graph.waiting:
            yield f"T4 {task_id} is {task.state} and still waits"
        if (task.state is ASSIGNED) != (task.worker is not None):
            yield f"T5 {task_id} is {task.state} on worker {task.worker}"
        if spec.any_count or task in graph.any_inputs.choosers:
            yield from graph.any_inputs.problems(task, is_deferred=bool(graph.demanding))


def _job_problems(graph: TaskGraph) -> Iterator[str]:
    for job in {task.job for task in graph.tasks.values()}:
        counts = dict.fromkeys(TaskState, 0)
        for task_id in job.tasks:
            if task_id in graph.tasks:  # else its results were handed over
                counts[graph.tasks[task_id].state] += 1
        counts[DONE] += job.handed_over
        if counts != job.counts:
            yield f"J1 {job} has the counts {job.counts}, not {counts}"
        known = []
        for object_id in job.wanted:
            node = graph.objects.nodes.get(object_id)
            if node is None or job not in node.wanters:
                yield f"J4 {job} wants {object_id}, which does not say so"
            else:
                known.append(node)
        unsettled = [node.id for node in known if not node.is_settled]
        if len(unsettled) != job.unsettled:
            yield f"J2 {job} says {job.unsettled} of its objects are missing, not {unsettled}"
        for object_id in unsettled:
            producer = graph.objects.nodes[object_id].producer
            is_deferred = bool(graph.demanding) or job in graph.cancelling | graph.retrying
            is_deferred |= producer is not None and producer.job.postponed is not None
            if producer is not None and producer.state not in ACTIVE and not is_deferred:
                yield f"J3 {object_id} is wanted, its producer is {producer.state}"
