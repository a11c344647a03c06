"""Dispatches tasks eagerly: sends a task to a worker before all inputs of the task exist.

If one worker will produce all missing inputs of a task, the master sends the task to that worker in
advance. The worker starts the task when its inputs are complete.

In the graph the task still waits. When its inputs are complete, the master marks the task as
assigned, without another message. If an input fails or is produced elsewhere, the master cancels
the attempt. The eager attempt uses the task's next attempt number; so later reports about it cannot
be confused with reports about another attempt.
"""

from __future__ import annotations

from itertools import islice

from ciel.core.events import CancelTask
from ciel.core.graph import deferred
from ciel.core.graph.nodes import TaskNode
from ciel.core.ids import ObjectId
from ciel.core.jobs import Job
from ciel.core.refs import STREAMS, Concrete, Failure, Sweetheart, locations_of
from ciel.core.tasks import ASSIGNED, RUNNABLE, WAITING
from ciel.master.state.context import Context
from ciel.master.state.workers import AttemptKey, WorkerNode

EAGER_MAX = 64
"""The maximum number of eager tasks per worker. A worker that has reached it gets more tasks when
only half of this number is left."""
INPUTS_MAX = 16
"""Tasks with more inputs are not dispatched eagerly: they usually wait for a long time."""
SUCCESSORS_MAX = 128
"""At most this many readers of one object are considered."""
FAR_MAX_BYTES = 1_000_000
"""A task with a larger input on another worker is not dispatched eagerly: it may run better
there."""

WASTED_MAX = 2
"""After so many cancelled eager attempts, a task is dispatched only when it can run. When tasks
delegate, the producers of objects change often."""
WASTED_KEPT_MAX = 1000


class EagerDispatch:
    """Sends waiting tasks to workers in advance, and cancels those that cannot start there."""

    def __init__(self, context: Context) -> None:
        self.tasks: dict[TaskNode, WorkerNode] = {}  # producers before their readers
        self._graph = context.graph
        self._workers = context.table.by_id
        self._retry_states = context.retry_states
        self._context = context
        self._wasted: dict[TaskNode, int] = {}  # cancelled eager attempts since the task last ran
        self._producers: dict[TaskNode, None] = {}  # their readers may be dispatched now
        # Producers whose readers may be dispatched when the worker has room again.
        self._without_room: dict[WorkerNode, dict[TaskNode, None]] = {}

    # --- sending ----------------------------------------------------------------------------------

    def assigned(self, task: TaskNode) -> None:
        """Note that a task was assigned: its readers may be dispatched eagerly."""
        if self._wasted:
            self._wasted.pop(task, None)
        awaited = self._graph.waiting.awaited
        for object_id in task.outputs:
            if object_id in awaited:
                self._producers[task] = None
                return

    def send(self) -> None:
        """Send eager tasks; called once per tick, after all other placement."""
        graph = self._graph
        if graph.newly_waiting:
            waiting, graph.newly_waiting = graph.newly_waiting, []
            for task in waiting:
                self._note_producer(task)
        for full in list(self._without_room):
            if len(full.eager) <= EAGER_MAX // 2:
                self._producers.update(self._without_room.pop(full))
        producers, self._producers = list(self._producers), {}
        for producer in producers:  # the list grows in the loop
            worker = self._worker_of(producer)
            if worker is not None:
                producers += self._send_successors(producer, worker)

    def _note_producer(self, task: TaskNode) -> None:
        if task.state is WAITING and len(task.spec.inputs) <= INPUTS_MAX:
            nodes = self._graph.objects.nodes
            for object_id in task.spec.inputs:
                node = nodes[object_id]
                if node.is_future and node.producer is not None:
                    if self._worker_of(node.producer) is not None:
                        self._producers[node.producer] = None
                    return

    def _worker_of(self, producer: TaskNode | None) -> WorkerNode | None:
        """Return the worker on which a task will certainly produce its outputs.

        Return None if that is not certain, as for a task that reads a stream.
        """
        if producer is None:
            return None
        if producer.state is ASSIGNED and producer.worker is not None:
            return (
                None if producer in self._graph.streams.reading else self._workers[producer.worker]
            )
        return self.tasks.get(producer)

    def _send_successors(self, producer: TaskNode, worker: WorkerNode) -> list[TaskNode]:
        """Dispatch readers of a task's outputs, at most as many as the worker has slots.

        Return the dispatched tasks.
        """
        sent: list[TaskNode] = []
        room = worker.facts.slots
        for object_id in producer.outputs:
            waiters = self._graph.waiting.awaited.get(object_id, ())
            for task in list(islice(waiters, SUCCESSORS_MAX)):
                if task in self.tasks:
                    room -= 1
                elif room > 0 and self._can_follow(task, worker):
                    if len(worker.eager) >= EAGER_MAX:
                        self._without_room.setdefault(worker, {})[producer] = None
                        return sent
                    self._send(task, worker)
                    sent.append(task)
                    room -= 1
        return sent

    def _can_follow(self, task: TaskNode, worker: WorkerNode) -> bool:
        spec, facts = task.spec, worker.facts
        if (
            task.state is not WAITING
            or len(spec.inputs) > INPUTS_MAX
            or spec.id in self._retry_states
        ):
            return False
        if task.job.is_cancelled:  # the cancellation, in slices, has not reached this task yet
            return False
        if spec.any_count or spec.needs.delay_s:  # it may start later, or with other inputs
            return False
        if spec.needs.io or spec.needs.resources:  # others may have them
            return False
        if self._wasted and self._wasted.get(task, 0) >= WASTED_MAX:
            return False
        if not worker.takes_tasks or spec.executor not in facts.executors:
            return False
        if not worker.can_hold(spec.needs):
            return False
        if self._graph.objects.fixed and self._graph.fixed.location_of(task) - {facts.netloc}:
            return False
        for object_id in spec.inputs:
            ref = self._graph.objects.nodes[object_id].ref
            if type(ref) in STREAMS or type(ref) is Failure:
                return False
            if isinstance(ref, Concrete | Sweetheart) and facts.netloc not in ref.locations:
                if ref.size_bytes is None or ref.size_bytes > FAR_MAX_BYTES:
                    return False
                if not self._context.table.can_fetch(worker, ref):
                    return False
        return self._is_produced_at(task, worker)

    def _is_produced_at(self, task: TaskNode, worker: WorkerNode) -> bool:
        """Whether one worker will produce all missing inputs of a task."""
        nodes = [self._graph.objects.nodes[object_id] for object_id in task.spec.inputs]
        return all(node.is_consumable or self._worker_of(node.producer) is worker for node in nodes)

    def _send(self, task: TaskNode, worker: WorkerNode) -> None:
        self.tasks[task] = worker
        worker.eager[task] = None
        task.reason = "its inputs are produced there"
        self._context.skip_used_numbers(task)
        reference = self._graph.objects.reference
        inputs = tuple([reference(object_id) for object_id in task.spec.inputs])
        for peer, message in worker.assignment(task, task.attempt + 1, inputs):
            self._context.send(peer, message)

    # --- starts and cancellations -----------------------------------------------------------------

    def claim(self, task: TaskNode, worker: WorkerNode) -> bool:
        """Remove an eager task that the master now assigns to the worker that has it already.

        Return False if the task was not dispatched to this worker, or cannot run there.
        """
        if self.tasks.get(task) is not worker:
            return False
        if task.state is WAITING and self._graph.notifying:
            deferred.notify_now(self._graph, task)
        if not self._graph.is_ready(task):
            return False
        for object_id in task.spec.inputs:
            ref = self._graph.objects.reference(object_id)
            if type(ref) is Failure:
                return False
            if type(ref) in STREAMS:
                if worker.facts.netloc not in locations_of(ref):
                    return False
                self._graph.disturbed = True  # its own eager readers must be checked again
        self._forget(task)
        return True

    def find(self, worker: WorkerNode, task_id: str, attempt: int) -> TaskNode | None:
        """Return the task of an eager attempt that a worker reports; None for other attempts."""
        task = self._graph.tasks.get(task_id)
        if task is None or self.tasks.get(task) is not worker or attempt != task.attempt + 1:
            return None
        return task

    def ended(self, task: TaskNode) -> None:
        """Remove an eager attempt that ended without being assigned."""
        self._forget(task)
        task.attempt += 1
        self._wasted[task] = self._wasted.get(task, 0) + 1
        self._graph.disturbed = True  # eager attempts of its readers may depend on it

    def cancel(self, task: TaskNode) -> AttemptKey:
        """Cancel an eager attempt; it occupies the worker until the worker reports its end."""
        worker = self.tasks[task]
        self.ended(task)
        worker.add_superseded(task, task.attempt)
        self._context.send(worker.facts.id, CancelTask(task.spec.id, task.attempt))
        return (worker.facts.id, task.spec.id, task.attempt)

    def cancel_job(self, job: Job) -> set[AttemptKey]:
        """Cancel all eager attempts of a job."""
        return {self.cancel(task) for task in list(self.tasks) if task.job is job}

    def job_removed(self, job: Job) -> None:
        """Forget the tasks of a removed job."""
        if self._wasted:
            self._wasted = {task: n for task, n in self._wasted.items() if task.job is not job}

    def produced_elsewhere(self, object_id: ObjectId) -> None:
        """Cancel the eager attempts that wait for an object which another worker has produced."""
        for task in self._graph.waiting.waiters_of(object_id):
            if task in self.tasks:
                self.cancel(task)

    def check(self) -> None:
        """Cancel eager attempts that cannot start on their workers any more.

        Do nothing unless the graph has changed in a way that can cause this (`disturbed`).
        """
        while self._graph.disturbed:
            self._graph.disturbed = False
            if len(self._wasted) > WASTED_KEPT_MAX:
                self._wasted = {t: count for t, count in self._wasted.items() if t.state is WAITING}
            for task, worker in list(self.tasks.items()):
                is_due = task.state is RUNNABLE
                if not is_due and not (
                    task.state is WAITING and self._is_produced_at(task, worker)
                ):
                    self.cancel(task)

    def worker_lost(self, worker: WorkerNode) -> None:
        """Forget the eager attempts of a lost worker."""
        self._without_room.pop(worker, None)
        for task in list(worker.eager):
            self.ended(task)

    def _forget(self, task: TaskNode) -> None:
        del self.tasks.pop(task).eager[task]

    def problems(self) -> list[str]:
        """Return the broken invariants; tests check them after each tick."""
        found = []
        for task, worker in self.tasks.items():
            if task not in worker.eager or self._workers.get(worker.facts.id) is not worker:
                found.append(f"A1 {task.spec.id} is eager on {worker}, which does not list it")
            if task.state is not WAITING or not self._is_produced_at(task, worker):
                found.append(f"A2 {task.spec.id} is {task.state}, and eager on {worker}")
        for worker in self._workers.values():
            for task in worker.eager:
                if self.tasks.get(task) is not worker:
                    found.append(f"A1 {worker} lists {task.spec.id} as eager, but it is not")
        return found
