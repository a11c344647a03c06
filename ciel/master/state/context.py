"""The data that the components of the master's state share.

These are the graph, the workers, the time, and the messages that are sent at the end of the tick.
"""

from __future__ import annotations

from collections.abc import Iterable

from ciel.core.errors import NoAttemptError, TooManyTasksError
from ciel.core.events import AddTask, DropObjects, JobNoted, Message
from ciel.core.graph.early_outputs import introduce
from ciel.core.graph.nodes import TaskNode
from ciel.core.graph.task_graph import TaskGraph
from ciel.core.history import History
from ciel.core.ids import ObjectId, TaskId
from ciel.core.jobs import Job
from ciel.core.refs import Concrete, Reference
from ciel.core.retries import RetryState
from ciel.core.tasks import FINISHED, TaskSpec, TaskState
from ciel.master.state.workers import WorkerTable


class Context:
    """The shared data of one master. `now_s` is the time of the current event."""

    __slots__ = (
        "epoch_s",
        "graph",
        "histories",
        "journal",
        "now_s",
        "numbers_used",
        "outbox",
        "retry_states",
        "services",
        "table",
        "tasks_max",
        "touched",
    )

    def __init__(self, tasks_max: int = 0) -> None:
        """`tasks_max`: how many tasks a job may have; 0: any number."""
        self.tasks_max = tasks_max
        self.graph = TaskGraph()
        self.table = WorkerTable()
        self.now_s = 0.0
        self.epoch_s = 0.0  # this plus `now_s` is the time since the epoch
        self.outbox: list[tuple[str, Message]] = []  # each with its receiver
        self.journal: list[Message] = []  # the records for the journal, in order
        self.histories: dict[str, History] = {}  # by task
        self.retry_states: dict[str, RetryState] = {}  # by task
        self.numbers_used: dict[TaskNode, int] = {}
        """The greatest numbers of attempts that were not adopted, of tasks with a lower one."""
        self.services: dict[TaskId, tuple[int, str]] = {}
        """The attempt and the address of each replica of a service; the attempt may have ended."""
        self.touched: dict[str, Job] = {}  # jobs to be checked at the end of the tick

    def send(self, peer: str, message: Message) -> None:
        """Send a message to a worker (by its id) or a client (by the name of its connection)."""
        self.outbox.append((peer, message))

    def touch(self, job: Job) -> None:
        """Check a job at the end of the tick: it may have ended, or made progress."""
        self.touched[job.spec.id] = job

    def open_service(self, task_id: TaskId, attempt: int, address: str) -> None:
        """Note that an attempt is a replica of a service, and answers at an address.

        After a restart of the master, a replica may report before its worker names the attempt.
        """
        task = self.graph.tasks.get(task_id)
        if task is None or task.state in FINISHED or attempt < task.attempt:
            raise NoAttemptError(task_id, attempt)
        nodes = self.graph.tasks
        self.services = {
            known: opened
            for known, opened in self.services.items()
            if known in nodes and nodes[known].state not in FINISHED
        }
        self.services[task_id] = attempt, address

    def service_of(self, task: TaskNode) -> str | None:
        """Return the address of a replica of a service; None if it is not open."""
        attempt, address = self.services.get(task.spec.id, (0, None))
        return address if task.state is TaskState.ASSIGNED and task.attempt == attempt else None

    def skip_used_numbers(self, task: TaskNode) -> None:
        """Let the next attempt at a task have a number that no earlier one has had."""
        if self.numbers_used:
            task.attempt = max(task.attempt, self.numbers_used.pop(task, 0))

    def record(self, task: TaskNode, text: str) -> None:
        """Add a line to the history of a task."""
        self.histories.setdefault(task.spec.id, History()).record(self.now_s, text)

    def note(self, job: Job, text: str) -> None:
        """Add a line to the history of a job that no other record of the journal implies."""
        job.history.record(self.now_s, text)
        self.journal.append(JobNoted(job.spec.id, self.now_s + self.epoch_s, text))

    def fail(self, task: TaskNode, reason: str, details: object) -> None:
        """Fail a task."""
        self.touch(task.job)
        self.graph.fail(task, reason, details)

    def require_room(self, job: Job, count: int = 1) -> None:
        """Raise TooManyTasksError if a job may not have so many more tasks."""
        if self.tasks_max and len(job.tasks) + count > self.tasks_max:
            raise TooManyTasksError(job.spec.id, self.tasks_max)

    def add_task(self, spec: TaskSpec, known: Iterable[Reference], job: Job) -> None:
        """Add a task (checked by `tasks.check_task`) to a job; raises CielError.

        `known`: references that its creator knows.
        """
        refs = tuple(known)
        for ref in refs:
            introduce(self.graph, ref, job)
        self.graph.add(spec, job)
        self.journal.append(AddTask(spec, refs))

    def delete(self, by_place: dict[str, list[ObjectId]]) -> None:
        """Order workers to delete objects, by location.

        A worker that lists its objects gets such orders after its list. If the list were on its way
        when the order is sent, the object table would list a deleted object.
        """
        if not by_place:
            return
        for worker in self.table.by_id.values():
            objects = by_place.get(worker.facts.netloc)
            if not objects:
                continue
            if worker.is_listing:
                here = frozenset((worker.facts.netloc,))
                refs = [Concrete(object_id, None, here) for object_id in objects]
                worker.postponed_deletions.update((ref.id, ref) for ref in refs)
            else:
                self.send(worker.facts.id, DropObjects(tuple(dict.fromkeys(objects))))
