"""Builds the messages of failures that the engine itself reports: the cause, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ciel.core.graph.nodes import TaskNode
    from ciel.core.graph.objects import ObjectTable
    from ciel.core.ids import ObjectId
    from ciel.core.refs import Failure


def label(task: TaskNode) -> str:
    """Return the label of a task for users: its name if it has one, otherwise its id."""
    return f"task {task.spec.name or task.spec.id}"


def propagated(objects: ObjectTable, failure: Failure) -> tuple[str, Any]:
    """Return the failure of a task that cannot run because an input has failed.

    It names the task that failed first, once, even at the end of a long chain.
    """
    node = objects.get(failure.id)
    producer = None if node is None else node.producer
    is_named = producer is not None and producer.spec.name
    return failure.propagated(label(producer) if producer is not None and is_named else "")


def no_output_text(task: TaskNode, object_id: ObjectId) -> str:
    """Return the message for a task that succeeded without producing one of its outputs."""
    outputs = task.spec.outputs
    number = outputs.index(object_id) if object_id in outputs else None
    what = object_id if number is None else f"output {number} of {len(outputs)}"
    return (
        f"{label(task)} succeeded, but did not produce {what}: its program must write each output, "
        "or delegate it to a task that it creates"
    )


def size_text(size_bytes: int | None) -> str:
    """Format a size with a binary unit; "" if it is not known."""
    if size_bytes is None:
        return ""
    size, unit = float(size_bytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size:.4g} {unit}"
