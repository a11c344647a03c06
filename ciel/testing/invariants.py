"""What must hold in a simulated cluster: after every step, and when all has come to rest.

Problems are pairs: the task, object or peer concerned, and what is wrong with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Set

from ciel.core.errors import InvariantError
from ciel.core.graph import TaskGraph
from ciel.core.ids import ObjectId
from ciel.core.jobs import ENDED, JobState
from ciel.core.refs import Concrete, Failure, locations_of
from ciel.core.tasks import ACTIVE, ASSIGNED, DONE, FINISHED, RUNNABLE, Mentions, TaskNode
from ciel.master.state.machine import MasterMachine
from ciel.testing.fake_worker import FakeWorker
from ciel.testing.witness import Violation, Witness

Problems = Iterator[tuple[str, str]]


def check_worker(worker: FakeWorker) -> None:
    """Check a worker's machine against itself, its store and its programs; raises Violation."""
    machine = worker.machine
    for problem in machine.problems():
        raise Violation(worker.facts.id, problem)
    if machine.stored.keys() != worker.store.keys():
        differing = machine.stored.keys() ^ worker.store.keys()
        raise Violation(next(iter(differing)), f"{worker.facts.id} has wrong books on its store")
    programs = [run.order.spec for run in worker.running.values() if run.outer is None]
    slots = sum(spec.needs.slots for spec in programs)
    if slots > worker.facts.slots:
        raise Violation(worker.facts.id, f"programs for {slots} slots run on it")
    memory, total = sum(spec.needs.memory_bytes for spec in programs), worker.facts.memory_bytes
    if total and memory > total:
        raise Violation(worker.facts.id, f"programs that ask for {memory} bytes run on it")


def check_master(master: MasterMachine, witness: Witness) -> None:
    """Check a master's links in both directions, after a turn; raises Violation."""
    try:
        master.graph.validate()
    except InvariantError as error:
        raise Violation(error.detail.split()[1], str(error)) from error
    for subject, text in (
        *_remembered(master, witness),
        *_assignments(master, witness),
        *_books(master),
        *_stalled(master),
    ):
        raise Violation(subject, text)


def _remembered(master: MasterMachine, witness: Witness) -> Problems:
    """Find what is left of removed jobs and of what was handed over."""
    if master.has_more:
        return
    for where, known in (
        ("the graph", master.graph.tasks),
        ("stories", master.stories),
        ("blame", master.blame),
    ):
        for task_id in witness.forgotten_tasks & known.keys():
            yield task_id, f"it was forgotten, and is still known to {where}"
    for object_id in witness.forgotten_objects & master.graph.objects.nodes.keys():
        yield object_id, "it was forgotten, and is still known"
    for job_id in master._audience.jobs():
        if job_id not in master.jobs:
            yield job_id, "it was removed, and its audience is remembered"


def _assignments(master: MasterMachine, witness: Witness) -> Problems:
    for worker_id, worker in master.workers.items():
        slots = sum(worker.slots_of(task, key[1]) for key, task in worker.assigned.items())
        if slots != worker.slots_used:
            yield worker_id, f"it is said to use {worker.slots_used} slots, it uses {slots}"
        memory = sum(
            task.spec.needs.memory_bytes
            for key, task in worker.assigned.items()
            if worker.slots_of(task, key[1])
        )
        if memory != worker.memory_used:
            yield worker_id, f"it is said to use {worker.memory_used} bytes, it uses {memory}"
        if len(worker.assigned) + len(worker.ahead) != len(witness.given[worker_id]):
            has = f"{worker.assigned} and ahead {list(worker.ahead)}"
            yield worker_id, f"it was given {witness.given[worker_id]}, not {has}"
        for task, attempt in witness.given[worker_id]:
            node = master.graph.tasks.get(task)  # None once its job was removed
            is_current = node is not None and (node.worker, node.attempt) == (worker_id, attempt)
            is_ahead = node is not None and node in worker.ahead and attempt == node.attempt + 1
            if (
                not is_current
                and not is_ahead
                and (task, attempt) not in witness.cancelled[worker_id]
            ):
                yield task, f"{worker_id} has attempt {attempt}, and nobody called it off"
    for task_id, node in master.graph.tasks.items():
        if node.state is ASSIGNED and node.worker is not None:
            is_known = (task_id, node.attempt) in witness.given[node.worker]
            if not is_known and node not in master.held:
                yield task_id, f"it is assigned to {node.worker}, which was not told"
    for problem in master.ahead.problems():
        yield problem.split()[1], problem
    for node in master.held:
        if node.state is not ASSIGNED or node not in master.graph.streams.reading:
            yield node.spec.id, f"it is {node.state}, and its report is held"


def _books(master: MasterMachine) -> Problems:
    """Count anew what is kept as a count: why each object is held."""
    if master._removed:
        return  # what holds the objects of a job is forgotten before they are
    if master.graph.divergent:
        return  # a child that came second may not have got the outputs that it names
    holds: Counter[str] = Counter()
    for task_id, task in master.graph.tasks.items():
        spec = task.spec
        parent = master.graph.tasks.get(spec.parent)
        is_free = task.mentions is Mentions.ANYTHING
        own = [o for o in task.outputs if master.graph.objects.nodes[o].producer is task]
        nodes = [master.graph.objects.nodes[o] for o in own]
        there = sum(node.is_settled and not isinstance(node.ref, Failure) for node in nodes)
        if spec.mentions is Mentions.INPUTS and task.live_outputs != there:
            yield task_id, f"{there} of its outputs are there, it counts {task.live_outputs}"
        if is_free or task.state not in FINISHED or task.live_outputs:
            holds.update(spec.inputs)
        if is_free or (parent is not None and parent.mentions is Mentions.ANYTHING):
            holds.update(o for o in task.outputs if _made_or_delegated(master.graph, task, o))
    for job in master.jobs.values():
        holds.update(iter(job.uploads))
    for object_id, node in master.graph.objects.nodes.items():
        if node.holds != holds[object_id]:
            yield object_id, f"it has {node.holds} holds, there are reasons for {holds[object_id]}"


def _made_or_delegated(graph: TaskGraph, task: TaskNode, object_id: ObjectId) -> bool:
    """Whether an output is a task's, or was until it or a descendant delegated it."""
    maker = graph.objects.nodes[object_id].producer
    while maker is not None and maker is not task:
        maker = graph.tasks.get(maker.spec.parent)
    return maker is task


def _stalled(master: MasterMachine) -> Problems:
    """Find what nobody is going to look at again: a runnable task in no queue, a stuck job."""
    if master.has_more:
        return
    dispatcher = master.dispatcher
    queued = {task.spec.id for task in dispatcher.ready}
    queued |= {task.spec.id for task in dispatcher.cramped}
    queued |= {task.spec.id for task in dispatcher._stranded}
    queued |= {task.spec.id for worker in master.workers.values() for task in worker.parked}
    queued |= {task.spec.id for worker in master.workers.values() for task in worker.bound}
    queued |= {task.spec.id for task in master.graph.runnable}
    for task_id, task in master.graph.tasks.items():
        if task.state is RUNNABLE and task_id not in queued:
            yield task_id, "it is runnable and stands in no queue"
    workers = list(master.workers.values())
    is_idle = not any(worker.assigned for worker in workers)
    if is_idle and not all(worker.suspicion for worker in workers):
        for task in dispatcher.cramped:
            if task.state is RUNNABLE:
                yield task.spec.id, "it waits for memory, and nobody has anything to do"
    for job in master.jobs.values():
        if job.state is JobState.ACTIVE and not job.open and job.wanted:
            if not job.unsettled:
                yield job.spec.id, "it has all that it wants, and has not ended"
            elif not job.is_busy:
                yield job.spec.id, "nothing of it can run, and it has not ended"


def unrest(master: MasterMachine, workers: list[FakeWorker], witness: Witness) -> Problems:
    """Yield what is not yet, or no longer, as it must be once all is over."""
    for job in master.jobs.values():
        if job.state not in ENDED:
            missing = [o for o in job.wanted if not master.graph.objects.nodes[o].is_settled]
            yield missing[0] if missing else job.spec.id, f"{job} has not ended"
        for state in ACTIVE:
            if job.counts[state]:
                known = [t for t in job.tasks if t in master.graph.tasks]
                tasks = [t for t in known if master.graph.tasks[t].state is state]
                yield tasks[0], f"{job} is over, its task is {state}"
    for name, left in (
        ("called off", list(master._called_off)),
        ("delayed", [str(due_s) for due_s in (master.dispatcher.ready.due_s,) if due_s]),
        ("audience", list(master._audience.jobs())),
        ("held", [task.spec.id for task in master.held]),
        ("ahead", [task.spec.id for task in master.ahead.tasks]),
        ("early copies", list(master._copies._copies)),
        ("followers", list(master._followers._workers)),
        ("streams", list(master.graph.objects.growing)),
    ):
        if left:
            yield left[0], f"the master still remembers as {name}: {left}"
    for worker in workers:
        yield from _unrest_of(worker, master, witness)
    yield from _misplaced(master, workers, witness)


def _unrest_of(worker: FakeWorker, master: MasterMachine, witness: Witness) -> Problems:
    machine = worker.machine
    if worker.facts.id not in master.workers:
        yield worker.facts.id, "the master does not know it"
    elif master.workers[worker.facts.id].assigned or witness.given[worker.facts.id]:
        yield worker.facts.id, "something is assigned to it"
    if machine.attempts or worker.running or machine._fetching or machine.queue:
        yield worker.facts.id, f"it has {machine.attempts or machine._fetching}"
    if worker.processes or machine.fixed:
        yield worker.facts.id, f"it still has {worker.processes or machine.fixed}"
    if worker.facts.id in master.workers and master.workers[worker.facts.id].suspicion:
        yield worker.facts.id, "it is suspected still"
    if machine.reports:
        yield worker.facts.id, f"it has not said {machine.reports}"
    if machine.slots_free != machine.slots:
        yield worker.facts.id, f"only {machine.slots_free} of its slots are free"
    for object_id in machine.stored:
        ref = master.graph.objects.reference(object_id)
        is_upload = object_id in witness.upload_places  # may be introduced late, or never
        if worker.facts.netloc not in locations_of(ref) and not is_upload:
            yield object_id, f"{worker.facts.id} keeps it, the master knows: {ref}"


def _misplaced(master: MasterMachine, workers: list[FakeWorker], witness: Witness) -> Problems:
    stores = {w.facts.netloc: w.store.keys() | w.processes.keys() for w in workers}
    for known_id, node in master.graph.objects.nodes.items():
        maker = node.producer
        if maker is not None and maker.state is DONE and not maker.job.spec.keep:
            if isinstance(node.ref, Concrete) and not node.holds and not node.wanters:
                yield known_id, "nobody needs it, and it is kept"
        for place in () if node.ref is None else locations_of(node.ref):
            if known_id not in stores.get(place, ()) and known_id not in witness.upload_places:
                yield known_id, f"the master believes it at {place}, it is not there"


def kept_after_all(master: MasterMachine, handed_over: Set[ObjectId]) -> Iterator[ObjectId]:
    """Yield what was handed over, is known all the same, and that nobody needs any more."""
    graph = master.graph
    named = {o for task in graph.tasks.values() for o in task.spec.inputs}
    for task in graph.tasks.values():
        named.update(o for o in task.spec.outputs if graph.objects.nodes[o].producer is not task)
    for object_id in handed_over & graph.objects.nodes.keys():
        maker = graph.objects.nodes[object_id].producer
        if maker is None or maker.state is not DONE or maker.children or maker.job.spec.keep:
            continue
        spec = maker.spec
        if any(isinstance(graph.objects.reference(o), Failure) for o in spec.outputs):
            continue  # errors are never forgotten: they may be tried again
        is_plain = spec.parent == spec.job and maker.mentions is not Mentions.ANYTHING
        if is_plain and handed_over >= set(spec.outputs) and named.isdisjoint(spec.outputs):
            yield object_id
