"""Publishes objects before their task ends, and objects that no task produces.

These are uploads, objects that a running task passes to a child, and outputs that other tasks read
while they grow.
"""

from __future__ import annotations

from collections.abc import Iterable

from ciel.core.graph.nodes import TaskNode
from ciel.core.graph.task_graph import TaskGraph
from ciel.core.jobs import Job
from ciel.core.refs import STREAMS, Fixed, Future, Reference


def introduce(graph: TaskGraph, ref: Reference, job: Job) -> None:
    """Add an object that no task produces (an upload, an argument), for the lifetime of the job.

    If the graph knows the object already, its reference is newer, and `ref` is ignored.
    """
    node = graph.objects.ensure(ref.id)
    exists = not isinstance(ref, Future) and type(ref) not in STREAMS
    if node.producer is None and node.is_future and exists:
        node.holds += 1
        graph.objects.use(job.uploads, ref.id)
        graph.publish(ref)


def publish_early(graph: TaskGraph, task: TaskNode, refs: Iterable[Reference]) -> None:
    """Publish undeclared objects of a running task, which it passes to a child.

    Declared outputs and waiting processes are reported at the end of the task.
    """
    named = [ref for ref in refs if ref.id.startswith(f"{task.spec.id}:")]
    graph.undeclared_outputs.adopt(task, named)
    for ref in named:
        is_own = graph.objects.nodes[ref.id].producer is task and ref.id not in task.spec.outputs
        if is_own and type(ref) not in STREAMS and not isinstance(ref, Fixed):
            graph.publish(ref)


def open_streams(graph: TaskGraph, task: TaskNode, refs: Iterable[Reference]) -> None:
    """Note that outputs of a running task can be read while they grow."""
    graph.undeclared_outputs.adopt(task, refs)
    for ref in refs:
        node = graph.objects.get(ref.id)
        if node is not None and node.producer is task and type(ref) in STREAMS:
            opened = graph.streams.opened.setdefault(task, [])
            if ref.id not in opened:
                opened.append(ref.id)
            graph.publish(ref)
