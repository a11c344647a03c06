"""Why a task runs, waits, or does not run: one line a reason, for people (CIB-1)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ciel.core.choices import choice_of
from ciel.core.ids import ObjectId
from ciel.core.refs import Failure
from ciel.core.tasks import TaskNode, TaskState
from ciel.master.state.machine import MasterMachine
from ciel.master.state.workers import WorkerNode

_INPUTS_MAX = 20
_CHAIN_MAX = 20


def describe(machine: MasterMachine, task: TaskNode, now_s: float) -> dict[str, Any]:
    """Tell all that is known of one task."""
    spec = task.spec
    reference = machine.graph.objects.reference
    story = machine.stories.get(spec.id)
    return {
        "task": spec.id,
        "job": task.job.number,
        "name": spec.name,
        "state": str(task.state),
        "runs": _runs(machine, task),
        "executor": spec.executor,
        "parent": None if spec.parent == spec.job else spec.parent,
        "attempt": task.attempt,
        "worker": task.worker,
        "needs": spec.needs._asdict(),
        "inputs": [reference(object_id) for object_id in spec.inputs[:_INPUTS_MAX]],
        "inputs_count": len(spec.inputs),
        "outputs": [reference(object_id) for object_id in spec.outputs[:_INPUTS_MAX]],
        "children": len(task.children or ()),
        "why": why(machine, task, now_s),
        "story": story.lines(now_s) if story else [],
    }


def why(machine: MasterMachine, task: TaskNode, now_s: float) -> list[str]:
    """Say why a task is in the state it is in."""
    match task.state:
        case TaskState.DORMANT:
            return ["nobody wants what it makes, so it does not run"]
        case TaskState.WAITING:
            return _why_waiting(machine, task)
        case TaskState.RUNNABLE:
            return _why_runnable(machine, task, now_s)
        case TaskState.ASSIGNED:
            if task in machine.held:
                return _why_held(machine, task)
            where = f"it was given to worker {task.worker} as attempt {task.attempt}"
            if not _runs(machine, task):
                where += ", and waits there for its turn"
            return [where, f"placed there since {task.reason}"] if task.reason else [where]
        case TaskState.DONE:
            ended = f"it ended well at attempt {task.attempt}"
            return [ended, f"placed there since {task.reason}"] if task.reason else [ended]
    outputs = [machine.graph.objects.reference(object_id) for object_id in task.spec.outputs]
    return [f"{ref.reason}: {ref.text}" for ref in outputs if isinstance(ref, Failure)][:1]


def _runs(machine: MasterMachine, task: TaskNode) -> bool:
    """Whether a program of a task runs now, and it is not still in a worker's line."""
    if task.state is not TaskState.ASSIGNED or task in machine.held:
        return False
    worker = machine.workers.get(task.worker or "")
    return worker is not None and task in worker.at_work()


def _why_waiting(machine: MasterMachine, task: TaskNode) -> list[str]:
    """Name the inputs that are missing, and what the first of them waits for, and so on."""
    lines = []
    missing = _missing(machine, task.spec.needed)
    for object_id in missing[:_INPUTS_MAX]:
        lines.append(f"it waits for {object_id}, {_maker(machine, object_id)}")
    if len(missing) > _INPUTS_MAX:
        lines.append(f"and for {len(missing) - _INPUTS_MAX} more")
    if machine.graph.waiting.is_awaited(choice_of(task.spec)):
        lines += _why_choosing(machine, task)
        missing += _missing(machine, task.spec.alternatives)
    seen = {task.spec.id}
    while missing and len(seen) < _CHAIN_MAX:
        node = machine.graph.objects.get(missing[0])
        maker = None if node is None else node.producer
        if maker is None or maker.state is not TaskState.WAITING or maker.spec.id in seen:
            break
        seen.add(maker.spec.id)
        missing = _missing(machine, maker.spec.inputs)
        if missing:
            whom = maker.spec.name or maker.spec.id
            lines.append(f"{whom} waits for {missing[0]}, {_maker(machine, missing[0])}")
    return lines


def _why_choosing(machine: MasterMachine, task: TaskNode) -> list[str]:
    alternatives = task.spec.alternatives
    lines = [f"it waits for any of {len(alternatives)} objects:"]
    for object_id in alternatives[:_INPUTS_MAX]:
        has_failed = isinstance(machine.graph.objects.reference(object_id), Failure)
        what = "which has failed" if has_failed else _maker(machine, object_id)
        lines.append(f"{object_id}, {what}")
    if len(alternatives) > _INPUTS_MAX:
        lines.append(f"or {len(alternatives) - _INPUTS_MAX} more")
    return lines


def _missing(machine: MasterMachine, objects: Iterable[ObjectId]) -> list[ObjectId]:
    nodes = machine.graph.objects.nodes
    return [object_id for object_id in objects if not nodes[object_id].is_consumable]


def _maker(machine: MasterMachine, object_id: str) -> str:
    node = machine.graph.objects.get(object_id)
    task = None if node is None else node.producer
    if task is None:
        return "which no task makes"
    place = f" on worker {task.worker}" if task.worker else ""
    return f"made by task {task.spec.name or task.spec.id}, which is {task.state}{place}"


def _why_held(machine: MasterMachine, task: TaskNode) -> list[str]:
    growing = list(machine.graph.streams.reading.get(task, ()))
    more = f" (and {len(growing) - 1} more)" if len(growing) > 1 else ""
    maker = _maker(machine, growing[0]) if growing else ""
    return [
        f"attempt {task.attempt} ended well on worker {task.worker}; its report "
        f"is held until {', '.join(growing[:1])} is whole{more}, {maker}"
    ]


def _why_runnable(machine: MasterMachine, task: TaskNode, now_s: float) -> list[str]:
    workers = list(machine.workers.values())
    if not workers:
        return ["it could run, but there is no worker; start one with ciel-worker"]
    blame = machine.blame.get(task.spec.id)
    if blame is not None and blame.not_before_s > now_s:
        wait_s = blame.not_before_s - now_s
        return [f"it failed before, and is tried again in {wait_s:.1f} s"]
    for worker in workers:
        if task in worker.parked or task in worker.bound:
            lines = [f"it waits for room on worker {worker.facts.id}: {_load(worker)}"]
            return [*lines, f"it should run there since {task.reason}"] if task.reason else lines
    lines = ["it could run, but every worker has as much as it can take:"]
    lines += [f"worker {worker.facts.id}: {_load(worker)}" for worker in workers[:_INPUTS_MAX]]
    ahead = machine.dispatcher.ready.count_from(task.spec.needs.priority)
    return [*lines, f"{ahead} tasks of its priority or a higher one are in line, itself included"]


def _load(worker: WorkerNode) -> str:
    facts = worker.facts
    running = min(worker.slots_used, facts.slots)
    ahead = worker.slots_used - running
    text = f"{running} of {facts.slots} slots taken, {ahead} more given ahead"
    if worker.disk.wait_s:
        bytes_, wait_s = worker.disk
        text += f", {bytes_} bytes to pass through its disk (about {wait_s:.3g} s)"
    return text
