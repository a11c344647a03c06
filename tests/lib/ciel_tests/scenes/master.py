"""Plays a cluster to the master's state machine. Each test step compares all messages of the
machine, written as short lines.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ciel.core.events import (
    AddTask,
    AssignTask,
    CancelTask,
    CloseJob,
    CompareObjects,
    CopyObjects,
    DropObjects,
    InputsLost,
    JobChanged,
    MeetWorkers,
    Message,
    ObjectSettled,
    RecallTasks,
    RequestRefused,
    StreamsOpened,
    SubmitJob,
    TaskFault,
    TaskReported,
    WantObjects,
)
from ciel.core.graph.invariants import validate
from ciel.core.ids import ObjectId
from ciel.core.jobs import Job
from ciel.core.refs import Failure, Reference, Stream
from ciel.core.tasks import TaskSpec, TaskState
from ciel.master.state.machine import MasterMachine
from ciel.master.state.queries import topics
from ciel.master.state.workers import WorkerFacts
from ciel.testing.builders import (
    JOB,
    a_job_spec,
    a_worker,
    inline,
    place_of,
)

CLIENT = "client"


class Cluster:
    """A master's machine with a clock and its messages. A task has the name of its first output."""

    def __init__(self, *workers: WorkerFacts, delegates: bool = False) -> None:
        self.machine = MasterMachine(delegates=delegates)
        self.now_s = 1000.0
        self.progress = 0
        self.sent: list[Message] = []
        for worker in workers:
            self.machine.worker_joined(worker, self.now_s)
        self.machine.outbox.clear()

    # --- events -----------------------------------------------------------------------------------

    def says(self, *messages: Message, client: str = CLIENT) -> None:
        for message in messages:
            self.machine.client_sent(client, message, self.now_s)
        self.end_turn()

    def job(
        self, *tasks: TaskSpec, want: Iterable[str] = (), open: bool = False, job: str = JOB,
        detached: bool = False, known: tuple[Reference, ...] = (),
    ) -> None:  # fmt: skip
        """A client submits a job of these tasks, and closes it unless `open` is set.

        `known`: references of objects that it has uploaded.
        """
        objects = tuple(ObjectId(name) for name in want)
        spec = a_job_spec(job, detached=detached)
        messages: list[Message] = [SubmitJob(spec), *(AddTask(task, known) for task in tasks)]
        messages.append(WantObjects(spec.id, objects))
        if not open:
            messages.append(CloseJob(spec.id))
        self.says(*messages)

    def worker_says(self, worker: str, *messages: Message) -> None:
        for message in messages:
            self.machine.worker_sent(worker, message, self.now_s)
        self.end_turn()

    def done(self, worker: str, spec: TaskSpec, *published: Reference, attempt: int = 1) -> None:
        """A worker reports the success of an attempt, with all outputs or with `published`."""
        made = published or tuple(inline(output) for output in spec.outputs)
        self.worker_says(worker, TaskReported(spec.id, attempt, made, None, 0.01))

    def failed(
        self, worker: str, spec: TaskSpec, reason: str = "RUNTIME_ERROR", attempt: int = 1
    ) -> None:
        fault = TaskFault(reason, "exit status 3")
        self.worker_says(worker, TaskReported(spec.id, attempt, (), fault, 0.01))

    def joins(self, facts: WorkerFacts, *, returns: bool = False) -> None:
        self.machine.worker_joined(facts, self.now_s, returns=returns)
        self.end_turn()

    def loses(self, worker: str) -> None:
        """The process of a worker ends."""
        self.machine.worker_lost(worker, "its connection ended", self.now_s, died=True)
        self.end_turn()

    def client_goes(self, client: str = CLIENT) -> None:
        self.machine.client_gone(client, self.now_s)
        self.end_turn()

    def passes(self, seconds: float, *heard: str) -> None:
        """Time passes; meanwhile the workers of `heard`, or all workers, send heartbeats."""
        self.now_s += seconds
        for worker in heard or list(self.machine.workers):
            self.machine.worker_heard(worker, self.now_s, self.now_s)
        self.machine.check_timeouts(self.now_s)
        self.end_turn()

    def end_turn(self) -> None:
        self.machine.end_tick(self.now_s)
        validate(self.machine.graph)

    # --- messages ---------------------------------------------------------------------------------

    def said(self, *lines: str) -> None:
        """Compare and clear all messages, except those about other workers and progress."""
        assert self.lines() == list(lines)

    def lines(self) -> list[str]:
        """Return and clear all messages, except those about other workers and progress."""
        lines = [self._line(peer, message) for peer, message in self.machine.outbox]
        self.sent += [message for _, message in self.machine.outbox]
        self.machine.outbox.clear()
        self.progress += lines.count("client: active")
        return [line for line in lines if line not in ("", "client: active")]

    def _line(self, peer: str, message: Message) -> str:
        match message:
            case AssignTask(spec, attempt, _):
                again = f" again ({attempt})" if attempt > 1 else ""
                return f"{peer}: run {spec.outputs[0]}{again}"
            case CancelTask(task_id, attempt):
                return f"{peer}: stop {self._name(task_id)} ({attempt})"
            case RecallTasks(attempts):
                return f"{peer}: give back {' '.join(self._name(task) for task, _ in attempts)}"
            case DropObjects(objects):
                return f"{peer}: drop {' '.join(objects)}"
            case CompareObjects(refs):
                return f"{peer}: compare {' '.join(ref.id for ref in refs)}"
            case CopyObjects(refs):
                return f"{peer}: copy {' '.join(ref.id for ref in refs)}"
            case ObjectSettled(_, Failure(object_id, reason, _)):
                return f"{peer}: {object_id} is {reason}"
            case ObjectSettled(_, ref):
                return f"{peer}: {ref.id} is there"
            case JobChanged(summary):
                reason = f": {summary.reason}" if summary.reason else ""
                return f"{peer}: {summary.state}{reason}"
            case RequestRefused(_, reason):
                return f"{peer}: refused: {reason}"
            case MeetWorkers():
                return ""
        return f"{peer}: {type(message).__name__}"

    def _name(self, task_id: str) -> str:
        task = self.machine.graph.tasks.get(task_id)
        return task_id if task is None else task.spec.outputs[0]

    def job_of(self, job: str = JOB) -> Job:
        return self.machine.jobs[job]

    def state(self, spec: TaskSpec) -> TaskState:
        return self.machine.graph.tasks[spec.id].state

    def slots_used(self, worker: str) -> int:
        return self.machine.workers[worker].slots_used


def one(*, slots: int = 1) -> Cluster:
    """A cluster of one worker."""
    return Cluster(a_worker("w1", slots=slots))


def two() -> Cluster:
    """A cluster of two workers with one slot each."""
    return Cluster(a_worker("w1"), a_worker("w2"))


def inputs_lost(spec: TaskSpec, *places: str, attempt: int = 1) -> InputsLost:
    """A worker's report that it found no input at any of these places."""
    losses = tuple((object_id, place) for object_id in spec.inputs for place in places)
    return InputsLost(spec.id, attempt, losses, "w2:8001 answered 404")


def ask(cluster: Cluster, topic: str, **arguments: object) -> Any:
    """Return the master's answer to a query."""
    return topics.answer(cluster.machine, topic, arguments, cluster.now_s)


def why(cluster: Cluster, name: str) -> str:
    """Return why a task of the last job runs, waits or does not run."""
    return "\n".join(ask(cluster, "task", job="last", task=name)["why"])


def opened(spec: TaskSpec, worker: str, *, attempt: int = 1) -> StreamsOpened:
    """A worker's report that all outputs of a task can be read while they grow."""
    place = frozenset((place_of(worker),))
    return StreamsOpened(spec.id, attempt, tuple(Stream(name, place) for name in spec.outputs))
