"""Checks that the tables of a master agree with each other at the end of a tick.

The simulator checks after every step. A master checks after an unexpected exception, and exits if
tables contradict each other (ADR 68). A problem is a pair: a task, object, worker or job, and a
description.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from ciel.core.graph import invariants
from ciel.core.graph.nodes import TaskNode
from ciel.core.graph.task_graph import TaskGraph
from ciel.core.ids import ObjectId
from ciel.core.jobs import JobState
from ciel.core.refs import Failure
from ciel.core.tasks import FINISHED, RUNNABLE, Mentions
from ciel.master.state.machine import MasterMachine

Problems = Iterator[tuple[str, str]]


def problems(master: MasterMachine) -> Problems:
    """Yield every broken invariant. This takes one second for about 100,000 tasks."""
    for text in invariants.problems(master.graph):
        yield text.split()[1], text
    yield from _slots(master)
    yield from _holds(master)
    yield from _stalled(master)
    yield from master.replication.problems()
    yield from master.membership.problems()


def _slots(master: MasterMachine) -> Problems:
    in_use = sum(len(worker.disks) for worker in master.workers.values())
    count = master.context.table.disks.total()
    if in_use != count:
        yield "disks", f"{count} attempts are counted, but workers list {in_use}"
    for worker_id, worker in master.workers.items():
        slots = sum(worker.slots_of(task, key[1]) for key, task in worker.assigned.items())
        if slots != worker.slots_used:
            yield worker_id, f"its slots_used is {worker.slots_used}, but its attempts use {slots}"
        own = [task.spec.needs for key, task in worker.assigned.items()
               if worker.slots_of(task, key[1])]  # fmt: skip
        memory = sum(needs.memory_bytes for needs in own)
        used = Counter[str]()
        for needs in own:
            used.update(dict(needs.resources))
        if +used != +Counter(worker.resources_used):
            has = f"its attempts use {dict(used)}"
            yield worker_id, f"its resources_used is {worker.resources_used}, but {has}"
        if memory != worker.memory_used:
            yield (
                worker_id,
                f"its memory_used is {worker.memory_used}, but its attempts use {memory}",
            )


def _holds(master: MasterMachine) -> Problems:
    """Count the reasons to hold each object, and compare the number with `ObjectNode.holds`."""
    if master.job_table.removed:
        return  # the tasks of a removed job are forgotten before their objects
    if any(True for _ in invariants.differing_children(master.graph)):
        return  # another task may be the producer of an output that a child names
    holds: defaultdict[str, int] = defaultdict(int)
    for task_id, task in master.graph.tasks.items():
        spec = task.spec
        parent = master.graph.tasks.get(spec.parent)
        is_free = task.mentions is Mentions.ANYTHING
        own = [o for o in task.outputs if master.graph.objects.nodes[o].producer is task]
        nodes = [master.graph.objects.nodes[o] for o in own]
        there = sum(node.is_settled and not isinstance(node.ref, Failure) for node in nodes)
        if spec.mentions is Mentions.INPUTS and task.live_outputs != there:
            live = task.live_outputs
            yield task_id, f"{there} of its outputs exist, but its live_outputs is {live}"
        if is_free or task.state not in FINISHED or task.live_outputs:
            for input_id in spec.inputs:
                holds[input_id] += 1
        if is_free or (parent is not None and parent.mentions is Mentions.ANYTHING):
            for object_id in task.outputs:
                if _produced_or_delegated(master.graph, task, object_id):
                    holds[object_id] += 1
    for job in master.jobs.values():
        for object_id in job.uploads:
            holds[object_id] += 1
    for object_id in master.kept:
        holds[object_id] += 1
    for known_id, node in master.graph.objects.nodes.items():
        if node.holds != holds.get(known_id, 0):
            count = holds[known_id]
            yield known_id, f"its holds is {node.holds}, but there are {count} reasons to hold it"


def _produced_or_delegated(graph: TaskGraph, task: TaskNode, object_id: ObjectId) -> bool:
    """Whether a task produces an output, or has delegated it, directly or through descendants."""
    producer = graph.objects.nodes[object_id].producer
    while producer is not None and producer is not task:
        producer = graph.tasks.get(producer.spec.parent)
    return producer is task


def _stalled(master: MasterMachine) -> Problems:
    """Find runnable tasks that are in no queue, and jobs that cannot make progress."""
    if master.has_more:
        return
    dispatcher = master.dispatcher
    queued = {task.spec.id for task in dispatcher.ready}
    queued |= {task.spec.id for queue in dispatcher.scarce.values() for task in queue}
    queued |= {task.spec.id for task in dispatcher._stranded}
    queued |= {task.spec.id for task in dispatcher.for_launchers}
    queued |= {task.spec.id for worker in master.workers.values() for task in worker.parked}
    queued |= {task.spec.id for worker in master.workers.values() for task in worker.bound}
    queued |= {task.spec.id for task in master.graph.runnable}
    for task_id, task in master.graph.tasks.items():
        if task.state is RUNNABLE and task_id not in queued:
            yield task_id, "it is runnable, but in no queue"
    workers = list(master.workers.values())
    is_idle = not any(worker.assigned for worker in workers)
    if is_idle and any(worker.takes_tasks for worker in workers):
        for task in [task for queue in dispatcher.scarce.values() for task in queue]:
            if task.state is RUNNABLE:
                yield task.spec.id, "it waits for a resource, although all workers are idle"
    for job in () if master.membership.awaited else master.jobs.values():
        if job.state is JobState.ACTIVE and not job.open and job.wanted:
            if not job.unsettled:
                yield job.spec.id, "all its wanted objects exist, but it has not ended"
            elif not job.is_busy:
                yield job.spec.id, "none of its tasks can run, but it has not ended"
