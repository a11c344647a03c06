"""Checks the memory of a million tiny objects, or a tenth of them without CIEL_LONG=1."""

from __future__ import annotations

import gc
import os

import pytest

from ciel.core.graph.invariants import validate
from ciel.core.graph.task_graph import TaskGraph
from ciel.core.ids import ObjectId
from ciel.testing.builders import a_job, a_task, inline
from ciel.testing.homes import private_bytes

pytestmark = pytest.mark.slow

OBJECTS = 1_000_000 if os.environ.get("CIEL_LONG") == "1" else 100_000
OF_ONE_TASK = 1000
BYTES_MAX = 400
"""For each object: its id, its content and its entry in the table."""


def test_tiny_objects_take_little_memory_and_are_all_there() -> None:
    graph, job = TaskGraph(), a_job()
    gc.collect()
    before_bytes = private_bytes(os.getpid())
    for first in range(0, OBJECTS, OF_ONE_TASK):
        task = a_task(*[f"o{number}" for number in range(first, first + OF_ONE_TASK)])
        graph.add(task, job)
        for output in task.outputs:
            graph.want(output, job)
        node = graph.tasks[task.id]
        graph.assign(node, "w1:8001")
        values = [inline(output, b"x" * (n % 2)) for n, output in enumerate(task.outputs)]
        graph.finish(node, values)
        graph.settled.clear()
        graph.runnable.clear()
    gc.collect()
    each_bytes = (private_bytes(os.getpid()) - before_bytes) / OBJECTS
    print(f"{OBJECTS:,} objects, {each_bytes:.0f} bytes for each")
    assert each_bytes < BYTES_MAX
    validate(graph)
    for name, content in ("o0", b""), ("o1", b"x"), (f"o{OBJECTS - 1}", b"x"):
        assert graph.objects.reference(ObjectId(name)) == inline(name, content)
