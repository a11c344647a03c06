"""Queues the runnable tasks that are not assigned yet: by priority, then round-robin over jobs.

Within a priority, jobs take turns, however many tasks they have and however early they were
submitted. So a short job does not wait for the end of a long one. The first task of a job that runs
nothing can even be assigned beyond a worker's credit (`pop_new`).

A job ends sooner, and needs less space, if its tasks that read intermediate objects run before
tasks that produce new ones. Otherwise readers would wait behind all new producers, and intermediate
objects would be stored for longer and could be lost with their workers. So the next task of a job
is one of the highest *rank*, its depth in the graph; within a rank, tasks that were attempted
before are first, then the oldest. Every eighth task is one of the lowest rank, so that no task
starves in a job whose graph grows for ever.

Retried tasks and delayed tasks enter the queue when their delay is over.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from itertools import chain

from ciel.core.graph.nodes import TaskNode
from ciel.core.graph.task_graph import TaskGraph
from ciel.core.jobs import Job
from ciel.core.tasks import PRIORITY_MIN, TaskState

DELAYED_MIN = 1000
"""With at least this number of delayed tasks, the queue checks which tasks are still needed."""

LOWEST_EVERY = 8
"""One in this number of tasks of a job is taken from the lowest rank."""


class _JobQueue:
    """The tasks of one job and priority, in deques by rank and by whether they were attempted."""

    __slots__ = ("_by_key", "_keys", "_popped")

    def __init__(self) -> None:
        self._by_key: dict[int, deque[TaskNode]] = {}  # twice the rank, plus 1 if attempted
        self._keys: list[int] = []  # lowest first
        self._popped = 0

    def push(self, task: TaskNode) -> None:
        key = 2 * task.rank + (task.attempt > 0)
        queue = self._by_key.get(key)
        if queue is None:
            queue = self._by_key[key] = deque()
            insort(self._keys, key)
        queue.append(task)

    def pop(self) -> TaskNode:
        self._popped += 1
        place = 0 if self._popped % LOWEST_EVERY == 0 else -1
        key = self._keys[place]
        queue = self._by_key[key]
        task = queue.popleft()
        if not queue:
            del self._by_key[key], self._keys[place]
        return task

    def __bool__(self) -> bool:
        return bool(self._keys)

    def __iter__(self) -> Iterator[TaskNode]:
        return chain(*self._by_key.values())

    def __len__(self) -> int:
        return sum(map(len, self._by_key.values()))


class _PriorityQueue:
    """The tasks of one priority."""

    __slots__ = ("count", "first", "jobs", "new", "rotation")

    def __init__(self) -> None:
        self.first: deque[TaskNode] = deque()  # tasks that could not be placed, and were put back
        self.jobs: dict[Job, _JobQueue] = {}
        self.rotation: deque[Job] = deque()  # the keys of `jobs`, the next one first
        self.new: dict[Job, None] = {}  # jobs that ran nothing when their first task was queued
        self.count = 0

    def __len__(self) -> int:
        return self.count + len(self.first)

    def push(self, task: TaskNode) -> None:
        own = self.jobs.get(task.job)
        if own is None:
            own = self.jobs[task.job] = _JobQueue()
            self.rotation.append(task.job)
            if not task.job.counts[TaskState.ASSIGNED]:
                self.new[task.job] = None
        own.push(task)
        self.count += 1

    def pop(self) -> TaskNode:
        if self.first:
            return self.first.popleft()
        job = self.rotation[0]
        task = self._pop_of(job)
        if job not in self.jobs:
            self.rotation.popleft()
        elif len(self.rotation) > 1:
            self.rotation.rotate(-1)
        return task

    def pop_new(self) -> TaskNode | None:
        """Remove and return a task of a job that runs nothing; None if there is no such job."""
        while self.new:
            job = next(iter(self.new))
            del self.new[job]
            if not job.counts[TaskState.ASSIGNED]:
                task = self._pop_of(job)
                if job not in self.jobs:
                    self.rotation.remove(job)
                return task
        return None

    def _pop_of(self, job: Job) -> TaskNode:
        own = self.jobs[job]
        self.new.pop(job, None)
        task = own.pop()
        self.count -= 1
        if not own:
            del self.jobs[job]
        return task


class ReadyQueue:
    """The queue of runnable tasks.

    Entries may be stale: the caller checks whether a task can still be assigned.
    """

    __slots__ = ("_count", "_delayed", "_delayed_max", "_graph", "_order", "_queues", "_sequence")

    def __init__(self, graph: TaskGraph) -> None:
        self._graph = graph
        self._queues: dict[int, _PriorityQueue] = {}  # by priority
        self._order: list[int] = []  # negated priorities, a heap
        self._count = 0
        self._delayed: list[tuple[float, int, TaskNode]] = []  # a heap, by due time
        self._delayed_max = DELAYED_MIN
        self._sequence = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[TaskNode]:
        """Yield all entries in no particular order; for tests."""
        for queue in self._queues.values():
            yield from queue.first
            for own in queue.jobs.values():
                yield from own
        yield from [task for _, _, task in self._delayed]

    def count_from(self, priority: int) -> int:
        """Count the tasks of a priority or a higher one."""
        return sum(len(queue) for own, queue in self._queues.items() if own >= priority)

    def push(self, task: TaskNode) -> None:
        spec = task.spec
        if spec.inputs or spec.parent != spec.job:
            task.rank = self._rank_of(task)
        self._queue_of(task).push(task)
        self._count += 1

    def _rank_of(self, task: TaskNode) -> int:
        """Return the depth of a task in the graph.

        It is one more than the largest depth of its parent and of the producers of its inputs.
        """
        tasks, objects = self._graph.tasks, self._graph.objects
        parent = tasks.get(task.spec.parent)
        rank = parent.rank + 1 if parent is not None else 0
        for object_id in task.spec.inputs:
            node = objects.get(object_id)
            producer = None if node is None else node.producer
            if producer is not None and producer.rank >= rank:
                rank = producer.rank + 1
        return rank

    def push_later(self, task: TaskNode, due_s: float) -> None:
        """Delay a task until `wake` is called at `due_s` or later."""
        self._sequence += 1
        if len(self._delayed) >= self._delayed_max:  # most of them may not be needed any more
            self._delayed = [entry for entry in self._delayed if self._graph.is_ready(entry[2])]
            heapify(self._delayed)
            self._delayed_max = max(DELAYED_MIN, 2 * len(self._delayed))
        heappush(self._delayed, (due_s, self._sequence, task))

    def wake(self, now_s: float) -> None:
        """Queue the delayed tasks that are due."""
        while self._delayed and self._delayed[0][0] <= now_s:
            self.push(heappop(self._delayed)[2])

    @property
    def due_s(self) -> float | None:
        """The time at which `wake` has work next; None if no task is delayed."""
        return self._delayed[0][0] if self._delayed else None

    def push_first(self, task: TaskNode) -> None:
        """Put back a task that could not be placed, as the next one of its priority."""
        self._queue_of(task).first.appendleft(task)
        self._count += 1

    def drop_job(self, job: Job) -> None:
        """Forget the tasks of a job, except tasks that were put back or are delayed."""
        for queue in self._queues.values():
            own = queue.jobs.pop(job, None)
            if own is not None:
                queue.new.pop(job, None)
                queue.rotation.remove(job)
                queue.count -= len(own)
                self._count -= len(own)

    def _queue_of(self, task: TaskNode) -> _PriorityQueue:
        priority = task.spec.needs.priority
        queue = self._queues.get(priority)
        if queue is None:
            queue = self._queues[priority] = _PriorityQueue()
            heappush(self._order, -priority)
        return queue

    def pop(self) -> TaskNode:
        """Remove and return the next task; raises IndexError if there is none."""
        while True:
            priority = -self._order[0]
            queue = self._queues[priority]
            if queue.first or queue.rotation:
                self._count -= 1
                return queue.pop()
            heappop(self._order)
            del self._queues[priority]

    def pop_new(self) -> TaskNode | None:
        """Remove and return a task of a job that runs nothing; None if there is no such job.

        Consider only tasks of the highest priority in the queue.
        """
        queue = self._queues.get(self.priority)
        task = None if queue is None else queue.pop_new()
        self._count -= task is not None
        return task

    @property
    def priority(self) -> int:
        """The priority of the next task; the lowest possible if there is none."""
        return max([p for p, queue in self._queues.items() if len(queue)], default=PRIORITY_MIN)
