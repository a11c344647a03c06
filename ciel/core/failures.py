"""Words the failures that the engine itself reports: who is at fault, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ciel.core.ids import ObjectId
    from ciel.core.nodes import TaskNode
    from ciel.core.objects import ObjectTable
    from ciel.core.refs import Failure


def label(task: TaskNode) -> str:
    """Name a task to people: by its name if it has one."""
    return f"task {task.spec.name or task.spec.id}"


def propagated(objects: ObjectTable, failure: Failure) -> tuple[str, Any]:
    """Say why a task fails that never ran, since an input could not be made: whose fault that is,
    told once however long the chain.
    """
    node = objects.get(failure.id)
    producer = None if node is None else node.producer
    is_named = producer is not None and producer.spec.name
    return failure.propagated(label(producer) if producer is not None and is_named else "")


def no_output_text(task: TaskNode, object_id: ObjectId) -> str:
    """Say that a program ended well and left out one of its task's outputs."""
    outputs = task.spec.outputs
    number = outputs.index(object_id) if object_id in outputs else None
    what = "it" if number is None else f"output {number} of {len(outputs)}"
    return (
        f"{label(task)} ended well, but without making {what}: its program has to write each "
        "output, or to hand it over to a task that it creates"
    )


def size_text(size_bytes: int | None) -> str:
    """Write a size as people do; nothing if it is not known."""
    if size_bytes is None:
        return ""
    size, unit = float(size_bytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size:.4g} {unit}"
