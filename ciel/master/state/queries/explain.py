"""Explains why a task runs, waits, or does not run: one line for each reason (CIB-1)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ciel.core.graph.any_inputs import choice_of
from ciel.core.graph.failures import label, size_text
from ciel.core.graph.nodes import TaskNode
from ciel.core.ids import ObjectId
from ciel.core.offers.resources import amount_text, amounts_text
from ciel.core.plans import HttpPlan, LinkPlan, StreamPlan, plans_for
from ciel.core.refs import Concrete, Failure, Sweetheart, locations_of
from ciel.core.retries import not_before_s
from ciel.core.tasks import TaskState, needs_json
from ciel.master.state.machine import MasterMachine
from ciel.master.state.queries.history import payload_text, ran
from ciel.master.state.workers import WorkerNode

_INPUTS_MAX = 20
_CHAIN_MAX = 20
_FULL_SHARE = 0.95
_WAYS = {
    LinkPlan: "a link to the file of",
    HttpPlan: "a copy by HTTP from",
    StreamPlan: "a copy while it grows from",
}


def describe(machine: MasterMachine, task: TaskNode, now_s: float) -> dict[str, Any]:
    """Describe one task in detail."""
    spec = task.spec
    reference = machine.graph.objects.reference
    task_history = machine.histories.get(spec.id)
    return {
        "task": spec.id,
        "job": task.job.number,
        "name": spec.name,
        "state": str(task.state),
        "runs": _runs(machine, task),
        "executor": spec.executor,
        "parent": None if spec.parent == spec.job else spec.parent,
        "attempt": task.attempt,
        **ran(machine, task),
        "payload": payload_text(spec),
        "needs": needs_json(spec.needs),
        "inputs": [reference(object_id) for object_id in spec.inputs[:_INPUTS_MAX]],
        "inputs_count": len(spec.inputs),
        "outputs": [reference(object_id) for object_id in spec.outputs[:_INPUTS_MAX]],
        "children": len(task.children or ()),
        "why": why(machine, task, now_s),
        "story": task_history.lines(now_s) if task_history else [],
    }


def why(machine: MasterMachine, task: TaskNode, now_s: float) -> list[str]:
    """Explain why a task is in its state, one line for each reason."""
    match task.state:
        case TaskState.DORMANT:
            if task.job.awaited:
                return [f"its job {task.job.reason}"]
            return ["no job or task needs its outputs, so it does not run"]
        case TaskState.WAITING:
            return _why_waiting(machine, task)
        case TaskState.RUNNABLE:
            return _why_runnable(machine, task, now_s)
        case TaskState.ASSIGNED:
            return _why_assigned(machine, task, now_s)
        case TaskState.DONE:
            ended = f"it succeeded at attempt {task.attempt}"
            if not task.attempt:
                ended = "it succeeded on the worker of its parent, which started it by itself"
            placed = _placed(task, "placed there")
            return [ended, *placed, *_handed_over(machine, task), *_failures(machine, task)]
    return _failures(machine, task) or [
        "its results were removed, and with them the reason of its failure"
    ]


def _failures(machine: MasterMachine, task: TaskNode) -> list[str]:
    """Return the failure of the first output that is an error of this task."""
    nodes = machine.graph.objects.nodes
    for object_id in task.spec.outputs:
        node = nodes.get(object_id)
        if node is not None and node.producer is task and isinstance(node.ref, Failure):
            return [f"{node.ref.reason}: {node.ref.text}"]
    return []


def _handed_over(machine: MasterMachine, task: TaskNode) -> list[str]:
    """Name the task to which a task delegated an output."""
    nodes = machine.graph.objects.nodes
    for object_id in task.spec.outputs:
        node = nodes.get(object_id)
        if node is not None and node.producer is not None and node.producer is not task:
            producer = node.producer
            named = label(producer)
            if named == label(task):  # a script's continuation has the script's name
                named += f" ({producer.spec.id})"
            return [f"{object_id} was delegated to {named}, which {_standing(machine, producer)}"]
    return []


def _runs(machine: MasterMachine, task: TaskNode) -> bool:
    """Whether a program of a task runs now, and the task is not just queued on its worker."""
    if task.state is not TaskState.ASSIGNED or task in machine.attempts.held_reports:
        return False
    worker = machine.workers.get(task.worker or "")
    if worker is None or task not in worker.running_tasks():
        return False
    return not _away(machine, task, worker)


def _why_assigned(machine: MasterMachine, task: TaskNode, now_s: float) -> list[str]:
    if task in machine.attempts.held_reports:
        return _why_held(machine, task)
    worker = machine.workers.get(task.worker or "")
    if worker is None:
        return [f"it was assigned to worker {task.worker}, which was lost since"]
    facts, key = worker.facts, (task.spec.id, task.attempt)
    age_s = now_s - worker.given_at_s.get(key, now_s)
    placed = _placed(task, "placed there")
    which = f"as attempt {task.attempt}" if task.attempt else "started there by its parent"
    if _runs(machine, task):
        lines = [f"it runs on worker {facts.id}, {which}; assigned {age_s:.1f} s ago", *placed]
        for object_id in machine.graph.running_waits.of(task)[:_INPUTS_MAX]:
            lines.append(f"its program waits for {object_id}, {_producer_text(machine, object_id)}")
        return lines + _full_store(worker)
    lines = [f"it was assigned to worker {facts.id} {which}, and is queued there", *placed]
    if task not in worker.running_tasks():
        lines.append(f"worker {facts.id}: {_load(worker)}")
    if key in worker.recalled:
        lines.append("it was recalled, since other workers are idle")
    away = _away(machine, task, worker)
    for ref in away[:_INPUTS_MAX]:
        size, places = size_text(ref.size_bytes), " ".join(sorted(ref.locations))
        lines.append(f"the worker fetches {ref.id}{size and f', {size}'}, from {places}")
        lines += _plans(machine, ref, worker)
    if len(away) > _INPUTS_MAX:
        lines.append(f"and {len(away) - _INPUTS_MAX} more")
    return lines


def _away(
    machine: MasterMachine, task: TaskNode, worker: WorkerNode
) -> list[Concrete | Sweetheart]:
    """Return the inputs that a worker has to fetch before a task can start there."""
    refs = [machine.graph.objects.reference(object_id) for object_id in task.spec.inputs]
    stored = [ref for ref in refs if isinstance(ref, Concrete | Sweetheart)]
    return [ref for ref in stored if worker.facts.netloc not in locations_of(ref)]


def _plans(machine: MasterMachine, ref: Concrete | Sweetheart, worker: WorkerNode) -> list[str]:
    """List the ways to fetch an input, in the order in which a worker tries them (CIB-3)."""
    hosts = {each.facts.netloc: each.facts.host for each in machine.workers.values()}
    plans = plans_for(ref, worker.facts.netloc, worker.facts.host, hosts)
    ways = [f"{_WAYS[type(plan)]} {plan.netloc}" for plan in plans[:_INPUTS_MAX]]
    return [f"the worker tries, in this order: {', '.join(ways)}"] if ways else []


def _full_store(worker: WorkerNode) -> list[str]:
    """List the levels of a worker's store that are full: writers wait, then fail."""
    lines = []
    for level in worker.stores.levels:
        capacity_bytes = level.get("capacity_bytes")
        used_bytes = level.get("used_bytes", 0) + level.get("reserved_bytes", 0)
        if capacity_bytes and used_bytes >= capacity_bytes * _FULL_SHARE:
            used, capacity = size_text(used_bytes), size_text(capacity_bytes)
            lines.append(
                f"the store of worker {worker.facts.id} is full ({used} of {capacity} in "
                f"{level.get('name')}): writers wait until there is space, or fail"
            )
    return lines


def _why_waiting(machine: MasterMachine, task: TaskNode) -> list[str]:
    """List the missing inputs, and the chain of tasks for which the first of them waits."""
    lines = []
    missing = _missing(machine, task.spec.needed)
    for object_id in missing[:_INPUTS_MAX]:
        lines.append(f"it waits for {object_id}, {_producer_text(machine, object_id)}")
    if len(missing) > _INPUTS_MAX:
        lines.append(f"and for {len(missing) - _INPUTS_MAX} more")
    if (worker := machine.eager.tasks.get(task)) is not None:
        eager = f"it was dispatched eagerly to worker {worker.facts.id}"
        lines.append(f"{eager}, and starts there as soon as it can")
    if machine.graph.waiting.is_awaited(choice_of(task.spec)):
        lines += _why_choosing(machine, task)
        missing += _missing(machine, task.spec.alternatives)
    seen = {task.spec.id}
    while missing and len(seen) < _CHAIN_MAX:
        node = machine.graph.objects.get(missing[0])
        producer = None if node is None else node.producer
        if producer is None or producer.state is not TaskState.WAITING or producer.spec.id in seen:
            break
        seen.add(producer.spec.id)
        missing = _missing(machine, producer.spec.inputs)
        if missing:
            whom = producer.spec.name or producer.spec.id
            lines.append(f"{whom} waits for {missing[0]}, {_producer_text(machine, missing[0])}")
    return lines


def _why_choosing(machine: MasterMachine, task: TaskNode) -> list[str]:
    alternatives = task.spec.alternatives
    lines = [f"it waits for any of {len(alternatives)} objects:"]
    for object_id in alternatives[:_INPUTS_MAX]:
        has_failed = isinstance(machine.graph.objects.reference(object_id), Failure)
        what = "which has failed" if has_failed else _producer_text(machine, object_id)
        lines.append(f"{object_id}, {what}")
    if len(alternatives) > _INPUTS_MAX:
        lines.append(f"or {len(alternatives) - _INPUTS_MAX} more")
    return lines


def _missing(machine: MasterMachine, objects: Iterable[ObjectId]) -> list[ObjectId]:
    nodes = machine.graph.objects.nodes
    return [object_id for object_id in objects if not nodes[object_id].is_consumable]


def _producer_text(machine: MasterMachine, object_id: str) -> str:
    node = machine.graph.objects.get(object_id)
    task = None if node is None else node.producer
    if task is None:
        return "which no task produces yet"
    return f"produced by {label(task)}, which {_standing(machine, task)}"


def _standing(machine: MasterMachine, task: TaskNode) -> str:
    place = f" on worker {task.worker}" if task.worker else ""
    return f"{'runs' if _runs(machine, task) else f'is {task.state}'}{place}"


def _why_held(machine: MasterMachine, task: TaskNode) -> list[str]:
    growing = list(machine.graph.streams.reading.get(task, ()))
    more = f" (and {len(growing) - 1} more)" if len(growing) > 1 else ""
    producer = _producer_text(machine, growing[0]) if growing else ""
    return [
        f"attempt {task.attempt} succeeded on worker {task.worker}; its report "
        f"is held until {', '.join(growing[:1])} is complete{more}, {producer}"
    ]


def _why_runnable(machine: MasterMachine, task: TaskNode, now_s: float) -> list[str]:
    workers = list(machine.workers.values())
    if not workers:
        return ["it could run, but the cluster has no worker; start one with ciel-worker"]
    retry_state = machine.retry_states.get(task.spec.id)
    wait_s = not_before_s(task, retry_state) - now_s
    if wait_s > 0:
        if retry_state is None:
            return [f"it is delayed for {wait_s:.1f} s more, as its creator requested"]
        return [f"attempt {task.attempt} failed; the task is retried in {wait_s:.1f} s"]
    for worker in workers:
        if task in worker.parked or task in worker.bound:
            lines = [f"it waits for room on worker {worker.facts.id}: {_load(worker)}"]
            return lines + _placed(task, "it should run there")
    short = machine.lives.why_short(task, workers)
    if len(short) == len(workers):
        return ["no worker lives long enough for it, and it waits for another one:", *short]
    return _why_no_room(machine, task, machine.lives.lasting(task, workers)) + short


def _why_no_room(
    machine: MasterMachine, task: TaskNode, workers: Sequence[WorkerNode]
) -> list[str]:
    needs = task.spec.needs
    if not any(worker.can_hold(needs) for worker in workers):
        return ["no connected worker can run it; it waits for one that a launcher can start"]
    if needs.io:
        return _why_no_disk(machine, task, workers)
    if needs.resources or needs.where:
        return _why_no_resources(machine, task, workers)
    if needs.memory_bytes:
        return _why_no_memory(machine, task, workers)
    reasons = {worker.facts.id: worker.facts.isolation.why_not(needs) for worker in workers}
    unable = {worker: why for worker, why in reasons.items() if why}
    able = [w for w in workers if needs.slots <= w.facts.slots and w.facts.id not in unable]
    if any(worker.has_room for worker in able):
        lines = ["it can run, and is queued for a worker that has room:"]
    else:
        lines = ["it could run, but no worker has room:"]
    lines += [f"worker {worker.facts.id}: {_load(worker)}" for worker in able[:_INPUTS_MAX]]
    lines += [f"worker {id_}: {why}" for id_, why in unable.items()][:_INPUTS_MAX]
    count = machine.dispatcher.ready.count_from(needs.priority)
    return [*lines, f"{count} tasks of its priority or a higher one are queued, including itself"]


def _placed(task: TaskNode, where: str) -> list[str]:
    """Explain the placement of a task by its policy; nothing if all workers were equally good."""
    if not task.reason:
        return []
    return [f"{where} since {task.reason} (policy {task.job.spec.scheduling.policy})"]


def _why_no_memory(
    machine: MasterMachine, task: TaskNode, workers: Sequence[WorkerNode]
) -> list[str]:
    """List how much memory each worker has left."""
    needed = task.spec.needs.memory_bytes
    able = [w for w in workers if task.spec.executor in w.facts.executors]
    lines = [f"it needs {size_text(needed)} of memory, which no worker has free now:"]
    for worker in able[:_INPUTS_MAX]:
        total = worker.facts.memory_bytes
        spare = size_text(max(total - worker.memory_used, 0)) or "nothing"
        has = f"{spare} of {size_text(total)} free" if total else "enough memory"
        lines.append(f"worker {worker.facts.id}: {has}, {_load(worker)}")
    return [*lines, _queued_text(machine, task)]


def _queued_text(machine: MasterMachine, task: TaskNode) -> str:
    """Say how many tasks wait for the same memory, disk or resources as a task."""
    needs, dispatcher = task.spec.needs, machine.dispatcher
    queue = dispatcher.scarce_queue(needs) or dispatcher.ready
    count = queue.count_from(needs.priority)
    return f"{count} tasks of its priority or a higher one wait, including itself"


def _why_no_resources(
    machine: MasterMachine, task: TaskNode, workers: Sequence[WorkerNode]
) -> list[str]:
    """List how much of the needed resources each worker has left."""
    needs = task.spec.needs
    able = [w for w in workers if task.spec.executor in w.facts.executors and w.can_hold(needs)]
    wanted = amounts_text(needs.resources) or "a worker"
    where = f" where {needs.where}" if needs.where else ""
    lines = [f"it needs {wanted}{where}; {len(able)} of {len(workers)} workers can have that:"]
    for worker in able[:_INPUTS_MAX]:
        has = "".join([f"{_spare(worker, name)}, " for name, _ in needs.resources])
        if not worker.has_memory(needs):
            has += "not enough memory free, "
        lines.append(f"worker {worker.facts.id}: {has}{_load(worker)}")
    return [*lines, _queued_text(machine, task)]


def _spare(worker: WorkerNode, name: str) -> str:
    total = worker.capacity.resources.get(name, 0)
    free = max(total - worker.resources_used.get(name, 0), 0)
    return f"{amount_text(free)} of {amount_text(total)} {name} free"


def _why_no_disk(
    machine: MasterMachine, task: TaskNode, workers: Sequence[WorkerNode]
) -> list[str]:
    """List how many tasks use the disk that bounds a task, on each worker."""
    io = task.spec.needs.io
    able = [w for w in workers if task.spec.executor in w.facts.executors]
    lines = [f"it is bound by the I/O of {io}, where no worker has room now:"]
    for worker in able[:_INPUTS_MAX]:
        used, limit = worker.disks.use_of(io)
        has = f"{used} tasks use it, of {limit} at a time" if limit else "it has no limit"
        lines.append(f"worker {worker.facts.id}: {has}, {_load(worker)}")
    return [*lines, _queued_text(machine, task)]


def _load(worker: WorkerNode) -> str:
    facts = worker.facts
    running = min(worker.slots_used, facts.slots)
    queued = worker.slots_used - running
    text = f"{running} of {facts.slots} slots taken, {queued} more queued"
    if worker.disk.wait_s:
        bytes_, wait_s = worker.disk
        text += f", {size_text(bytes_)} queued for its disk (about {wait_s:.3g} s)"
    return text
