"""What must hold in a simulated cluster: after every step, and when all has come to rest.

The witness stands beside the machines. It sees what is said and done, keeps its own books, and
raises `Violation` with the task or object concerned; it never looks into a machine to explain what
that machine did, only to compare.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from ciel.core.errors import InvariantError
from ciel.core.events import AssignTask, CancelTask, DropObjects, InputsLost, Message, TaskReported
from ciel.core.graph import ACTIVE, TaskGraph, TaskNode
from ciel.core.ids import ObjectId
from ciel.core.jobs import ENDED, Job, JobState
from ciel.core.refs import Concrete, Failure, locations_of
from ciel.core.retries import WORKER_LOSSES_MAX
from ciel.core.tasks import ASSIGNED, DONE, FAILED, FINISHED, RUNNABLE, Mentions
from ciel.master.state.machine import MasterMachine

if TYPE_CHECKING:
    from ciel.testing.fakes import FakeWorker

Key = tuple[str, int]


class Violation(Exception):
    """Something that must hold does not; `subject` is the task, object or peer concerned."""

    def __init__(self, subject: str, text: str) -> None:
        self.subject = subject
        self.text = text
        super().__init__(f"{text} ({subject})")


class Standing(NamedTuple):
    """How a task stood before a report of it was taken."""

    is_assigned: bool
    attempt: int
    worker: str | None


class Witness:
    """Keeps books on one simulation."""

    def __init__(self) -> None:
        self.runs = 0  # programs that were started
        self.losses: Counter[str] = Counter()  # task: lost workers that had it
        self.places_lost: set[str] = set()
        self.upload_places: dict[str, str] = {}
        self.ambiguous: list[str] = []  # objects with two contents
        self._contents: dict[str, bytes] = {}
        self._failures: Counter[str] = Counter()
        self._started: set[Key] = set()
        self._counted: set[Key] = set()
        self._given: defaultdict[str, set[Key]] = defaultdict(set)  # worker: what it has to answer
        self._cancelled: defaultdict[str, set[Key]] = defaultdict(set)

    # --- workers ----------------------------------------------------------------------------------

    def made(self, object_id: str, content: bytes) -> None:
        """Note what an object is; it must have one value for ever, whoever makes it how often."""
        if self._contents.setdefault(object_id, content) != content:
            self.ambiguous.append(object_id)

    def content_of(self, object_id: str) -> bytes | None:
        return self._contents.get(object_id)

    def started(self, worker: FakeWorker, key: Key) -> int:
        """A program starts; return how often programs of its task have failed."""
        if key in self._started:
            raise Violation(key[0], f"attempt {key[1]} was started twice")
        self._started.add(key)
        self.runs += 1
        slots = sum(run.order.spec.needs.slots for run in worker.running.values())
        if slots > worker.facts.slots:
            raise Violation(worker.facts.id, f"programs for {slots} slots run on it")
        return self._failures[key[0]]

    def program_failed(self, key: Key) -> None:
        self._failures[key[0]] += 1

    def check_worker(self, worker: FakeWorker) -> None:
        machine = worker.machine
        for problem in machine.problems():
            raise Violation(worker.facts.id, problem)
        if machine.stored.keys() != worker.store.keys():
            differing = machine.stored.keys() ^ worker.store.keys()
            raise Violation(
                next(iter(differing)), f"{worker.facts.id} has wrong books on its store"
            )

    # --- the master -------------------------------------------------------------------------------

    def sent(self, master: MasterMachine, worker_id: str, message: Message) -> None:
        """The master tells something to a worker."""
        match message:
            case AssignTask(spec, attempt, _):
                self._given[worker_id].add((spec.id, attempt))
                graph, task_node = master.graph, master.graph.tasks[spec.id]
                if not graph.is_needed(task_node) and task_node not in graph.unneeded:
                    raise Violation(spec.id, "it is to run, and nobody needs what it makes")
                state = master.jobs[spec.job].state
                if state is JobState.CANCELLING or state is JobState.CANCELLED:
                    raise Violation(spec.id, f"it is to run, and its job is {state}")
            case CancelTask(task, attempt):
                self._cancelled[worker_id].add((task, attempt))
            case DropObjects(objects):
                place = master.workers[worker_id].facts.netloc
                for object_id in objects:
                    if place in locations_of(master.graph.objects.reference(object_id)):
                        raise Violation(object_id, f"it is dropped, and said to be at {place}")

    def released(self, master: MasterMachine, objects: tuple[ObjectId, ...]) -> None:
        """The master drops objects since nobody needs them."""
        active = [task for task in master.graph.tasks.values() if task.state in ACTIVE]
        needed = {object_id for task in active for object_id in task.spec.inputs}
        for object_id in objects:
            if object_id in needed or master.graph.objects.nodes[object_id].wanters:
                raise Violation(object_id, "it is dropped and needed")

    def standing(self, master: MasterMachine, message: Message) -> Standing | None:
        """Look at the task of a report before the master takes it."""
        if not isinstance(message, TaskReported | InputsLost):
            return None
        task = master.graph.tasks.get(message.task)
        if task is None:
            return None
        return Standing(task.state is ASSIGNED, task.attempt, task.worker)

    def reported(
        self, master: MasterMachine, worker_id: str, message: Message, before: Standing | None
    ) -> None:
        """The master took a report; only that of the current attempt may have changed the task."""
        if not isinstance(message, TaskReported | InputsLost):
            return
        key = (message.task, message.attempt)
        self._given[worker_id].discard(key)
        self._cancelled[worker_id].discard(key)
        task = master.graph.tasks.get(message.task)
        if task is None or before is None or not before.is_assigned or task.state is ASSIGNED:
            return
        if (before.attempt, before.worker) != (message.attempt, worker_id):
            raise Violation(
                key[0], f"{worker_id} reported attempt {key[1]}, it counted as {before}"
            )
        if key in self._counted:
            raise Violation(key[0], f"attempt {key[1]} counted twice")
        self._counted.add(key)

    def worker_lost(self, worker_id: str, netloc: str) -> None:
        """The master gave up a worker."""
        self.places_lost.add(netloc)
        self._cancelled.pop(worker_id, None)
        for task, _ in self._given.pop(worker_id, ()):
            self.losses[task] += 1

    def check_master(self, master: MasterMachine) -> None:
        """Check the master's links in both directions, after a turn."""
        try:
            master.graph.validate()
        except InvariantError as error:
            raise Violation(error.detail.split()[1], str(error)) from error
        for subject, text in (*self._assignments(master), *_books(master), *_stalled(master)):
            raise Violation(subject, text)

    def _assignments(self, master: MasterMachine) -> Iterator[tuple[str, str]]:
        for worker_id, worker in master.workers.items():
            slots = sum(task.spec.needs.slots for task in worker.assigned.values())
            if slots != worker.slots_used:
                yield worker_id, f"it is said to use {worker.slots_used} slots, it uses {slots}"
            if len(worker.assigned) != len(self._given[worker_id]):
                yield worker_id, f"it was given {self._given[worker_id]}, not {worker.assigned}"
            for task, attempt in self._given[worker_id]:
                node = master.graph.tasks[task]
                is_current = node.worker == worker_id and node.attempt == attempt
                if not is_current and (task, attempt) not in self._cancelled[worker_id]:
                    yield task, f"{worker_id} has attempt {attempt}, and nobody called it off"
        for task_id, node in master.graph.tasks.items():
            if node.state is ASSIGNED and node.worker is not None:
                if (task_id, node.attempt) not in self._given[node.worker]:
                    yield task_id, f"it is assigned to {node.worker}, which was not told"

    # --- the end ----------------------------------------------------------------------------------

    def is_excused(self, master: MasterMachine, job: Job) -> bool:
        """Whether a job met what is not survivable: then its results may be errors.

        Raises Violation if a task or object of it is said to be lost without cause.
        """
        excused = False
        graph = master.graph
        for task_id in job.tasks:
            task = graph.tasks[task_id]
            refs = [graph.objects.reference(object_id) for object_id in task.spec.outputs]
            reasons = {ref.reason for ref in refs if isinstance(ref, Failure)}
            if task.state is FAILED and "WORKER_FAILED" in reasons:
                excused = True
                if self.losses[task_id] < WORKER_LOSSES_MAX:
                    raise Violation(task_id, f"given up after {self.losses[task_id]} losses")
            if task.state is FAILED and "MISSING_INPUT" in reasons:
                excused = True
                if not self.upload_places.keys() & task.spec.inputs:
                    raise Violation(task_id, "given up for inputs that could be made again")
        for object_id, place in self.upload_places.items():
            ref = graph.objects.reference(ObjectId(object_id))
            if object_id in job.uploads and isinstance(ref, Failure):
                excused = True
                if place not in self.places_lost:
                    raise Violation(object_id, f"lost, though its holder {place} was not")
        return excused

    def unrest(self, master: MasterMachine, workers: list[FakeWorker]) -> Iterator[tuple[str, str]]:
        """Yield what is not yet, or no longer, as it must be once all is over."""
        for job in master.jobs.values():
            if job.state not in ENDED:
                missing = [o for o in job.wanted if not master.graph.objects.nodes[o].is_settled]
                yield missing[0] if missing else job.spec.id, f"{job} has not ended"
            for state in ACTIVE:
                if job.counts[state]:
                    tasks = [t for t in job.tasks if master.graph.tasks[t].state is state]
                    yield tasks[0], f"{job} is over, its task is {state}"
        for name in ("_called_off", "_delayed", "_orphans", "_watchers", "_owners"):
            if left := getattr(master, name):
                yield str(next(iter(left))), f"the master's {name} holds {left}"
        for worker in workers:
            machine = worker.machine
            if worker.facts.id not in master.workers:
                yield worker.facts.id, "the master does not know it"
            elif master.workers[worker.facts.id].assigned or self._given[worker.facts.id]:
                yield worker.facts.id, "something is assigned to it"
            if machine.attempts or worker.running or machine._fetching or machine._queue:
                yield worker.facts.id, f"it has {machine.attempts or machine._fetching}"
            if machine.slots_free != machine.slots:
                yield worker.facts.id, f"only {machine.slots_free} of its slots are free"
            for object_id in machine.stored:
                ref = master.graph.objects.reference(object_id)
                is_upload = object_id in self.upload_places  # may be introduced late, or never
                if worker.facts.netloc not in locations_of(ref) and not is_upload:
                    yield object_id, f"{worker.facts.id} keeps it, the master knows: {ref}"
        stores = {worker.facts.netloc: worker.store for worker in workers}
        for known_id, node in master.graph.objects.nodes.items():
            maker = node.producer
            if maker is not None and maker.state is DONE and not maker.job.spec.keep:
                if isinstance(node.ref, Concrete) and not node.holds and not node.wanters:
                    yield known_id, "nobody needs it, and it is kept"
            for place in () if node.ref is None else locations_of(node.ref):
                if known_id not in stores.get(place, ()) and known_id not in self.upload_places:
                    yield known_id, f"the master believes it at {place}, it is not there"


def _books(master: MasterMachine) -> Iterator[tuple[str, str]]:
    """Count anew what is kept as a count: why each object is held."""
    if master.graph.divergent:
        return  # a child that came second may not have got the outputs that it names
    holds: Counter[str] = Counter()
    for task_id, task in master.graph.tasks.items():
        spec = task.spec
        parent = master.graph.tasks.get(spec.parent)
        is_free = spec.mentions is Mentions.ANYTHING
        own = [o for o in spec.outputs if master.graph.objects.nodes[o].producer is task]
        nodes = [master.graph.objects.nodes[o] for o in own]
        there = sum(node.is_settled and not isinstance(node.ref, Failure) for node in nodes)
        if spec.mentions is Mentions.INPUTS and task.live_outputs != there:
            yield task_id, f"{there} of its outputs are there, it counts {task.live_outputs}"
        if is_free or task.state not in FINISHED or task.live_outputs:
            holds.update(spec.inputs)
        if is_free or (parent is not None and parent.spec.mentions is Mentions.ANYTHING):
            holds.update(o for o in spec.outputs if _made_or_delegated(master.graph, task, o))
    for job in master.jobs.values():
        holds.update(job.uploads)
    for object_id, node in master.graph.objects.nodes.items():
        if node.holds != holds[object_id]:
            yield object_id, f"it has {node.holds} holds, there are reasons for {holds[object_id]}"


def _made_or_delegated(graph: TaskGraph, task: TaskNode, object_id: ObjectId) -> bool:
    """Whether an output is a task's, or was until it or a descendant delegated it."""
    maker = graph.objects.nodes[object_id].producer
    while maker is not None and maker is not task:
        maker = graph.tasks.get(maker.spec.parent)
    return maker is task


def _stalled(master: MasterMachine) -> Iterator[tuple[str, str]]:
    """Find what nobody is going to look at again: a runnable task in no queue, a stuck job."""
    dispatcher = master.dispatcher
    queued = {task.spec.id for queue in dispatcher.ready._queues.values() for task in queue}
    queued |= {task.spec.id for worker in master.workers.values() for task in worker.parked}
    queued |= {task.spec.id for task in master.graph.runnable}
    queued |= {task.spec.id for _, _, task in master._delayed}
    for task_id, task in master.graph.tasks.items():
        if task.state is RUNNABLE and task_id not in queued:
            yield task_id, "it is runnable and stands in no queue"
    for job in master.jobs.values():
        if job.state is JobState.ACTIVE and not job.open and job.wanted:
            if not job.unsettled:
                yield job.spec.id, "it has all that it wants, and has not ended"
            elif not job.is_busy:
                yield job.spec.id, "nothing of it can run, and it has not ended"
