"""Measures the task graph alone: the CPU time per task, and the memory of each waiting task.

The CPU time includes checking tasks and their ids, adding them to the graph, finding runnable
tasks, and assigning and completing them.

Expected cost of a task: two dictionary entries, one BLAKE2b digest (16 bytes, 32 hexadecimal
digits), four objects and three state transitions, about 4 us in this interpreter. The garbage
collector is configured as in the master: long-lived objects are frozen, and the thresholds are
high.
"""

from __future__ import annotations

import gc
import resource
import time
import tracemalloc

from ciel.core.graph.task_graph import TaskGraph
from ciel.core.ids import JobId, child_id, output_ids
from ciel.core.jobs import Job, JobSpec
from ciel.core.refs import Value
from ciel.core.tasks import DEFAULT_NEEDS, Mentions, TaskSpec, check_task

BATCH = 1000
FREEZE_EVERY_TASKS = 50_000  # as the master does
JOB = JobId("0123456789abcdef0123456789abcdef")
DIGEST = "4a" * 16


def make_spec(index: int, inputs: tuple[str, ...]) -> TaskSpec:
    """Create a task with its id, as a client does."""
    task_id = child_id(JOB, index, DIGEST)
    return TaskSpec(
        task_id, JOB, JOB, index, DIGEST, "stdinout", inputs, output_ids(task_id, 1),  # type: ignore[arg-type]  # plain text is an id here
        DEFAULT_NEEDS, False, Mentions.NOTHING, "", b"",
    )  # fmt: skip


def make_batch(base: int) -> list[TaskSpec]:
    """Create the tasks of one frame; every second task reads the output of its predecessor."""
    before: tuple[str, ...] = ()
    specs = []
    for index in range(base, base + BATCH):
        specs.append(make_spec(index, before))
        before = specs[-1].outputs if index % 2 == 0 else ()
    return specs


def run(count: int) -> float:
    """Add `count` tasks to a graph and complete them; return us per task.

    Every second task reads the output of its predecessor.
    """
    graph = TaskGraph()
    job = Job(JobSpec(JOB, "", open=True, detached=False, keep=False), 1, 0.0)
    elapsed = 0.0
    runnable = graph.runnable
    for base in range(0, count, BATCH):
        specs = make_batch(base)  # this is the client's part, which another benchmark measures
        started = time.process_time()
        for spec in specs:
            check_task(spec)
            graph.add(spec, job)
            graph.want(spec.outputs[0], job)
        if base % FREEZE_EVERY_TASKS == 0:
            gc.freeze()
        elapsed += time.process_time() - started
    started = time.process_time()
    done = 0
    while runnable:
        ready = runnable[:]
        runnable.clear()
        for task in ready:
            if graph.is_ready(task):
                graph.assign(task, "w")
                graph.finish(task, (Value(task.spec.outputs[0], "MQo="),))
                done += 1
        graph.settled.clear()
    assert done == count
    return (elapsed + time.process_time() - started) / count * 1e6


def waiting_bytes(count: int) -> float:
    """Return the memory of a task that waits for another task, without its payload, in bytes."""
    gc.collect()
    tracemalloc.start()
    graph = TaskGraph()
    job = Job(JobSpec(JOB, "", open=True, detached=False, keep=False), 1, 0.0)
    first = make_spec(0, ())
    graph.add(first, job)
    before, _ = tracemalloc.get_traced_memory()
    for index in range(1, count + 1):
        spec = make_spec(index, (str(first.outputs[0]),))
        graph.add(spec, job)
        graph.want(spec.outputs[0], job)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return (after - before) / count


def measure() -> dict[str, float]:
    """Measure everything; the garbage collector is configured as in the master."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 1000)
    small = sorted(run(100_000) for _ in range(3))[1]
    large = run(1_000_000)
    return {
        "us_per_task_1e5": small,
        "us_per_task_1e6": large,
        "ratio_1e6_to_1e5": large / small,
        "bytes_per_waiting_task": waiting_bytes(100_000),
        "max_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


if __name__ == "__main__":
    for name, value in measure().items():
        print(f"{name:28} {value:10.2f}")
