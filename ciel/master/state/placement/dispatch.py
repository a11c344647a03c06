"""Chooses a worker for each runnable task, once per tick of the event loop."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random

from ciel.core.events import CopyTimed, MeetWorkers, Message, Neighbour, RecallTasks
from ciel.core.graph.any_inputs import inputs_of
from ciel.core.graph.failures import size_text
from ciel.core.graph.nodes import TaskNode
from ciel.core.graph.task_graph import TaskGraph
from ciel.core.ids import ObjectId, TaskId
from ciel.core.jobs import Job
from ciel.core.offers.resources import amounts_text
from ciel.core.placement import Bandwidths, Candidate, loads_of, rank
from ciel.core.refs import Fixed, locations_of
from ciel.core.retries import RetryState, may_kill_workers
from ciel.core.scheduling import DEFAULT_SCHEDULING, LOCALITY, SWEETHEART_FACTOR
from ciel.core.tasks import DEFAULT_NEEDS, PRIORITY_MIN, RUNNABLE, Needs
from ciel.master.state.placement.lives import Lives
from ciel.master.state.placement.offers import why_none_fits
from ciel.master.state.placement.random_placement import draw
from ciel.master.state.placement.reach import Reach
from ciel.master.state.placement.ready import ReadyQueue
from ciel.master.state.workers import (
    MEMORY,
    NOTHING_KEPT,
    Capacity,
    WorkerNode,
    WorkerTable,
)

UNPLACED_MAX = 64
"""The number of unplaceable tasks that are skipped per tick: order matters more than full slots."""

STALE_MAX = 5000
"""The number of stale queue entries that are removed per tick: this takes 1 to 3 ms."""

SKIPPED_MAX = 16
"""The number of tasks of a queue that wait for memory or a disk and are skipped per tick."""

LACKING_MAX = 5
"""The number of reasons listed in the failure of a task whose executor no worker offers."""

Assign = Callable[[TaskNode, WorkerNode], None]
Refuse = Callable[[TaskNode, str, str], None]
Send = Callable[[str, Message], None]

RECALL_AFTER_S = 0.1
"""A queued task that has waited for this time, or is expected to, is recalled for an idle worker.
"""


QueueKey = tuple[str, str, tuple[str, ...]]
"""The disk, the labels and the names of the resources that the tasks of a queue need."""
MEMORY_QUEUE: QueueKey = ("", "", ())


class ScarceQueue(ReadyQueue):
    """The runnable tasks that need memory, one disk, some resources, or workers with labels."""

    __slots__ = ("blocked", "key", "skipped")

    def __init__(self, graph: TaskGraph, key: QueueKey) -> None:
        super().__init__(graph)
        self.key = key
        self.skipped: list[TaskNode] = []  # tasks that no worker had room for, in this tick
        self.blocked: set[WorkerNode] = set()  # the workers for which a skipped task waits


class Dispatcher:
    """Holds the runnable tasks, and assigns them to workers that have room.

    Tasks without inputs to be copied are distributed round-robin. A task with inputs is assigned to
    the worker with the lowest cost, or according to the policy of its job. If that worker has no
    room now, the task is parked at it; an idle worker may steal the task.

    Tasks that need memory have a queue of their own, and so have the tasks that are bound by the
    I/O of one disk, that need the same resources, or workers with the same labels. If a task cannot
    get these yet, it blocks later tasks of its queue on the same workers. Tasks of other queues do
    not get the memory and the resources there that it needs. They do not wait for it otherwise.

    The queue that has placed a task longest ago is served first, so that a task with large needs
    does not wait for ever while tasks with small needs arrive.
    """

    def __init__(
        self,
        graph: TaskGraph,
        table: WorkerTable,
        retry_states: Mapping[str, RetryState],
        reach: Reach,
        lives: Lives,
        assign: Assign,
        refuse: Refuse,
        send: Send,
    ) -> None:
        self._graph = graph
        self._table = table
        self._retry_states = retry_states
        self._reach = reach
        self._lives = lives
        self._assign = assign
        self._refuse = refuse
        self._send = send
        self.workers = table.by_id
        self._joined: dict[str, WorkerNode] = {}  # in this tick
        self._gone: dict[str, None] = {}  # the addresses of workers that were lost in this tick
        self._has_lost = False
        self._everywhere: frozenset[str] = frozenset()  # executors that all workers offer
        self.bandwidths = Bandwidths()
        self._random = Random(0)  # with a seed: equal events lead to equal decisions
        self.ready = ReadyQueue(graph)
        self.scarce: dict[QueueKey, ScarceQueue] = {}  # the longest waiting one first
        # For the tasks that the last tick has skipped: an amount by name, see `has_scarce`.
        self._kept: dict[WorkerNode, dict[str, int]] = {}
        self._keeping: dict[TaskNode, WorkerNode] = {}  # where, for each of them
        self._keeping_last: dict[TaskNode, WorkerNode] = {}  # in the tick before
        # No worker can hold them, but a launcher can start one.
        self.for_launchers = ReadyQueue(graph)
        self._has_full = False  # the disk of a worker is full
        self._has_spare = False  # a worker had room at the end of the tick
        self.is_cut_short = False  # the tick ended early because of stale queue entries
        self._stale = 0  # the number of stale entries in this tick
        self._waited_for: dict[WorkerNode, None] = {}  # workers that may have parked or bound tasks
        self._reserved: dict[WorkerNode, None] = {}
        # An input is only on a suspected worker, or no worker reaches all inputs or lives long
        # enough.
        self._stranded: list[TaskNode] = []

    # --- workers ----------------------------------------------------------------------------------

    def add_worker(self, worker: WorkerNode) -> None:
        self._table.add(worker)
        self._requeue_for_launchers()
        self._lives.joined(worker)
        self._joined[worker.facts.id] = worker
        self._gone.pop(worker.facts.netloc, None)
        self._requeue_stranded()

    def remove_worker(self, worker: WorkerNode) -> None:
        self._table.remove(worker)
        if self._joined.pop(worker.facts.id, None) is None:
            self._gone[worker.facts.netloc] = None
        self._has_lost = True
        self._waited_for.pop(worker, None)
        self._reserved.pop(worker, None)
        self._kept.pop(worker, None)
        self._reach.worker_lost(worker)
        for task in (*reversed(worker.parked), *reversed(worker.bound)):
            self.ready.push_first(task)
        if worker.suspicion:
            self.trust(worker)
        self._requeue_stranded()

    def set_launchable(self, capacities: Iterable[Capacity]) -> None:
        """Note which kinds of workers a launcher can start from now on.

        A task that no connected worker can hold waits for one of these; without any it fails.
        """
        self._table.launchable = tuple(capacities)
        self._requeue_for_launchers()

    def _requeue_for_launchers(self) -> None:
        while self.for_launchers:
            self.ready.push(self.for_launchers.pop())

    def introduce_workers(self) -> None:
        """Notify all workers of the workers that joined or were lost in this tick.

        Call this before `dispatch`, so that workers know each other before they get tasks.
        """
        if not self._joined and not self._has_lost:
            return
        offers = {worker.facts.executors for worker in self.workers.values()}
        self._everywhere = frozenset.intersection(*offers) if offers else frozenset()
        if self._has_lost:
            self.bandwidths.keep_only(frozenset(self._table.hosts.values()))
        joined, self._joined = self._joined, {}
        gone, self._gone, self._has_lost = tuple(self._gone), {}, False
        all_workers = tuple([Neighbour(netloc, host) for netloc, host in self._table.hosts.items()])
        welcome = MeetWorkers(all_workers, is_complete=True)
        came = tuple([Neighbour(w.facts.netloc, w.facts.host) for w in joined.values()])
        news = MeetWorkers(came, gone)
        for worker_id in self.workers:
            if worker_id in joined:
                self._send(worker_id, welcome)
            elif came or gone:
                self._send(worker_id, news)

    def suspect(self, worker: WorkerNode) -> None:
        """Assign no more tasks to a worker, and move the tasks parked at it to other workers."""
        self._table.suspects |= {worker.facts.netloc}
        self._unpark(worker)

    def drain(self, worker: WorkerNode) -> None:
        """Assign only tasks to a worker that no other worker can run; move its parked tasks."""
        worker.is_draining = True
        self._unpark(worker)

    def _unpark(self, worker: WorkerNode) -> None:
        for task in reversed(worker.parked):
            self.ready.push_first(task)
        worker.parked.clear()

    def trust(self, worker: WorkerNode) -> None:
        """Stop suspecting a worker that has sent something, or is lost.

        Requeue the tasks that waited for it.
        """
        self._table.suspects -= {worker.facts.netloc}
        self._requeue_stranded()

    def unreached(self, worker: WorkerNode, netlocs: Iterable[str]) -> None:
        """Note that addresses did not answer a worker; move its parked tasks to other workers."""
        self._reach.unreached(worker, netlocs)
        self._unpark(worker)

    def check_reach(self) -> None:
        """Place the tasks again whose inputs no worker reached; called four times a second."""
        if self._table.unreached:
            self._reach.expire()
            self._requeue_stranded()

    def _requeue_stranded(self) -> None:
        stranded, self._stranded = self._stranded, []
        for task in reversed(stranded):
            self.ready.push_first(task)

    def _may_run(self, task: TaskNode) -> bool:
        """Whether a task can be assigned now.

        If only a suspected worker or a worker that has just ended has an input, the task waits
        until that worker is trusted or its objects are lost.
        """
        if not self._graph.is_ready(task):
            return False
        if self._table.suspects and task.spec.inputs:
            for ref in inputs_of(self._graph.objects, task.spec):
                places = locations_of(ref)
                if places and places <= self._table.suspects and type(ref) is not Fixed:
                    self._stranded.append(task)
                    task.reason = self._why_stranded(ref.id, min(places))
                    return False
        return not self._table.unreached or self._is_within_reach(task)

    def _is_within_reach(self, task: TaskNode) -> bool:
        """Whether a worker that can run a task can fetch its inputs. If not, gather them."""
        places = self._graph.fixed.location_of(task) if self._graph.objects.fixed else frozenset()
        here = [worker for place in places if (worker := self._table.at(place)) is not None]
        able = here if places else self._fitting(task)
        if not able or self._reach.readers(task, able):
            return bool(able or places)
        if self._reach.gather(task, able):
            self._stranded.append(task)
        return False

    def _why_stranded(self, object_id: ObjectId, place: str) -> str:
        if place in self._table.expected:
            return f"only the worker at {place} has {object_id}: it has ended, and may come back"
        return f"only silent workers have {object_id}, such as {place}"

    def learn_bandwidth(self, worker: WorkerNode, copied: CopyTimed) -> None:
        """Record how long a worker took to copy an object from another worker."""
        source = self._table.hosts.get(copied.netloc)
        if source is not None:
            self.bandwidths.learn(source, worker.facts.host, copied.size_bytes, copied.run_s)

    @property
    def has_queued(self) -> bool:
        """Whether runnable tasks wait for a worker."""
        return bool(self.ready or self._stranded or any(self.scarce.values()))

    # --- dispatch ---------------------------------------------------------------------------------

    def dispatch(self) -> None:
        """Assign as many tasks as the workers have room for, in the order of the queue."""
        ready, has_parked = self.ready, self._has_parked()
        self.is_cut_short = False
        self._stale = 0
        if self._reserved:
            self._serve_reserved()
        has_scarce = any(self.scarce.values())
        if not self.workers or not (ready or has_scarce or has_parked):
            return
        priority = ready.priority if has_parked or has_scarce else PRIORITY_MIN
        if has_parked:
            self._serve_parked(priority)
        self._kept.clear()
        self._keeping_last, self._keeping = self._keeping, {}
        self._has_full = any(worker.stores.is_full for worker in self.workers.values())
        having_room = [worker for worker in self.workers.values() if worker.has_room]
        roomy = deque(sorted(having_room, key=lambda worker: worker.load))
        if has_scarce:
            self._serve_all_scarce(roomy, priority)
        unplaced: list[TaskNode] = []
        while roomy and ready:
            task = ready.pop()
            if not self._may_run(task):
                if self._is_time_up():
                    break
                continue
            if not self._place(task, roomy):
                unplaced.append(task)
                if len(unplaced) >= UNPLACED_MAX:
                    break
            elif roomy and not roomy[-1].has_room:
                roomy.pop()
        for task in reversed(unplaced):
            ready.push_first(task)
        if self.scarce:
            self._end_scarce(roomy)
        if has_parked and priority > PRIORITY_MIN:
            self._serve_parked(PRIORITY_MIN)
        if ready and not roomy:
            self._start_new_jobs()
        if roomy and not ready:
            self._steal_parked([worker for worker in roomy if worker.has_room])
        self._has_spare = bool(roomy)
        self._table.returned.clear()

    def _start_new_jobs(self) -> None:
        """Assign the first task of each job that runs nothing to a worker, beyond its credit.

        The worker runs it before queued tasks, so it waits only for running tasks.
        """
        workers = self.workers.values()
        while any(worker.has_room_over_credit for worker in workers):
            task = self.ready.pop_new()
            if task is None:
                return
            if not self._may_run(task):
                continue
            needs = task.spec.needs
            has_policy = task.job.spec.scheduling is not DEFAULT_SCHEDULING
            is_bound = has_policy or not needs.is_plain or bool(self._graph.fixed.location_of(task))
            is_bound = is_bound or may_kill_workers(self._retry_states.get(task.spec.id))
            able = [] if is_bound else [w for w in self._able(task) if w.has_room_over_credit]
            if able:
                worker = min(able, key=lambda worker: worker.wait_s(needs.slots))
                self._assign(task, worker)
                worker.over_credit.add((task.spec.id, task.attempt))
            elif self._graph.is_ready(task):
                self.ready.push_first(task)
                return

    def _place(self, task: TaskNode, roomy: deque[WorkerNode]) -> bool:
        """Assign, park or fail a task; return False if no worker that can run it has room.

        The chosen worker moves to the end of `roomy`.
        """
        spec = task.spec
        needs = spec.needs
        is_scarce = needs is not DEFAULT_NEEDS and not needs.is_plain
        is_plain = needs.slots == 1 and not is_scarce
        is_plain = is_plain and not self._has_full and spec.id not in self._retry_states
        if is_plain and not spec.inputs and spec.executor in self._everywhere:
            if task.job.spec.scheduling is DEFAULT_SCHEDULING:
                roomy.rotate(-1)
                if self._lives.outlives(roomy[-1], task):
                    self._assign(task, roomy[-1])
                    return True
        if self._graph.objects.fixed and (places := self._graph.fixed.location_of(task)):
            self._place_at(task, places, roomy)
            return True
        if is_scarce:
            queue = self._queue_of(task)
            queue.push(task)
            self._serve_scarce(queue, roomy, needs.priority)
            return True
        able = self._able(task)
        return not able or self._place_among(task, able, roomy)

    def _is_time_up(self) -> bool:
        """Count a stale queue entry; return whether the rest waits for the next tick."""
        self._stale += 1
        self.is_cut_short = self._stale >= STALE_MAX
        return self.is_cut_short

    def drop_job(self, job: Job) -> None:
        """Forget the queued tasks of a job, so that none of them starts."""
        self.ready.drop_job(job)
        self.for_launchers.drop_job(job)
        for queue in self.scarce.values():
            queue.drop_job(job)

    def scarce_queue(self, needs: Needs) -> ScarceQueue | None:
        """Return the queue of tasks with such needs, if there is one."""
        return self.scarce.get(_queue_key(needs))

    def _queue_of(self, task: TaskNode) -> ScarceQueue:
        key = _queue_key(task.spec.needs)
        if key not in self.scarce:
            self.scarce[key] = ScarceQueue(self._graph, key)
        return self.scarce[key]

    def _serve_all_scarce(self, roomy: deque[WorkerNode], priority: int) -> None:
        """Serve the queues of tasks that need memory, disks or resources, by their priorities."""
        queues = list(self.scarce.values())
        if len(queues) > 1:
            queues.sort(key=_priority_of, reverse=True)  # stable: the longest waiting first
        for queue in queues:
            self._serve_scarce(queue, roomy, priority)

    def _end_scarce(self, roomy: deque[WorkerNode]) -> None:
        """Place more tasks that need memory or disks; put back the tasks that must wait."""
        self._serve_all_scarce(roomy, PRIORITY_MIN)
        for key, queue in list(self.scarce.items()):
            for task in reversed(queue.skipped):
                queue.push_first(task)
            queue.skipped.clear()
            queue.blocked.clear()
            if not queue:
                del self.scarce[key]

    def _serve_scarce(self, queue: ScarceQueue, roomy: deque[WorkerNode], priority: int) -> None:
        """Place tasks that need memory, a disk or resources, while there is enough of these, down
        to a priority.
        """
        skipped, blocked = queue.skipped, queue.blocked
        while queue and roomy and len(skipped) < SKIPPED_MAX and len(blocked) < len(self.workers):
            if queue.priority < priority:
                return
            task = queue.pop()
            if not self._may_run(task) or not (able := self._able(task)):
                if self._is_time_up():
                    return
                continue
            needs = task.spec.needs
            able = [worker for worker in able if worker not in blocked]
            having = [worker for worker in able if self._has_scarce(worker, needs)]
            if not having or not self._place_among(task, having, roomy):
                skipped.append(task)
                if able:
                    blocked.add(self._keep(task, able))
                continue
            if len(self.scarce) > 1 and queue.key in self.scarce:  # it is last in the next tick
                self.scarce[queue.key] = self.scarce.pop(queue.key)
            if not roomy[-1].has_room:
                roomy.pop()

    def _keep(self, task: TaskNode, able: Iterable[WorkerNode]) -> WorkerNode:
        """Keep what a skipped task needs on the worker that lacks the smallest part of it.

        There the part only shrinks, so the task runs some time, and other workers need not idle.
        Among equals, stay with the worker of the last tick: the task could starve by changes.
        """
        needs, before = task.spec.needs, self._keeping_last.get(task)
        worker = min(able, key=lambda w: (w.lacks(needs), w is not before, w.load))
        self._keeping[task] = worker
        kept = self._kept.setdefault(worker, {})
        for name, amount in ((MEMORY, needs.memory_bytes), *needs.resources):
            if amount:
                kept[name] = kept.get(name, 0) + amount
        return worker

    def _has_scarce(self, worker: WorkerNode, needs: Needs) -> bool:
        """Whether a worker has what a task needs, in addition to the amounts kept for others."""
        return worker.has_scarce(needs, self._kept.get(worker, NOTHING_KEPT))

    def _place_among(
        self, task: TaskNode, able: Sequence[WorkerNode], roomy: deque[WorkerNode]
    ) -> bool:
        """Assign or park a task by the policy of its job; return False if there is no room."""
        needs, scheduling = task.spec.needs, task.job.spec.scheduling
        if may_kill_workers(self._retry_states.get(task.spec.id)):
            free = [worker for worker in able if worker.has_credit and worker.has_free(needs)]
            if not free:
                self._reserve(task, able, roomy)
                return False
            able = free
        if task in self._table.returned:
            able = [w for w in roomy if w in able and w.has_free(needs)] or able
        if scheduling.policy != LOCALITY:
            worker, task.reason = draw(scheduling.policy, able, needs.slots, self._random)
        elif loads := loads_of(
            inputs_of(self._graph.objects, task.spec),
            scheduling.option("sweetheart_factor", SWEETHEART_FACTOR),
        ):
            candidates = [_candidate(worker, needs.slots) for worker in able]
            best = rank(loads, candidates, self._table.hosts, self.bandwidths, scheduling)[0]
            task.reason = best.reason
            worker = next(other for other in able if other.facts.netloc == best.location)
        else:
            # If able workers drain, no other worker can run the task.
            having_room = [w for w in roomy if w in able] or [w for w in able if w.is_draining]
            if not having_room:
                return False
            free = [worker for worker in having_room if worker.has_free(needs)]
            worker = (free or having_room)[0]
        if not worker.has_credit:
            _park(worker, task)
            self._waited_for[worker] = None
            return True
        if not worker.is_draining:
            roomy.remove(worker)
            roomy.append(worker)
        self._assign(task, worker)
        return True

    def _reserve(
        self, task: TaskNode, able: Sequence[WorkerNode], roomy: deque[WorkerNode]
    ) -> None:
        """Reserve a worker for a task whose worker has died, unless one is reserved already.

        The task has to start at once: if another worker dies with it, it was certainly running.
        So a worker gets no other task until it has free slots.
        """
        if any(worker.reserved_for is task for worker in self._reserved):
            return
        others = [worker for worker in able if worker.reserved_for is None]
        if others:
            worker = min(others, key=lambda worker: worker.slots_used)
            worker.reserved_for = task
            self._reserved[worker] = None
            if worker in roomy:
                roomy.remove(worker)

    def _serve_reserved(self) -> None:
        """Assign tasks whose reserved workers have free slots now; end stale reservations."""
        for worker, task in [(worker, worker.reserved_for) for worker in self._reserved]:
            worker.reserved_for = None
            is_waiting = task is not None and task.state is RUNNABLE and worker.takes_tasks
            if task is not None and is_waiting:
                if not (worker.has_credit and worker.has_free(task.spec.needs)):
                    worker.reserved_for = task
                    continue
                if self._may_run(task):
                    self._assign(task, worker)
            del self._reserved[worker]

    def _place_at(self, task: TaskNode, places: frozenset[str], roomy: deque[WorkerNode]) -> None:
        """Assign or park a task at the worker where its process waits."""
        worker = self._table.at(min(places))
        if len(places) > 1 or worker is None:
            where = ", ".join(sorted(places))
            details = (
                f"it continues in a process at {where}, where no worker is connected now"
                if len(places) == 1
                else f"it continues in processes at {where}, but can run on one worker only"
            )
            self._refuse(task, "NO_WORKER_FITS", details)
        elif not worker.can_hold(task.spec.needs):
            self._refuse_as_too_large(task, [worker])
        elif worker.has_credit and worker.has_scarce(task.spec.needs):
            self._assign(task, worker)
            if not worker.is_draining:
                roomy.remove(worker)
                roomy.append(worker)
        else:
            worker.bound.append(task)
            self._waited_for[worker] = None

    def _able(self, task: TaskNode) -> Sequence[WorkerNode]:
        """Return the workers that could run a task if they were idle; if none could, fail it.

        They reach its inputs, as `_may_run` has checked.
        """
        able = self._fitting(task)
        return self._reach.readers(task, able) or able

    def _fitting(self, task: TaskNode) -> Sequence[WorkerNode]:
        """Return the workers that could run a task if they reached its inputs; if none, fail it."""
        spec = task.spec
        offering = [w for w in self.workers.values() if spec.executor in w.facts.executors]
        if not offering:
            known = sorted(set().union(*[w.facts.executors for w in self.workers.values()]))
            details = (
                f"no worker offers the executor {spec.executor!r} (offered: {', '.join(known)})"
            ) + self._lacking(spec.executor)
            self._refuse(task, "NO_EXECUTOR", details)
            return []
        able = [worker for worker in offering if worker.can_hold(spec.needs)]
        if not able:
            if self._table.may_come(spec.needs):
                self.for_launchers.push(task)
            else:
                self._refuse_for_needs(task, offering)
            return []
        able = self._lives.lasting(task, able)
        if not able:
            self._stranded.append(task)
            task.reason = "no worker lives long enough"
            return []
        able = [worker for worker in able if worker.takes_tasks] or able
        return self._reach.near(task, self._having_space(task, able) or able)

    def _having_space(self, task: TaskNode, workers: Sequence[WorkerNode]) -> Sequence[WorkerNode]:
        """Return the workers that may have space on their disks for what a task writes."""
        retry_state = self._retry_states.get(task.spec.id)
        if retry_state is None and not self._has_full:
            return workers
        full = () if retry_state is None else retry_state.full_workers
        return [w for w in workers if not w.stores.is_full and w.facts.id not in full]

    def _refuse_for_needs(self, task: TaskNode, offering: Sequence[WorkerNode]) -> None:
        """Fail a task that no worker can run because of its isolation or its size."""
        needs = task.spec.needs
        reasons = {w.facts.id: w.facts.isolation.why_not(needs) for w in offering}
        if not needs.is_isolated or not all(reasons.values()):
            self._refuse_as_too_large(task, offering)
            return
        what = f"can run the image {needs.image}" if needs.image else "can isolate the task"
        if needs.isolate and not needs.image:
            what += f" as it asks (--isolate {needs.isolate})"
        lines = [f"no worker {what}:", *_grouped(reasons)]
        self._refuse(task, "NO_WORKER_FITS", "\n".join(lines))

    def _refuse_as_too_large(self, task: TaskNode, offering: Sequence[WorkerNode]) -> None:
        needs = task.spec.needs
        if missing := why_none_fits(needs, [worker.facts for worker in offering]):
            self._refuse(task, "NO_WORKER_FITS", missing)
            return
        slots = max([worker.facts.slots for worker in offering])
        memory = max([worker.facts.memory_bytes for worker in offering])
        memory_text = size_text(needs.memory_bytes)
        if needs.slots > slots:
            details = (
                f"the task needs {needs.slots} slots, and no worker has more than {slots}: ask "
                "for fewer, or start a worker with more (ciel-worker --slots)"
            )
        elif needs.memory_bytes > memory:
            details = (
                f"the task asks for {memory_text} of memory, and no worker offers more "
                f"than {size_text(memory)}: ask for less, or start a worker on a larger host"
            )
        else:
            details = (
                f"the task needs {needs.slots} slots and {memory_text} of memory, and "
                "no worker has both: ask for less, or start a larger worker"
            )
        if needs.resources or needs.where:
            asked = " ".join(filter(None, (amounts_text(needs.resources), needs.where)))
            details = (
                f"no worker has all that the task needs together: {needs.slots} slots"
                f"{f', {memory_text} of memory' if needs.memory_bytes else ''}, {asked}"
            )
        self._refuse(task, "NO_WORKER_FITS", details)

    def _lacking(self, executor: str) -> str:
        """List the reasons why workers that know an executor do not offer it, each one once."""
        reasons = {
            worker.facts.id: why
            for worker in self.workers.values()
            if (why := worker.facts.lacking.get(executor)) is not None
        }
        return "".join([f"\n{line}" for line in _grouped(reasons)])

    def _has_parked(self) -> bool:
        for worker in list(self._waited_for):
            if not (worker.parked or worker.bound):
                del self._waited_for[worker]
        return bool(self._waited_for)

    def _serve_parked(self, priority: int) -> None:
        """Assign parked tasks whose workers have room now, down to a priority."""
        for worker in self._waited_for:
            while (queue := worker.bound or worker.parked) and worker.has_credit:
                task = queue[0]
                if task.spec.needs.priority < priority:
                    break
                if queue is worker.bound and not worker.has_scarce(task.spec.needs):
                    break  # it can run nowhere else
                queue.popleft()
                if not self._may_run(task):
                    continue
                is_bound = queue is worker.bound
                if not is_bound and not self._lives.outlives(worker, task):
                    self.ready.push_first(task)
                elif is_bound or self._has_scarce(worker, task.spec.needs):
                    self._assign(task, worker)
                else:
                    self._queue_of(task).push_first(task)

    def _steal_parked(self, roomy: Iterable[WorkerNode]) -> None:
        """Let idle workers take tasks that are parked at others.

        A worker that is not idle but has a free slot takes a task if the cost is lower there.
        """
        for worker in roomy:
            is_idle = not worker.assigned
            while worker.has_room and (is_idle or worker.slots_used < worker.facts.slots):
                victim = max(self.workers.values(), key=lambda other: len(other.parked))
                if not victim.parked:
                    return
                task = victim.parked.pop()
                if not self._may_run(task):
                    continue
                needs = task.spec.needs
                able = task.spec.executor in worker.facts.executors and worker.can_hold(needs)
                able = able and bool(self._having_space(task, (worker,)))
                able = able and self._reach.suits(task, worker)
                able = able and self._lives.outlives(worker, task)
                if not (able and self._has_scarce(worker, needs)) or not (
                    is_idle or (worker.has_free(needs) and self._is_cheaper(task, worker, victim))
                ):
                    victim.parked.append(task)
                    break
                task.reason = f"this worker had room, and worker {victim.facts.id} had none"
                self._assign(task, worker)

    def _is_cheaper(self, task: TaskNode, worker: WorkerNode, victim: WorkerNode) -> bool:
        loads = loads_of(inputs_of(self._graph.objects, task.spec))
        candidates = [_candidate(other, task.spec.needs.slots) for other in (victim, worker)]
        best = rank(loads, candidates, self._table.hosts, self.bandwidths)[0]
        return best.location == worker.facts.netloc

    def recall(self, now_s: float) -> None:
        """Order workers to return tasks that were queued for long, while other workers are idle.

        A task may be queued on a worker behind a task that takes hours. Only the worker knows which
        tasks have started, so the master recalls the latest tasks, each of them once.
        """
        if (self.ready and not self._has_spare) or len(self.workers) < 2:
            return
        idle = [
            worker
            for worker in self.workers.values()
            if worker.slots_used < worker.facts.slots
            and worker.takes_tasks
            and not (worker.parked or worker.stores.is_full)
        ]
        room = sum(w.credit.limit - w.slots_used for w in idle)
        for worker in self.workers.values() if idle else ():
            queued = worker.slots_used - worker.facts.slots - len(worker.recalled)
            if queued <= 0 or room <= 0 or worker.suspicion:
                continue
            wait_s = queued * worker.credit.task_s / worker.facts.slots
            silent_s = now_s - worker.reported_at_s
            if max(wait_s, silent_s) < RECALL_AFTER_S:
                continue
            worker.credit.learn_at_least(silent_s)
            keys = self._last_given(worker, min(queued, room), idle)
            if keys:
                room -= len(keys)
                worker.recalled.update(keys)
                self._send(worker.facts.id, RecallTasks(tuple(keys)))

    def _last_given(
        self, worker: WorkerNode, count: int, takers: Iterable[WorkerNode]
    ) -> list[tuple[TaskId, int]]:
        """Return the latest attempts of a worker that one of the takers could run."""
        keys: list[tuple[TaskId, int]] = []
        fixed = self._graph.objects.fixed
        for key, task in reversed(worker.assigned.items()):
            if len(keys) == count:
                break
            spec = task.spec
            able = any(
                spec.executor in taker.facts.executors
                and taker.can_hold(spec.needs)
                and taker.has_free(spec.needs)
                and self._reach.suits(task, taker)
                and self._lives.outlives(taker, task)
                for taker in takers
            )
            if (fixed and self._graph.fixed.location_of(task)) or not worker.slots_of(task, key[1]):
                continue
            if able and key not in worker.recalled and task.attempt == key[1]:
                keys.append((spec.id, key[1]))
        return keys


def _queue_key(needs: Needs) -> QueueKey:
    if not (needs.io or needs.where or needs.resources):
        return MEMORY_QUEUE
    return needs.io, needs.where, tuple([name for name, _ in needs.resources])


def _priority_of(queue: ScarceQueue) -> int:
    return queue.priority


def _candidate(worker: WorkerNode, slots: int) -> Candidate:
    facts = worker.facts
    return Candidate(facts.netloc, facts.host, worker.wait_s(slots), worker.disk.wait_s)


def _park(worker: WorkerNode, task: TaskNode) -> None:
    """Queue a task at a worker until the worker has room, after the tasks of its priority."""
    queue, priority = worker.parked, task.spec.needs.priority
    place = len(queue)
    while place and queue[place - 1].spec.needs.priority < priority:
        place -= 1
    queue.insert(place, task)


def _grouped(reasons: Mapping[str, str]) -> list[str]:
    """List the reasons of workers, each reason once."""
    whose: dict[str, list[str]] = {}
    for worker, why in reasons.items():
        whose.setdefault(why, []).append(worker)
    return [
        f"worker {ids[0]}{f' and {len(ids) - 1} more' if ids[1:] else ''}: {why}"
        for why, ids in [*whose.items()][:LACKING_MAX]
    ]
