"""Answers queries about the cluster, its workers, jobs and tasks, and carries out changes.

    status, workers, stores     the whole cluster; all workers; the contents and counters of stores
    demand                      see `demand`
    jobs {limit, first, last, state}
                                summaries of the newest jobs, oldest first; only those with numbers
                                from `first` to `last`, or in a state
    jobs {job}                  the summary of one job; quick even if the job is large
    job {job}                   one job: its summary, its results, its failures, its first tasks
    results {job, first}        a page of its wanted objects, with the names of their tasks
    tasks {job, first, state, elements}
                                a page of its tasks; only those in a state, or of the elements
                                [first, last, step]
    progress {job}              its tasks of each kind, counted by state
    graph {job, first}          a page of its tasks with their inputs and outputs
    task {job, task}, task {object}
                                one task in detail, or the producer of an object
    service {job}               the replicas of a service: tasks, addresses, failures
    trace {jobs, first}         a page of their attempts, with times
    object, objects             see `object_locations`

Queries name a job by its number, its id, its name, or `last`, and a task by its name, its id, or
its number. Only `change` changes the machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, TypeVar

from ciel.core.errors import CielError
from ciel.core.events import Change
from ciel.core.graph.nodes import TaskNode
from ciel.core.jobs import Job, JobState, Kind, summarise, summarise_briefly
from ciel.core.offers.resources import amount_json
from ciel.core.refs import Concrete, Failure, Reference, Value, locations_of
from ciel.core.tasks import TaskState
from ciel.master.state.machine import MasterMachine
from ciel.master.state.queries import demand, explain, history, object_locations
from ciel.master.state.workers import WorkerNode

RESULTS_MAX = 1000
FAILURES_MAX = 100
ROOM_CHARACTERS = 1 << 20  # of references in one answer: failures may have long messages
JOBS_LISTED_MAX = 1000  # in one answer; about 15 ms
TASKS_LISTED_MAX = 1000
TASKS_OF_JOB_MAX = 10  # in the answer to `job`
TASKS_SCANNED_MAX = 10_000  # for one page; about 5 ms
TASKS_COUNTED_MAX = 5_000  # by kind, for one answer; about 10 ms
RESULTS_SCANNED_MAX = 100_000  # for errors; about 20 ms
NAMES_SCANNED_MAX = 50_000  # for a task with a given name; about 10 ms
DRAIN_MAX_S = 10**8  # three years
REPLICAS_MAX = 1000
GRAPH_PAGE_MAX = 4000  # the size of a page, in objects; about 10 ms
_GRAPH_TEXT_MAX_LENGTH = 1000
_SHOWN_MAX_LENGTH = 150  # of a selector; an id has 128


R = TypeVar("R", bound=Reference)


class UnknownQueryError(CielError):
    """A query cannot be answered; the message says why."""


def workers(machine: MasterMachine, now_s: float) -> list[dict[str, Any]]:
    """Describe all workers."""
    return [
        {
            "worker": worker.facts.id,
            "netloc": worker.facts.netloc,
            "host": worker.facts.host,
            "hostname": worker.facts.hostname or None,
            "allocation": worker.facts.allocation or None,
            "slots": worker.facts.slots,
            "running": min(worker.slots_used, worker.facts.slots),
            "queued": max(worker.slots_used - worker.facts.slots, 0)
            + len(worker.parked)
            + len(worker.bound),
            "memory_bytes": worker.facts.memory_bytes,
            "memory_asked_bytes": worker.memory_used,
            "resources": {
                offer.name: {
                    "total": amount_json(offer.amount),
                    "used": amount_json(worker.resources_used[offer.name]),
                    "indices": list(offer.indices),
                }
                for offer in worker.facts.resources
            },
            "labels": dict(worker.facts.labels),
            "silent_s": round(now_s - worker.heard_at_s, 3),
            "suspicion": worker.suspicion,
            "draining": machine.draining.describe(worker),
            "executors": sorted(worker.facts.executors),
            "lacking": dict(worker.facts.lacking),
            "isolation": {
                "least": worker.facts.isolation.least,
                "lacking": dict(worker.facts.isolation.lacking),
            },
            "software": worker.facts.software,
        }
        for worker in machine.workers.values()
    ]


def stores(machine: MasterMachine) -> list[dict[str, Any]]:
    """Describe every level of every worker's store, the fastest level of a store first."""
    return [
        {"worker": node.facts.id, "netloc": node.facts.netloc, **level,
         "disk_waiting": node.stores.disk_waiting}
        for node in machine.workers.values()
        for level in node.stores.levels
    ]  # fmt: skip


def status(machine: MasterMachine, now_s: float) -> dict[str, Any]:
    """Describe the cluster as a whole."""
    return {
        "workers": workers(machine, now_s),
        "jobs": {str(state): count for state, count in machine.job_table.totals.items() if count},
        "tasks": {
            str(state): count for state, count in machine.job_table.task_totals.items() if count
        },
        "objects": len(machine.graph.objects),
    }


def jobs(machine: MasterMachine, arguments: dict[str, Any]) -> list[list[Any]]:
    """List jobs, the newest last.

    List only jobs with numbers from `first` to `last`, or in `state`, or only one `job`, if these
    are given. Raises UnknownQueryError if that one job is unknown.
    """
    if (selector := arguments.get("job")) is not None:
        return [list(summarise(find(machine, selector)))]
    limit, first, last = (arguments.get(name) for name in ("limit", "first", "last"))
    count = limit if isinstance(limit, int) and 0 < limit < JOBS_LISTED_MAX else JOBS_LISTED_MAX
    found = list(machine.jobs.values())
    if isinstance(first, int) and isinstance(last, int):
        found = [job for job in found if first <= job.number <= last]
    if (state := arguments.get("state")) is not None:
        found = [job for job in found if str(job.state) == state]
    return [list(summarise_briefly(job)) for job in found[-count:]]


def find(machine: MasterMachine, selector: Any) -> Job:
    """Find a job by its number, its id, its name (the newest job of this name), or `last`."""
    by_id = machine.jobs
    if selector == "last" and by_id:
        return next(machine.job_table.newest_first())
    if isinstance(selector, str) and selector in by_id:
        return by_id[selector]
    number = _number(selector)
    for job in by_id.values():
        if job.number == number:
            return job
    if isinstance(selector, str) and selector:
        for job in machine.job_table.newest_first():
            if job.spec.name == selector:
                return job
    shown = object_locations.shown_name(selector)
    raise UnknownQueryError(f"there is no job {shown}; `ciel job list` lists all jobs")


def _number(selector: Any) -> int | None:
    """Return a selector as a number; None if it is not a number."""
    if isinstance(selector, str) and selector.isdecimal() and len(selector) < _SHOWN_MAX_LENGTH:
        return int(selector)
    return selector if isinstance(selector, int) else None


def find_task(machine: MasterMachine, job: Job, selector: Any) -> TaskNode:
    """Find a task of a job by its name (for an element, its number), its id, or its position.

    Positions count from 1.
    """
    tasks = machine.graph.tasks
    if isinstance(selector, str) and selector in tasks and tasks[selector].job is job:
        return tasks[selector]
    place = (_number(selector) or 0) if isinstance(selector, str) else 0
    near = tasks.get(job.tasks[place - 1]) if 0 < place <= len(job.tasks) else None
    if near is not None and near.spec.name == selector:
        return near  # the usual case in arrays; otherwise all tasks have to be searched
    for task_id in islice(job.tasks, NAMES_SCANNED_MAX):
        task = tasks.get(task_id)
        if task is not None and task.spec.name == selector:
            return task
    if near is not None:
        return near
    shown = object_locations.shown_name(selector)
    if len(job.tasks) > NAMES_SCANNED_MAX:
        some = f"none of the first {NAMES_SCANNED_MAX} tasks of job {job.number} is called"
        raise UnknownQueryError(f"{some} {shown}; name it by its id or its number")
    raise UnknownQueryError(f"job {job.number} has no task {shown}{_gone(job)}")


def find_producer(machine: MasterMachine, object_id: Any) -> TaskNode:
    """Find the producer of an object."""
    node = machine.graph.objects.get(object_id) if isinstance(object_id, str) else None
    if node is None or node.producer is None:
        shown = object_locations.shown_name(object_id)
        raise UnknownQueryError(f"the master knows no task that produces {shown}")
    return node.producer


def _gone(job: Job) -> str:
    """Explain why a task of a job may not be found."""
    if not job.handed_over:
        return ""
    return (
        f" (it handed {job.handed_over} results over to its client and forgot their tasks; "
        "a job submitted with --detach keeps all)"
    )


def job(machine: MasterMachine, selector: Any) -> dict[str, Any]:
    """Describe one job.

    The description has its summary, its results and failures, its first task, the workers that ran
    it, and how its first tasks ended.
    """
    found = find(machine, selector)
    reference = machine.graph.objects.reference
    results = _within_room(reference(o) for o in islice(found.wanted, RESULTS_MAX))
    failures = list(_within_room(islice(_failures(machine, found), FAILURES_MAX)))
    producers = [machine.graph.objects.nodes[failure.id].producer for failure in failures]
    return {
        "summary": list(summarise(found)),
        "results": list(results),
        "failures": [list(failure) for failure in failures],
        "failed_tasks": [
            None if producer is None else producer.spec.name for producer in producers
        ],
        "open": found.open,
        "first_task": history.first_task(found),
        "ran_on": history.ran_on(found),
        "history": history.of_job(machine, found),
        "tasks": tasks(machine, {"job": found.spec.id, "limit": TASKS_OF_JOB_MAX})["tasks"],
    }


def _within_room(refs: Iterable[R]) -> Iterator[R]:
    """Yield at least one reference, and more until an answer has the maximum length."""
    room = ROOM_CHARACTERS
    for ref in refs:
        yield ref
        if isinstance(ref, Failure):
            room -= len(str(ref.details))
        elif isinstance(ref, Value):
            room -= len(ref.encoded)
        if room <= 0:
            return


def _failures(machine: MasterMachine, job: Job) -> Iterator[Failure]:
    """Yield the errors among the first `RESULTS_SCANNED_MAX` results of a job."""
    counts = job.counts
    may_have = counts[TaskState.FAILED] or counts[TaskState.CANCELLED]
    if may_have or job.state is JobState.FAILED:
        for object_id in islice(job.wanted, RESULTS_SCANNED_MAX):
            ref = machine.graph.objects.reference(object_id)
            if isinstance(ref, Failure):
                yield ref


def tasks(machine: MasterMachine, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return a page of tasks of a job, in the order of their creation, from position `first` on.

    List only tasks in `state` or of `elements`, if these are given. `next` is the `first` of the
    next page, None at the end.
    """
    found = find(machine, arguments.get("job"))
    first, state = arguments.get("first"), arguments.get("state")
    limit = arguments.get("limit")
    row_count = (
        limit if isinstance(limit, int) and 0 < limit < TASKS_LISTED_MAX else TASKS_LISTED_MAX
    )
    elements = _elements(arguments.get("elements"))
    start = first if isinstance(first, int) and first > 0 else 0
    page = found.tasks[start : start + TASKS_SCANNED_MAX]
    nodes = machine.graph.tasks
    rows: list[dict[str, Any]] = []
    position = start
    for position, task_id in enumerate(page, start + 1):
        task = nodes.get(task_id)
        if task is None or (state is not None and str(task.state) != state):
            continue
        if elements is None or _element(task, position) in elements:
            rows.append(_task_row(machine, position, task))
            if len(rows) == row_count:
                break
    return {
        "tasks": rows,
        "next": position if position < len(found.tasks) else None,
        "job": found.number,
        "handed_over": found.handed_over,
    }


def _elements(value: Any) -> range | None:
    """Read `[first, last, step]`, both ends included; None selects all tasks."""
    match value:
        case [int(first), int(last), int(step)] if step > 0:
            return range(first, last + 1, step)
    return None


def _element(task: TaskNode, position: int) -> int:
    """Return the number of a task: its index in its array, or its position in the job."""
    name = task.spec.name
    return int(name) if name.isascii() and name.isdecimal() and len(name) < 20 else position


def _task_row(machine: MasterMachine, position: int, task: TaskNode) -> dict[str, Any]:
    return {
        **_facts(position, task),
        **history.ran(machine, task),
        "payload": history.payload_text(task.spec),
        **_service(machine, task),
        **_result(machine.graph.objects.reference(task.spec.outputs[0])),
    }


def _facts(position: int, task: TaskNode) -> dict[str, Any]:
    return {
        "number": position,
        "name": task.spec.name,
        "task": task.spec.id,
        "state": str(task.state),
        "executor": task.spec.executor,
        "attempt": task.attempt,
        "worker": task.worker,
    }


def _service(machine: MasterMachine, task: TaskNode) -> dict[str, Any]:
    """Mark a task that is a replica of a service."""
    address = machine.context.service_of(task)
    return {} if address is None else {"service": address}


def _result(ref: Reference) -> dict[str, Any]:
    if isinstance(ref, Failure):
        return {"failed": ref.reason}
    return {"size_bytes": ref.size_bytes} if isinstance(ref, Value | Concrete) else {}


def graph(machine: MasterMachine, arguments: dict[str, Any], now_s: float) -> dict[str, Any]:
    """Return a page of tasks of a job, in the order of creation, with their inputs and outputs.

    Each input or output is [object, state, size in bytes or None, its producer, whether the job
    wants it].

    `next` is the `first` of the next page, None at the end. A task with very many objects is split:
    the next page then starts with the same task and its remaining objects.
    """
    found = find(machine, arguments.get("job"))
    place, returned = _read_place(arguments.get("first"))
    end = min(place + TASKS_SCANNED_MAX, len(found.tasks))
    nodes = machine.graph.tasks
    rows: list[dict[str, Any]] = []
    room = GRAPH_PAGE_MAX
    while place < end and room > 0:
        task = nodes.get(found.tasks[place])
        place += 1
        if task is not None:
            spec = task.spec
            inputs = spec.inputs[returned : returned + room]
            before = max(returned - len(spec.inputs), 0)
            outputs = spec.outputs[before : before + room - len(inputs)]
            row = _graph_row(machine, place, task, now_s)
            row["inputs"] = [_object_row(machine, found, object_id) for object_id in inputs]
            row["outputs"] = [_object_row(machine, found, object_id) for object_id in outputs]
            rows.append(row)
            texts_length = sum(map(len, row["why"])) + sum(map(len, row["story"]))
            room -= len(inputs) + len(outputs) + 3 + texts_length // 100
            returned += len(inputs) + len(outputs)
            if returned < len(spec.inputs) + len(spec.outputs):
                place -= 1
                break
        returned = 0
    return {
        "tasks": rows,
        "next": [place, returned] if place < len(found.tasks) else None,
        "job": found.number,
        "handed_over": found.handed_over,
    }


def _read_place(value: Any) -> tuple[int, int]:
    """Read the start of a page of the graph.

    It is the number of earlier tasks, and of objects of the next task that were returned already.
    """
    match value:
        case [int(place), int(returned)] if place >= 0 and returned >= 0:
            return place, returned
    return 0, 0


def _graph_row(
    machine: MasterMachine, position: int, task: TaskNode, now_s: float
) -> dict[str, Any]:
    spec = task.spec
    made_at = locations_of(machine.graph.objects.reference(spec.outputs[0]))
    failed = task.state is TaskState.FAILED
    task_history = machine.histories.get(spec.id)
    lines = task_history.lines(now_s) if task_history else []
    return {
        **_facts(position, task),
        "parent": None if spec.parent == spec.job else spec.parent,
        "at": next(iter(made_at)) if len(made_at) == 1 else None,
        "why": _cut(explain.why(machine, task, now_s) if failed else []),
        "story": _cut(lines if len(lines) > 1 or not failed else []),  # one line repeats `why`
    }


def _cut(lines: list[str]) -> list[str]:
    return [line[:_GRAPH_TEXT_MAX_LENGTH] for line in lines]


def _object_row(machine: MasterMachine, job: Job, object_id: str) -> list[Any]:
    node = machine.graph.objects.get(object_id)
    if node is None:
        return [object_id, "expected", None, None, False]
    state, size_bytes = object_locations.standing(node)
    producer = None if node.producer is None else node.producer.spec.id
    return [object_id, state, size_bytes, producer, job in node.wanters]


def progress(machine: MasterMachine, selector: Any) -> dict[str, Any]:
    """Count the tasks of a job by kind and state, and the assigned tasks that run now.

    If not all tasks are `counted` yet, each further query counts more of them.
    """
    found = find(machine, selector)
    counted = found.count_by_kind(machine.graph.tasks, TASKS_COUNTED_MAX)
    running = Counter(
        Kind.of(task.spec) for worker in machine.workers.values() for task in worker.running_tasks()
        if task.job is found
    )  # fmt: skip
    kinds = [
        {
            **kind._asdict(),
            "counts": {str(state): count for state, count in counts.items() if count},
            "running": running[kind],
        }
        for kind, counts in (found.by_kind or {}).items()
    ]
    return {"kinds": kinds, "counted": counted}


def results(machine: MasterMachine, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return a page of the objects that a job wants, the oldest wants first.

    Each row has the name of the object's task, and its reference. `next` is the `first` of the next
    page, None at the end.
    """
    found = find(machine, arguments.get("job"))
    start = object_locations.start_of(arguments.get("first"), len(found.wanted))
    objects = machine.graph.objects
    page = islice(found.wanted, start, start + RESULTS_MAX)
    rows = []
    for ref in _within_room(objects.reference(object_id) for object_id in page):
        producer = objects.nodes[ref.id].producer
        rows.append(["" if producer is None else producer.spec.name, ref])
    end = start + len(rows)
    return {
        "results": rows,
        "next": end if end < len(found.wanted) else None,
        "total": len(found.wanted),
        "handed_over": found.handed_over,
    }


def service(machine: MasterMachine, selector: Any) -> dict[str, Any]:
    """Describe the replicas of a service, which are the tasks of its job."""
    found = find(machine, selector)
    rows: list[dict[str, Any]] = []
    for task_id in found.tasks[:REPLICAS_MAX]:
        task = machine.graph.tasks.get(task_id)
        if task is not None:
            failure = machine.graph.objects.reference(task.spec.outputs[0])
            rows.append(
                {
                    "task": task_id,
                    "name": task.spec.name,
                    "state": str(task.state),
                    "attempt": task.attempt,
                    "address": machine.context.service_of(task),
                    "failure": failure.text if isinstance(failure, Failure) else None,
                }
            )
    return {"job": found.spec.id, "name": found.spec.name, "state": str(found.state),
            "replicas": rows}  # fmt: skip


def find_worker(machine: MasterMachine, selector: Any) -> WorkerNode:
    """Find a worker by its id or its address."""
    if isinstance(selector, str):
        worker = machine.workers.get(selector) or machine.context.table.at(selector)
        if worker is not None:
            return worker
    shown = object_locations.shown_name(selector)
    raise UnknownQueryError(f"there is no worker {shown}; `ciel worker list` lists all workers")


def drain(machine: MasterMachine, arguments: dict[str, Any], now_s: float) -> dict[str, Any]:
    """Start to drain a worker. No record is written: the worker knows it (ADR 80)."""
    worker, timeout_s = find_worker(machine, arguments.get("worker")), arguments.get("timeout_s")
    if timeout_s is not None and not (
        isinstance(timeout_s, int | float) and 0 <= timeout_s <= DRAIN_MAX_S
    ):
        raise UnknownQueryError(f"timeout_s must be null or a number from 0 to {DRAIN_MAX_S}")
    machine.drain_worker(worker, timeout_s, now_s)
    return {"worker": worker.facts.id, "netloc": worker.facts.netloc}


def change(machine: MasterMachine, topic: str, argument: Any, now_s: float) -> Any:
    """Carry out a change that a client requests. Raises CielError, and then changes nothing."""
    arguments = argument if isinstance(argument, dict) else {}
    if topic in object_locations.CHANGES:
        done = object_locations.change(machine, topic, arguments, now_s)
        machine.journal.append(Change(0, topic, {**arguments, "object": done["object"]}))
        return done
    if topic == "drain":
        return drain(machine, arguments, now_s)
    found = find(machine, arguments.get("job"))
    match topic:
        case "remove":
            machine.remove_job(found)
        case "retry":
            machine.retry_job(found, now_s)
        case "retry_task" | "cancel_task":
            task = find_task(machine, found, arguments.get("task"))
            if topic == "retry_task":
                machine.retry_task(task, now_s)
            else:
                machine.cancel_task(task, "cancelled by its user", now_s)
            named = {"job": found.spec.id, "task": task.spec.id}
            machine.journal.append(Change(0, topic, named))
            return {"task": task.spec.id, "name": task.spec.name, "state": str(task.state)}
        case _:
            raise UnknownQueryError(f"this master cannot change {topic[:_SHOWN_MAX_LENGTH]!r}")
    machine.journal.append(Change(0, topic, {"job": found.spec.id}))
    return {"summary": list(summarise(found))}


def answer(machine: MasterMachine, topic: str, argument: Any, now_s: float) -> Any:
    """Answer a query; references in the answer are not encoded. Raises UnknownQueryError."""
    arguments = argument if isinstance(argument, dict) else {}
    match topic:
        case "status":
            return status(machine, now_s)
        case "workers":
            return workers(machine, now_s)
        case "stores":
            return stores(machine)
        case "demand":
            return demand.describe(machine)
        case "jobs":
            return jobs(machine, arguments)
        case "job":
            return job(machine, arguments.get("job"))
        case "results":
            return results(machine, arguments)
        case "tasks":
            return tasks(machine, arguments)
        case "graph":
            return graph(machine, arguments, now_s)
        case "object":
            return object_locations.answer(machine, arguments.get("object"), now_s)
        case "objects":
            return object_locations.listed(machine, arguments, now_s)
        case "progress":
            return progress(machine, arguments.get("job"))
        case "service":
            return service(machine, arguments.get("job"))
        case "trace":
            which = (arguments.get("jobs"), arguments.get("first"))
            return machine.timeline.page(*which, machine.workers.values(), now_s)
        case "task" if "object" in arguments:
            producer = find_producer(machine, arguments["object"])
            return explain.describe(machine, producer, now_s)
        case "task":
            task = find_task(machine, find(machine, arguments.get("job")), arguments.get("task"))
            return explain.describe(machine, task, now_s)
    raise UnknownQueryError(f"this master cannot answer the query {topic!r}")
