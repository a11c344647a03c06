"""Handles the tasks that running tasks create.

Workers start some of these children by themselves, in another slot or within the program of the
parent (ADR 17 and 20).
"""

from __future__ import annotations

from ciel.core.errors import CielError
from ciel.core.events import (
    CancelTask,
    InputsLost,
    Message,
    SpawnTask,
    StreamsOpened,
    TaskReported,
)
from ciel.core.graph.early_outputs import publish_early
from ciel.core.graph.nodes import TaskNode
from ciel.core.tasks import ASSIGNED, TaskSpec, check_task
from ciel.master.state.attempts import Attempts
from ciel.master.state.context import Context
from ciel.master.state.workers import WorkerNode


class InlineChildren:
    """Inline children that are not needed yet, and the messages of their workers about them.

    A worker may start a child before the master knows that it is needed: a later message of the
    same tick may make it needed. At the end of the tick the master assigns or cancels these
    children.
    """

    def __init__(self, context: Context, attempts: Attempts, *, starts_inline: bool) -> None:
        """`starts_inline`: workers may start children without asking the master."""
        self._context = context
        self._graph = context.graph
        self._attempts = attempts
        self._starts_inline = starts_inline
        self._waiting: dict[TaskNode, WorkerNode] = {}
        self._messages: list[tuple[str, Message]] = []  # about these children, each with its sender

    def __bool__(self) -> bool:
        return bool(self._waiting or self._messages)

    def spawned(self, worker: WorkerNode, parent: TaskNode, message: SpawnTask) -> None:
        """Add a task that a running task created."""
        spec = message.spec
        is_new = spec.id not in self._graph.tasks
        try:
            if spec.job != parent.spec.job:
                raise CielError(f"task {spec.id}: its parent belongs to another job")
            if message.known:
                publish_early(self._graph, parent, message.known)
            if not parent.job.is_cancelled:  # otherwise the parent is being cancelled as well
                if is_new:
                    self._context.require_room(parent.job)
                check_task(spec)
                self._context.add_task(spec, message.known, parent.job)
        except CielError as error:
            self._context.send(worker.facts.id, CancelTask(parent.spec.id, parent.attempt))
            self._graph.fail(parent, "BAD_SPAWN", str(error))
        task = self._graph.tasks.get(spec.id)
        if message.wanted and parent.state is ASSIGNED and task is not None:
            self._graph.running_waits.add(parent, task.spec.outputs)
            worker.disks.remove((parent.spec.id, parent.attempt))  # the child may need its disk
            self._graph.demand(task.spec.outputs)
        if message.started:
            self._started(worker, parent, message, is_new=is_new)

    def _started(
        self, worker: WorkerNode, parent: TaskNode, message: SpawnTask, *, is_new: bool
    ) -> None:
        """Assign a child that its worker has started, if it can run there; else cancel it."""
        task = self._graph.tasks.get(message.spec.id)
        if not is_new or task is None or not self._starts_inline:
            self._cancel(worker, message.spec)
        elif self._graph.is_ready(task):
            self._attempts.confirm(task, worker, is_inline=True, within=message.wanted)
            return
        elif message.wanted:
            self._cancel(worker, message.spec)
        else:
            self._waiting[task] = worker
            return
        if message.wanted and parent.state is ASSIGNED:
            # The outputs that the parent computes from the child are invalid as well. In the new
            # attempt its children run elsewhere.
            why = "a child that ran within its program had been created before: the task runs again"
            self._attempts.restart(parent, why)

    def spawned_late(self, worker: WorkerNode, message: SpawnTask) -> None:
        """Process a task that a superseded attempt has created."""
        self._attempts.unlisted.add(worker, message.known)
        if message.started:
            self._cancel(worker, message.spec)

    def postpone(self, worker: WorkerNode, message: Message) -> bool:
        """Postpone a message about an inline child that is not needed yet.

        A message about a task that such a child created is postponed, too. Return whether the
        message was postponed.
        """
        if not self._waiting:
            return False
        match message:
            case TaskReported(task_id, 0) | StreamsOpened(task_id, 0) | InputsLost(task_id, 0):
                task = self._graph.tasks.get(task_id)
            case SpawnTask(spec, _, 0):
                task = self._graph.tasks.get(spec.parent)
            case _:
                return False
        if task is not None and self._waiting.get(task) is not worker:
            return False
        self._messages.append((worker.facts.id, message))
        return True

    def decide(self) -> list[tuple[str, Message]]:
        """Assign the inline children that can run, and cancel all other ones.

        Return the postponed messages, to be processed now.
        """
        waiting, self._waiting = self._waiting, {}
        messages, self._messages = self._messages, []
        for task, worker in waiting.items():
            if self._graph.is_ready(task):
                self._attempts.confirm(task, worker, is_inline=True)
            else:
                self._cancel(worker, task.spec)
        return messages

    def worker_lost(self, worker: WorkerNode) -> None:
        """Forget the children that a lost worker has started."""
        self._waiting = {task: at for task, at in self._waiting.items() if at is not worker}
        lost_id = worker.facts.id
        self._messages = [(at, message) for at, message in self._messages if at != lost_id]

    def _cancel(self, worker: WorkerNode, spec: TaskSpec) -> None:
        """Order a worker to cancel an inline child, unless the child was assigned before."""
        task = self._graph.tasks.get(spec.id)
        if task is not None:
            if task.state is ASSIGNED and (task.attempt, task.worker) == (0, worker.facts.id):
                return
            worker.add_superseded(task, 0)
        self._context.send(worker.facts.id, CancelTask(spec.id, 0))
