"""Checks the invariants of a simulated cluster: after every step, and when all work has ended.

A problem is a pair: the task, object or peer concerned, and a text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Set

from ciel.core.ids import ObjectId
from ciel.core.jobs import ENDED
from ciel.core.offers.labels import read_where
from ciel.core.offers.resources import ONE, totals_of
from ciel.core.refs import Concrete, Failure, locations_of
from ciel.core.tasks import ACTIVE, ASSIGNED, DONE, Mentions
from ciel.master.state import invariants
from ciel.master.state.machine import MasterMachine
from ciel.testing.simulator.fake_worker import FakeWorker
from ciel.testing.simulator.witness import Violation, Witness

Problems = Iterator[tuple[str, str]]


def check_worker(worker: FakeWorker) -> None:
    """Compare a worker's machine with its store and its programs; raises Violation."""
    machine = worker.machine
    for problem in machine.problems():
        raise Violation(worker.facts.id, problem)
    if machine.stored.keys() != worker.store.keys():
        differing = machine.stored.keys() ^ worker.store.keys()
        raise Violation(next(iter(differing)), f"{worker.facts.id} has a wrong list of its objects")
    programs = [run.order.spec for run in worker.running.values() if run.outer is None]
    slots = sum(spec.needs.slots for spec in programs)
    if slots > worker.facts.slots:
        raise Violation(worker.facts.id, f"programs for {slots} slots run on it")
    memory, total = sum(spec.needs.memory_bytes for spec in programs), worker.facts.memory_bytes
    if total and memory > total:
        raise Violation(worker.facts.id, f"programs that request {memory} bytes run on it")
    _check_resources(worker)
    for io in {spec.needs.io for spec in programs if spec.needs.io}:
        users, at_a_time = worker.users_of(io), worker.world.options.disk_at_a_time
        if users > at_a_time:
            raise Violation(worker.facts.id, f"{users} programs use the disk {io} at a time")


def _check_resources(worker: FakeWorker) -> None:
    """Compare what running programs have with what the worker offers; raises Violation."""
    totals, used = totals_of(worker.facts.resources), Counter[str]()
    shares = Counter[tuple[str, str]]()
    for order in [run.order for run in worker.running.values() if run.outer is None]:
        needs = order.spec.needs
        used.update(dict(needs.resources))
        given = dict(order.given)
        for name, amount in needs.resources:
            indices = given.get(name, ())
            shares.update({(name, index): share for index, share in indices})
            if any(offer.name == name and offer.indices for offer in worker.facts.resources):
                if sum(share for _, share in indices) != amount:
                    raise Violation(order.spec.id, f"it needs {amount} of {name}, not {indices}")
        if needs.where and not read_where(needs.where)(worker.facts.labels):
            raise Violation(order.spec.id, f"it runs on {worker.facts.id}, not where {needs.where}")
    for name, amount in used.items():
        if amount > totals.get(name, 0):
            raise Violation(worker.facts.id, f"programs that need {amount} of {name} run on it")
    for index, share in shares.items():
        if share > ONE:
            raise Violation(worker.facts.id, f"programs have {share} of {index}")


def check_master(master: MasterMachine, witness: Witness) -> None:
    """Check a master's links in both directions, after a tick; raises Violation."""
    for subject, text in (
        *invariants.problems(master),
        *_remembered(master, witness),
        *_assignments(master, witness),
    ):
        raise Violation(subject, text)


def _remembered(master: MasterMachine, witness: Witness) -> Problems:
    """Yield what the master still knows about removed jobs and results that were handed over."""
    if master.has_more:
        return
    for where, known in (
        ("the graph", master.graph.tasks),
        ("histories", master.histories),
        ("retry states", master.retry_states),
    ):
        for task_id in witness.forgotten_tasks & known.keys():
            yield task_id, f"it was forgotten, and is still known to {where}"
    for object_id in witness.forgotten_objects & master.graph.objects.nodes.keys():
        yield object_id, "it was forgotten, and is still known"
    for job_id in master.job_table.subscriptions.jobs():
        if job_id not in master.jobs:
            yield job_id, "it was removed, and still has subscriptions"


def _assignments(master: MasterMachine, witness: Witness) -> Problems:
    for worker_id, worker in master.workers.items():
        if len(worker.assigned) + len(worker.eager) != len(witness.given[worker_id]):
            has = f"{worker.assigned} and eagerly {list(worker.eager)}"
            yield worker_id, f"it has received {witness.given[worker_id]}, not {has}"
        for task, attempt in witness.given[worker_id]:
            node = master.graph.tasks.get(task)  # None after its job was removed
            is_current = node is not None and (node.worker, node.attempt) == (worker_id, attempt)
            is_ahead = node is not None and node in worker.eager and attempt == node.attempt + 1
            if (
                not is_current
                and not is_ahead
                and (task, attempt) not in witness.cancelled[worker_id]
            ):
                text = f"{worker_id} has attempt {attempt}, which is neither current nor cancelled"
                yield task, text
    for task_id, node in master.graph.tasks.items():
        if node.state is ASSIGNED and node.worker is not None:
            is_known = (task_id, node.attempt) in witness.given[node.worker]
            if not is_known and node not in master.attempts.held_reports:
                yield task_id, f"it is assigned to {node.worker}, which has not received it"
    for problem in master.eager.problems():
        yield problem.split()[1], problem
    for node in master.attempts.held_reports:
        if node.state is not ASSIGNED or node not in master.graph.streams.reading:
            yield node.spec.id, f"it is {node.state}, and its report is held"


def unrest(master: MasterMachine, workers: list[FakeWorker], witness: Witness) -> Problems:
    """Yield a problem for all state that must not exist when all work has ended."""
    for job in master.jobs.values():
        if job.state not in ENDED:
            missing = [o for o in job.wanted if not master.graph.objects.nodes[o].is_settled]
            yield missing[0] if missing else job.spec.id, f"{job} has not ended"
        for state in ACTIVE:
            if job.counts[state]:
                known = [t for t in job.tasks if t in master.graph.tasks]
                tasks = [t for t in known if master.graph.tasks[t].state is state]
                yield tasks[0], f"{job} has ended, and its task is {state}"
    if master.outbox:
        yield master.outbox[0][0], f"the master has not sent all messages: {master.outbox}"
    for name, left in (
        ("cancelled", list(master.cancellations._attempts)),
        ("delayed", [str(due_s) for due_s in (master.dispatcher.ready.due_s,) if due_s]),
        ("subscriptions", list(master.job_table.subscriptions.jobs())),
        ("held", [task.spec.id for task in master.attempts.held_reports]),
        ("eager", [task.spec.id for task in master.eager.tasks]),
        ("early copies", list(master.attempts._copies._copies)),
        ("followers", list(master.attempts._followers._workers)),
        ("streams", list(master.graph.objects.growing)),
        ("replicated", list(master.replication.copies())),
        ("awaited", list(master.membership.awaited)),
        ("expected", list(master.context.table.expected)),
        ("suspected", list(master.context.table.suspects)),
    ):
        if left:
            yield left[0], f"the master still lists as {name}: {left}"
    for worker in workers:
        yield from _unrest_of(worker, master, witness)
    yield from _misplaced(master, workers, witness)


def _unrest_of(worker: FakeWorker, master: MasterMachine, witness: Witness) -> Problems:
    machine = worker.machine
    if worker.facts.id not in master.workers:
        yield worker.facts.id, "the master does not know it"
    elif master.workers[worker.facts.id].assigned or witness.given[worker.facts.id]:
        yield worker.facts.id, "a task is assigned to it"
    if machine.attempts or worker.running or machine._fetching or machine.queue_length:
        yield worker.facts.id, f"it has {machine.attempts or machine._fetching}"
    if worker.processes or machine.fixed:
        yield worker.facts.id, f"it still has {worker.processes or machine.fixed}"
    if worker.facts.id in master.workers and master.workers[worker.facts.id].suspicion:
        yield worker.facts.id, "it is still suspected"
    if machine.reports:
        yield worker.facts.id, f"it has not sent {machine.reports}"
    if machine.slots_free != machine.slots:
        yield worker.facts.id, f"only {machine.slots_free} of its slots are free"
    for object_id in machine.stored:
        ref = master.graph.objects.reference(object_id)
        is_upload = object_id in witness.upload_places  # the client may name it late, or never
        if worker.facts.netloc not in locations_of(ref) and not is_upload:
            yield object_id, f"{worker.facts.id} stores it, but the master knows only {ref}"


def _misplaced(master: MasterMachine, workers: list[FakeWorker], witness: Witness) -> Problems:
    stores = {w.facts.netloc: w.store.keys() | w.processes.keys() for w in workers}
    for known_id, node in master.graph.objects.nodes.items():
        maker = node.producer
        if maker is not None and maker.state is DONE and not maker.job.spec.keep:
            if isinstance(node.ref, Concrete) and not node.holds and not node.wanters:
                yield known_id, "no task or job needs it, and it is kept"
        for place in () if node.ref is None else locations_of(node.ref):
            if known_id not in stores.get(place, ()) and known_id not in witness.upload_places:
                yield known_id, f"the master lists it at {place}, which does not have it"


def kept_after_all(master: MasterMachine, handed_over: Set[ObjectId]) -> Iterator[ObjectId]:
    """Yield objects that were handed over, that no task needs, and that the master still knows."""
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
            continue  # failed tasks stay, because they may be retried
        is_plain = spec.parent == spec.job and maker.mentions is not Mentions.ANYTHING
        if is_plain and handed_over >= set(spec.outputs) and named.isdisjoint(spec.outputs):
            yield object_id
