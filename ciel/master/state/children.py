"""Handles children that workers started by themselves, beside their parents or within them (ADR 17
and 20).
"""

from __future__ import annotations

from abc import abstractmethod

from ciel.core.early_outputs import publish_early
from ciel.core.errors import CielError
from ciel.core.events import (
    CancelTask,
    InputsLost,
    Message,
    SpawnTask,
    StreamsOpened,
    TaskReported,
)
from ciel.core.nodes import TaskNode
from ciel.core.tasks import ASSIGNED, TaskSpec
from ciel.master.state.jobs import JobDesk
from ciel.master.state.workers import Call, WorkerNode


class ChildDesk(JobDesk):
    """Processes the tasks that running tasks create."""

    _delegates: bool

    def __init__(self) -> None:
        super().__init__()
        self._begun: dict[TaskNode, WorkerNode] = {}  # children that nobody needs yet
        self._kept: list[tuple[str, Message]] = []  # what their workers said of them

    @abstractmethod
    def worker_said(self, worker_id: str, message: Message, now_s: float) -> None: ...

    @abstractmethod
    def _assign_silently(
        self, task: TaskNode, worker: WorkerNode, *, begun: bool = False, within: bool = False
    ) -> None: ...

    @abstractmethod
    def _stop(self, task: TaskNode) -> Call | None: ...

    def _spawned(self, worker: WorkerNode, parent: TaskNode, message: SpawnTask) -> None:
        spec = message.spec
        is_new = spec.id not in self.graph.tasks
        try:
            if spec.job != parent.spec.job:
                raise CielError(f"task {spec.id}: it is spawned into another job")
            if message.known:
                publish_early(self.graph, parent, message.known)
            if not parent.job.called_off:  # else its parent is being ended, too
                self._add_task(spec, message.known, parent.job)
        except CielError as error:
            self._say(worker.facts.id, CancelTask(parent.spec.id, parent.attempt))
            self.graph.fail(parent, "BAD_SPAWN", str(error))
        added = self.graph.tasks.get(spec.id)
        if message.wanted and parent.state is ASSIGNED and added is not None:
            self.graph.running_waits.add(parent, added.spec.outputs)
            self.graph.demand(added.spec.outputs)
        if message.begun:
            task = self.graph.tasks.get(spec.id)
            if not is_new or task is None or not self._delegates:
                self._call_off_begun(worker, spec)
                if message.wanted:
                    self._begin_anew(parent)
            elif self.graph.is_ready(task):
                self._assign_silently(task, worker, begun=True, within=message.wanted)
            elif message.wanted:
                self._call_off_begun(worker, spec)
                self._begin_anew(parent)
            else:
                self._begun[task] = worker

    def _begin_anew(self, parent: TaskNode) -> None:
        """Run a parent again whose inline child does not count: neither do the outputs that the
        parent computed from it. The new attempt has its children run elsewhere.
        """
        if parent.state is ASSIGNED:
            self._touched[parent.spec.job] = parent.job
            self._tell(parent, "a child that ran within it was known already: it runs again")
            self._stop(parent)
            self.graph.requeue(parent)

    # --- children that a worker began by itself ---------------------------------------------------

    def _is_early(self, worker: WorkerNode, message: Message) -> bool:
        """Whether a message concerns an inline child that is not needed yet, or a task that such a
        child created.
        """
        match message:
            case TaskReported(task_id, 0) | StreamsOpened(task_id, 0) | InputsLost(task_id, 0):
                task = self.graph.tasks.get(task_id)
            case SpawnTask(spec, _, 0):
                task = self.graph.tasks.get(spec.parent)
            case _:
                return False
        return task is None or self._begun.get(task) is worker

    def _decide(self) -> None:
        """Assign the inline children that can run; cancel the others."""
        while self._begun or self._kept:
            begun, self._begun = self._begun, {}
            kept, self._kept = self._kept, []
            for task, worker in begun.items():
                if self.graph.is_ready(task):
                    self._assign_silently(task, worker, begun=True)
                else:
                    self._call_off_begun(worker, task.spec)
            for worker_id, message in kept:
                self.worker_said(worker_id, message, self._now_s)

    def _call_off_begun(self, worker: WorkerNode, spec: TaskSpec) -> None:
        """Have a worker cancel an inline child, unless it was assigned before."""
        task = self.graph.tasks.get(spec.id)
        if task is not None:
            if task.state is ASSIGNED and (task.attempt, task.worker) == (0, worker.facts.id):
                return
            worker.hold(task, 0)
        self._say(worker.facts.id, CancelTask(spec.id, 0))
