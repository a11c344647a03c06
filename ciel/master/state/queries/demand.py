"""Describes what waits for slots, and the workers that give them, for launchers of workers.

The answer takes the same time whatever the number of tasks: of a long queue, it examines the first
tasks, and counts the rest in proportion.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from itertools import chain, islice
from typing import Any, Final

from ciel.core.graph.nodes import TaskNode
from ciel.core.tasks import RUNNABLE
from ciel.master.state.machine import MasterMachine
from ciel.master.state.workers import WorkerNode

EXAMINED_MAX: Final = 2000
"""The number of queued tasks that one answer examines; about 1 ms."""

ENDED_MAX: Final = 500
"""The number of latest attempts from which the usual run time of a job's tasks is derived."""


def describe(machine: MasterMachine) -> dict[str, Any]:
    """Return the waiting tasks, by their needs and job, and all workers."""
    return {
        "waiting": _waiting(machine),
        "workers": [_worker(machine, node) for node in machine.workers.values()],
    }


def _waiting(machine: MasterMachine) -> list[dict[str, Any]]:
    """Count the tasks that wait for slots, including tasks that a worker has queued."""
    dispatcher, nodes = machine.dispatcher, machine.workers.values()
    queues = [dispatcher.ready, *dispatcher.scarce.values()]
    length = sum(map(len, queues))
    first = list(islice(chain(*map(iter, queues)), EXAMINED_MAX))
    counts = _counted(task for task in first if task.state is RUNNABLE)
    if length > len(first):
        counts = {key: count * length / len(first) for key, count in counts.items()}
    on_workers = chain(*[chain(node.parked, node.bound, _behind(node)) for node in nodes])
    for key, count in _counted(on_workers).items():
        counts[key] = counts.get(key, 0) + count
    typical_s = _typical_s(machine)
    return [
        {
            "tasks": max(1, round(count)), "slots": slots, "memory_bytes": memory_bytes,
            "typical_s": typical_s.get(job),
        }
        for (slots, memory_bytes, job), count in counts.items()
    ]  # fmt: skip


Key = tuple[int, int, str]


def _counted(tasks: Iterable[TaskNode]) -> dict[Key, float]:
    counts: Counter[Key] = Counter()
    for task in tasks:
        needs = task.spec.needs
        counts[needs.slots, needs.memory_bytes, task.spec.job] += 1
    return dict(counts)


def _behind(node: WorkerNode) -> list[TaskNode]:
    """Return the tasks that were assigned to a worker beyond its slots."""
    running = set(node.running_tasks())
    return [
        task
        for (_, attempt), task in node.assigned.items()
        if task not in running and node.slots_of(task, attempt)
    ]


def _typical_s(machine: MasterMachine) -> Mapping[str, float]:
    """Return the mean run time of the latest tasks of each job, by its id."""
    times_s: defaultdict[str, list[float]] = defaultdict(list)
    for job, run_s in machine.timeline.latest(ENDED_MAX):
        times_s[job].append(run_s)
    return {job: round(sum(each) / len(each), 4) for job, each in times_s.items()}


def _worker(machine: MasterMachine, node: WorkerNode) -> dict[str, Any]:
    facts = node.facts
    return {
        "worker": facts.id, "allocation": facts.allocation, "slots": facts.slots,
        "memory_bytes": facts.memory_bytes,
        "busy": bool(node.assigned or node.eager or node.parked or node.bound),
        "has_objects": machine.graph.objects.has_any_at(facts.netloc),
        "draining": node.is_draining,
    }  # fmt: skip
