"""Adds objects to a graph that no task declared as an output: uploads, further outputs that a task
publishes under its own name, and outputs that other tasks read while they grow.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ciel.core.ids import ObjectId, TaskId, root_task_id
from ciel.core.jobs import Job
from ciel.core.nodes import TaskNode
from ciel.core.refs import STREAMS, Fixed, Future, Reference
from ciel.core.tasks import Mentions

if TYPE_CHECKING:
    from ciel.core.graph import TaskGraph


def introduce(graph: TaskGraph, ref: Reference, job: Job) -> None:
    """Add an object that no task produces (an upload, an argument), for the lifetime of the job. If
    the graph knows the object already, its own knowledge is newer, and `ref` is ignored.
    """
    node = graph.objects.ensure(ref.id)
    is_there = not isinstance(ref, Future) and type(ref) not in STREAMS
    if node.producer is None and node.ref is None and is_there:
        node.holds += 1
        graph.objects.use(job.uploads, ref.id)
        graph.publish(ref)


def adopt(graph: TaskGraph, task: TaskNode, refs: Iterable[Reference]) -> None:
    """Make undeclared objects outputs of the task whose id they begin with."""
    prefix = f"{task.spec.id}:"
    found = []
    for ref in refs:
        if ref.id.startswith(prefix):
            node = graph.objects.ensure(ref.id)
            if node.producer is None and node.ref is None:
                node.producer = task
                node.holds += _is_named_freely(graph, task)
                found.append(ref.id)
    task.extras += tuple(found)


def adopt_named(graph: TaskGraph, object_id: ObjectId, job: Job) -> None:
    """Make an object that is named for the first time an output of the task whose id it begins
    with.
    """
    name = root_task_id(job.spec.id)
    if not object_id.startswith(f"{name}:"):
        name = TaskId(object_id.partition(":")[0])
    owner = graph.tasks.get(name)
    if owner is not None and owner.job is job:
        adopt(graph, owner, (Future(object_id),))


def publish_early(graph: TaskGraph, task: TaskNode, refs: Iterable[Reference]) -> None:
    """Publish the undeclared objects of a running task that it names to a child. Declared outputs
    are reported at the end of the task, and a process waits from then on.
    """
    named = [ref for ref in refs if ref.id.startswith(f"{task.spec.id}:")]
    adopt(graph, task, named)
    for ref in named:
        is_own = graph.objects.nodes[ref.id].producer is task and ref.id not in task.spec.outputs
        if is_own and type(ref) not in STREAMS and not isinstance(ref, Fixed):
            graph.publish(ref)


def open_streams(graph: TaskGraph, task: TaskNode, refs: Iterable[Reference]) -> None:
    """Outputs of a running task can be read while they grow."""
    adopt(graph, task, refs)
    for ref in refs:
        node = graph.objects.get(ref.id)
        if node is not None and node.producer is task and type(ref) in STREAMS:
            made = graph.streams.made.setdefault(task, [])
            if ref.id not in made:
                made.append(ref.id)
            graph.publish(ref)


def _is_named_freely(graph: TaskGraph, task: TaskNode) -> bool:
    """Whether anything that a task made or saw may name its outputs."""
    return task.mentions is Mentions.ANYTHING or is_named_by_others(graph, task)


def is_named_by_others(graph: TaskGraph, task: TaskNode) -> bool:
    """Whether what a task's parent made may name its outputs."""
    parent = graph.tasks.get(task.spec.parent)
    return parent is not None and parent.mentions is Mentions.ANYTHING
