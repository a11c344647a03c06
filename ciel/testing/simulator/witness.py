"""Observes the machines of a simulation: sees all messages and events, and keeps its own records.

It raises an error as soon as a single step is wrong; `invariants` compares its records with the
machines.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from ciel.core.events import (
    RECALLED,
    AssignTask,
    AttemptsKept,
    CancelTask,
    DropObjects,
    InputsLost,
    Message,
    SpawnTask,
    TaskReported,
)
from ciel.core.graph.nodes import TaskNode
from ciel.core.ids import ObjectId
from ciel.core.jobs import Job, JobState
from ciel.core.refs import Failure, Future, Reference, Stream, locations_of
from ciel.core.retries import WORKER_LOSSES_MAX
from ciel.core.tasks import ACTIVE, ASSIGNED, FAILED, TaskSpec
from ciel.master.state.machine import MasterMachine
from ciel.master.state.workers import WorkerFacts

Key = tuple[str, int]


class Violation(Exception):
    """An invariant does not hold; `subject` is the task, object or peer concerned."""

    def __init__(self, subject: str, text: str) -> None:
        self.subject = subject
        self.text = text
        super().__init__(f"{text} ({subject})")


class Standing(NamedTuple):
    """The state of a task before the master processed a report about it."""

    is_assigned: bool
    attempt: int
    worker: str | None


class Witness:
    """The records of one simulation."""

    def __init__(self) -> None:
        self.losses: Counter[str] = Counter()  # by task: how many lost workers had it
        self.places_lost: set[str] = set()
        self.upload_places: dict[str, frozenset[str]] = {}
        self.ambiguous: list[str] = []  # objects with two contents
        self.remade: list[str] = []  # objects, once for each time they were recomputed
        self._contents: dict[str, bytes] = {}
        self._failures: Counter[str] = Counter()
        self._started: set[tuple[str, int, str, int]] = set()  # with the worker and `_epoch`
        self._epoch = 1  # how many masters have started
        self._failed_counts: Counter[str] = Counter()  # by task, of reports to this master
        self._counted: set[tuple[str, int, str]] = set()  # with the worker
        self._read: defaultdict[Key, set[tuple[Key, ObjectId]]] = defaultdict(
            set
        )  # objects that it read while they grew
        self._believed: set[Key] = set()
        self._completed: set[tuple[Key, ObjectId]] = set()
        self._reported_early: set[tuple[Key, ObjectId]] = (
            set()
        )  # complete outputs that were reported while their task ran
        self.given: defaultdict[str, set[Key]] = defaultdict(
            set
        )  # by worker: attempts without a report
        self.cancelled: defaultdict[str, set[Key]] = defaultdict(set)
        self.retried: set[str] = set()  # jobs
        self.excused: set[str] = (
            set()
        )  # jobs that an unsurvivable fault excuses, though no trace is left
        self.forgotten_tasks: set[str] = set()  # of removed jobs, or handed over
        self.forgotten_objects: set[str] = set()

    # --- workers ----------------------------------------------------------------------------------

    def made(self, object_id: str, content: bytes) -> None:
        """Record the content of an object, which must be the same whenever a task produces it."""
        if object_id in self._contents:
            self.remade.append(object_id)
        if self._contents.setdefault(object_id, content) != content:
            self.ambiguous.append(object_id)

    def content_of(self, object_id: str) -> bytes | None:
        return self._contents.get(object_id)

    def started(self, key: Key, worker_id: str) -> int:
        """Record the start of a program; return how often programs of its task have failed. A child
        that starts inline may have started before, in another attempt of its parent.
        """
        life = (*key, worker_id, self._epoch)
        if life in self._started and key[1]:
            raise Violation(key[0], f"attempt {key[1]} was started twice")
        self._started.add(life)
        self._read.pop(key, None)  # an attempt for an earlier master may have had this number
        return self._failures[key[0]]

    def chose(self, spec: TaskSpec, inputs: Sequence[Reference]) -> None:
        """Check the inputs with which a program starts; of any-of inputs it must have one."""
        alternatives = inputs[len(spec.needed) :]
        if alternatives and all(isinstance(ref, Future) for ref in alternatives):
            raise Violation(spec.id, "it is started without any of its any-of inputs")
        for ref in alternatives:
            if isinstance(ref, Stream) or (isinstance(ref, Failure) and not spec.sees_errors):
                raise Violation(spec.id, f"it is started with {ref} as an any-of input")

    def read(self, reader: Key, object_id: ObjectId, maker: Key) -> None:
        """Record that an attempt reads an object that another attempt is still writing."""
        self._read[reader].add((maker, object_id))

    def completed(self, maker: Key, object_id: ObjectId) -> None:
        """Record that a program has ended well, and completed an object that others read."""
        self._completed.add((maker, object_id))

    def _is_complete(self, maker: Key, object_id: ObjectId) -> bool:
        """Whether a master may know that an object is complete. One that has restarted may list a
        copy before it knows the attempt that made it.
        """
        if maker in self._believed or (maker, object_id) in self._reported_early:
            return True
        return self.restarts > 0 and (maker, object_id) in self._completed

    def believed(self, report: Message) -> None:
        """Check a report that the master accepts: before that, all objects that the attempt read
        must be complete.
        """
        if isinstance(report, TaskReported) and report.fault is None:
            key = (report.task, report.attempt)
            self._believed.add(key)
            for maker, object_id in self._read[key]:
                if not self._is_complete(maker, object_id):
                    raise Violation(
                        object_id, f"{key} counts, though {maker} has not completed the object"
                    )

    @property
    def restarts(self) -> int:
        """How often the master has restarted."""
        return self._epoch - 1

    def repeats(self) -> Counter[str]:
        """Count the runs of each task beyond one, and beyond one for each loss of its worker."""
        runs = Counter(life[0] for life in self._started)
        return runs - Counter(dict.fromkeys(runs, 1)) - self.losses

    def program_failed(self, key: Key) -> None:
        self._failures[key[0]] += 1

    @property
    def runs(self) -> int:
        """How many programs have started."""
        return len(self._started)

    # --- the master -------------------------------------------------------------------------------

    def sent(self, master: MasterMachine, worker_id: str, message: Message) -> None:
        """Check a message that the master sends to a worker."""
        match message:
            case AssignTask(spec, attempt, _):
                self.given[worker_id].add((spec.id, attempt))
                graph, task_node = master.graph, master.graph.tasks[spec.id]
                is_deferred = graph.has_more or task_node in graph.unneeded
                if not graph.is_needed(task_node) and not is_deferred:
                    raise Violation(spec.id, "it is assigned, though no task or job needs it")
                state = master.jobs[spec.job].state
                if state is JobState.CANCELLING or state is JobState.CANCELLED:
                    raise Violation(spec.id, f"it is assigned, though its job is {state}")
            case CancelTask(task, 0) if (task, 0) not in master.workers[worker_id].assigned:
                self.given[worker_id].discard((task, 0))  # the master has no such task
            case CancelTask(task, attempt):
                self.cancelled[worker_id].add((task, attempt))
            case DropObjects(objects, unless_complete=False):
                place = master.workers[worker_id].facts.netloc
                for object_id in objects:
                    if place in locations_of(master.graph.objects.reference(object_id)):
                        raise Violation(object_id, f"it is dropped, but still listed at {place}")

    def released(self, master: MasterMachine, objects: set[ObjectId]) -> None:
        """Check known objects that the master drops: no task may need them, unless they are
        recomputed where their readers reach them.
        """
        active = [task for task in master.graph.tasks.values() if task.state in ACTIVE]
        needed = {object_id for task in active for object_id in task.spec.inputs}
        for object_id in objects:
            node = master.graph.objects.get(object_id)
            producer = None if node is None else node.producer
            state = master.retry_states.get("" if producer is None else producer.spec.id)
            if state is not None and state.out_of_reach:
                continue
            if object_id in needed or (node is not None and node.wanters):
                raise Violation(object_id, "it is dropped, though a task or job needs it")

    def standing(self, master: MasterMachine, message: Message) -> Standing | None:
        """Return the state of the task of a report, before the master processes the report."""
        if not isinstance(message, TaskReported | InputsLost):
            return None
        task = master.graph.tasks.get(message.task)
        if task is None:
            return None
        return Standing(task.state is ASSIGNED, task.attempt, task.worker)

    def reported(
        self, master: MasterMachine, worker_id: str, message: Message, before: Standing | None
    ) -> None:
        """Check a report that the master has processed: only a report of the current attempt may
        have changed the task.
        """
        if isinstance(message, SpawnTask):
            maker = (message.spec.parent, message.attempt)
            for ref in message.known:
                if not isinstance(ref, Stream | Future):
                    self._reported_early.add((maker, ref.id))
            if message.started:
                self.given[worker_id].add((message.spec.id, 0))
            return
        if isinstance(message, AttemptsKept):
            adopted = {(t.spec.id, a) for (_, a), t in master.workers[worker_id].assigned.items()}
            if wrong := adopted - set(message.attempts) - self.given[worker_id]:
                raise Violation(worker_id, f"the master took {wrong} for its attempts")
            self.given[worker_id] |= adopted
            # The report of a first attempt counts again if its result is gone and needed.
            self._counted -= {(task, a, worker_id) for task, a in adopted if a == 0}
            return
        if not isinstance(message, TaskReported | InputsLost):
            return
        key = (message.task, message.attempt)
        self.given[worker_id].discard(key)
        self.cancelled[worker_id].discard(key)
        task = master.graph.tasks.get(message.task)
        if task is None or before is None or not before.is_assigned or task.state is ASSIGNED:
            return
        if (before.attempt, before.worker) != (message.attempt, worker_id):
            raise Violation(
                key[0], f"{worker_id} reported attempt {key[1]}, which counted as {before}"
            )
        if (*key, worker_id) in self._counted:
            raise Violation(key[0], f"attempt {key[1]} of {worker_id} counted twice")
        self._counted.add((*key, worker_id))
        self._count_failure(task, message)

    def _count_failure(self, task: TaskNode, message: TaskReported | InputsLost) -> None:
        """Check that a task is not retried more often than its creator allows."""
        if isinstance(message, InputsLost) or message.fault is None:
            self._failed_counts.pop(task.spec.id, None)
        elif message.fault.reason != RECALLED and task.job.spec.id not in self.retried:
            self._failed_counts[task.spec.id] += 1
            failures, retries = self._failed_counts[task.spec.id], task.spec.needs.retries
            if failures > retries + 1:
                text = f"{failures} attempts have failed, and {retries} retries are allowed"
                raise Violation(task.spec.id, text)

    def joined(self, master: MasterMachine, facts: WorkerFacts) -> None:
        """Record that a worker has joined, perhaps as a replacement for an ended one."""
        for worker_id, netloc in master.membership.awaited.items():
            if netloc == facts.netloc and worker_id != facts.id:
                self.worker_lost(worker_id, netloc)

    def master_restarted(self, master: MasterMachine, done: set[Key]) -> None:
        """Record that a master has read a journal. `done`: the attempts that succeeded in it.

        Forget reports that were not durable: they count when they are repeated.
        """
        self._epoch += 1
        self.given.clear()
        self.cancelled.clear()
        self._failed_counts.clear()
        self._believed = set(done)
        self._counted = {counted for counted in self._counted if counted[:2] in done}
        self.forgotten_tasks -= master.graph.tasks.keys()
        self.forgotten_objects -= master.graph.objects.nodes.keys()

    def master_died(self, master: MasterMachine) -> None:
        """Record which jobs are excused: the next master may not know yet that uploads are lost."""
        excused = [job.spec.id for job in master.jobs.values() if self.is_excused(master, job)]
        self.excused.update(excused)

    def worker_lost(self, worker_id: str, netloc: str) -> None:
        """Record that the master has declared a worker dead."""
        self.places_lost.add(netloc)
        self.cancelled.pop(worker_id, None)
        for task, _ in self.given.pop(worker_id, ()):
            self.losses[task] += 1

    def forgets_job(self, master: MasterMachine, job: Job) -> None:
        """Record the tasks and objects of a job that the master will remove next."""
        own = {task_id: task for task_id, task in master.graph.tasks.items() if task.job is job}
        self.forgotten_tasks.update(job.tasks, own)
        self.forgotten_objects.update(job.uploads, job.wanted)
        self.forgotten_objects.update(*[task.outputs for task in own.values()])

    def handed_over(self, master: MasterMachine, before: dict[str, TaskNode]) -> None:
        """Record the tasks that are forgotten after a hand-over; `before`: the tasks before it."""
        for task_id in before.keys() - master.graph.tasks.keys():
            self.forgotten_tasks.add(task_id)
            self.forgotten_objects.update(before[task_id].outputs)

    # --- the end ----------------------------------------------------------------------------------

    def is_excused(self, master: MasterMachine, job: Job) -> bool:
        """Whether a fault that the engine cannot survive hit a job, so its results may be errors.

        Raises Violation if the master declares a task or object of it lost without such a fault.
        """
        excused = job.spec.id in self.excused
        graph = master.graph
        for task_id in job.tasks:
            task = graph.tasks.get(task_id)
            if task is None:
                continue  # it was handed over
            refs = [graph.objects.reference(object_id) for object_id in task.outputs]
            reasons = {ref.reason for ref in refs if isinstance(ref, Failure)}
            if task.state is FAILED and "WORKER_FAILED" in reasons:
                excused = True
                if self.losses[task_id] < WORKER_LOSSES_MAX:
                    raise Violation(
                        task_id, f"the master gave it up after only {self.losses[task_id]} losses"
                    )
            if task.state is FAILED and "OBJECT_LOST" in reasons:  # after the engine gave up on it
                excused = excused or self.losses[task_id] >= WORKER_LOSSES_MAX
            if task.state is FAILED and "MISSING_INPUT" in reasons:
                excused = True
                if not self.upload_places.keys() & task.spec.inputs:
                    raise Violation(
                        task_id, "the master gave it up, though its inputs can be recomputed"
                    )
        for object_id, places in self.upload_places.items():
            ref = graph.objects.reference(ObjectId(object_id))
            # Its worker may have returned to a master that was restarted since.
            was_lost = "OBJECT_LOST" in job.reason and object_id in job.reason
            if object_id in job.uploads and (isinstance(ref, Failure) or was_lost):
                excused = True
                if left := places - self.places_lost:
                    text = f"it counts as lost, though its workers {sorted(left)} were not lost"
                    raise Violation(object_id, text)
        return excused
