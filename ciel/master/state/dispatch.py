"""Which runnable task goes to which worker now. Requested by events, performed once a turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from ciel.core.choices import given
from ciel.core.events import MeetWorkers, Message, Neighbour, RecallTasks
from ciel.core.fixed import place_of
from ciel.core.graph import TaskGraph
from ciel.core.ids import TaskId
from ciel.core.placement import Candidate, loads_of, rank
from ciel.core.tasks import TaskNode
from ciel.master.state.ready import ReadyQueue
from ciel.master.state.workers import WorkerNode

HELD_BACK_MAX = 64
"""How many tasks that nobody can take now are looked past in a turn: order matters more than
filling up.
"""

Assign = Callable[[TaskNode, WorkerNode], None]
Refuse = Callable[[TaskNode, str, str], None]
Say = Callable[[str, Message], None]

RECALL_AFTER_S = 0.1
"""Tasks that would wait so long behind others, or did, go to a worker that has nothing to do."""


class Dispatcher:
    """Holds the runnable tasks and gives them to workers that have room.

    A task without inputs to move goes to any worker in turn. One with inputs goes where it costs
    least; if that worker has no room now, the task is parked there, and taken from there by a
    worker that has nothing else to do.
    """

    def __init__(self, graph: TaskGraph, assign: Assign, refuse: Refuse, say: Say) -> None:
        self._graph = graph
        self._assign = assign
        self._refuse = refuse
        self._say = say
        self.workers: dict[str, WorkerNode] = {}
        self._by_netloc: dict[str, WorkerNode] = {}
        self._hosts: dict[str, str] = {}
        self._everywhere: frozenset[str] = frozenset()  # executors that all workers offer
        self._slots_min = 0
        self.ready = ReadyQueue(graph)
        self.returned: set[TaskNode] = set()  # in this turn, for others to run at once

    # --- workers ----------------------------------------------------------------------------------

    def add_worker(self, worker: WorkerNode) -> None:
        self.workers[worker.facts.id] = worker
        self._by_netloc[worker.facts.netloc] = worker
        self._take_stock()

    def remove_worker(self, worker: WorkerNode) -> None:
        del self.workers[worker.facts.id]
        if self._by_netloc.get(worker.facts.netloc) is worker:
            del self._by_netloc[worker.facts.netloc]
        for task in (*reversed(worker.parked), *reversed(worker.bound)):
            self.ready.push_first(task)
        self._take_stock()

    def _take_stock(self) -> None:
        facts = [worker.facts for worker in self.workers.values()]
        self._hosts = {fact.netloc: fact.host for fact in facts}
        self._slots_min = min((fact.slots for fact in facts), default=0)
        offers = [fact.executors for fact in facts]
        self._everywhere = frozenset.intersection(*offers) if offers else frozenset()
        for fact in facts:
            others = [Neighbour(other.netloc, other.host) for other in facts if other is not fact]
            self._say(fact.id, MeetWorkers(tuple(others)))

    # --- dispatch ---------------------------------------------------------------------------------

    def dispatch(self) -> None:
        """Give out as much as there is room for; the order within a priority is kept."""
        if not self.workers or not (self.ready or self._has_parked()):
            return
        self._serve_parked()
        having_room = [worker for worker in self.workers.values() if worker.has_room]
        roomy = deque(sorted(having_room, key=lambda worker: worker.load))
        held_back: list[TaskNode] = []
        while roomy and self.ready:
            task = self.ready.pop()
            if not self._graph.is_ready(task):
                continue
            if not self._place(task, roomy):
                held_back.append(task)
                if len(held_back) >= HELD_BACK_MAX:
                    break
            elif not roomy[-1].has_room:
                roomy.pop()
        for task in reversed(held_back):
            self.ready.push_first(task)
        if roomy and not self.ready:
            self._steal_parked(roomy)
        self.returned.clear()

    def _place(self, task: TaskNode, roomy: deque[WorkerNode]) -> bool:
        """Assign, park or refuse a task; False if it must wait since nobody who can run it has
        room.

        Whoever was assigned it stands last in `roomy` afterwards.
        """
        spec = task.spec
        anywhere = spec.executor in self._everywhere and spec.needs.slots <= self._slots_min
        if anywhere and not spec.inputs:
            roomy.rotate(-1)
            self._assign(task, roomy[-1])
            return True
        if self._graph.objects.fixed and (places := place_of(self._graph, task)):
            self._place_at(task, places, roomy)
            return True
        able = list(self.workers.values()) if anywhere else self._able(task)
        if not able:
            return True
        if task in self.returned:
            able = [w for w in roomy if w in able and w.has_free(spec.needs.slots)] or able
        loads = loads_of(given(self._graph.objects, spec))
        if loads:
            slots = spec.needs.slots
            candidates = [
                Candidate(w.facts.netloc, w.facts.host, w.wait_s(slots), w.disk.wait_s)
                for w in able
            ]
            best = rank(loads, candidates, self._hosts)[0]
            task.reason = best.reason
            worker = self._by_netloc[best.location]
            if not worker.has_room:
                worker.parked.append(task)
                return True
        else:
            able = [worker for worker in roomy if worker in able]
            if not able:
                return False
            worker = able[0]
        roomy.remove(worker)
        roomy.append(worker)
        self._assign(task, worker)
        return True

    def _place_at(self, task: TaskNode, places: frozenset[str], roomy: deque[WorkerNode]) -> None:
        """Assign or park a task where a process waits for it."""
        worker = self._by_netloc.get(min(places))
        if len(places) > 1 or worker is None:
            details = f"what it goes on with is at {', '.join(sorted(places))}"
            self._refuse(task, "NO_WORKER_FITS", details)
        elif worker.has_room:
            self._assign(task, worker)
            roomy.remove(worker)
            roomy.append(worker)
        else:
            worker.bound.append(task)

    def _able(self, task: TaskNode) -> list[WorkerNode]:
        """List the workers that can run a task at all; it fails if there are workers, but no such
        one.
        """
        spec = task.spec
        offering = [w for w in self.workers.values() if spec.executor in w.facts.executors]
        if not offering:
            known = sorted(set().union(*[w.facts.executors for w in self.workers.values()]))
            details = (
                f"no worker offers the executor {spec.executor!r} (there are: {', '.join(known)})"
            )
            self._refuse(task, "NO_EXECUTOR", details)
            return []
        able = [w for w in offering if spec.needs.slots <= w.facts.slots]
        if not able:
            most = max(w.facts.slots for w in offering)
            details = f"it needs {spec.needs.slots} slots, and no worker has more than {most}"
            self._refuse(task, "NO_WORKER_FITS", details)
        return able

    def _has_parked(self) -> bool:
        return any(worker.parked or worker.bound for worker in self.workers.values())

    def _serve_parked(self) -> None:
        for worker in self.workers.values():
            while (worker.parked or worker.bound) and worker.has_room:
                task = (worker.bound or worker.parked).popleft()
                if self._graph.is_ready(task):
                    self._assign(task, worker)

    def _steal_parked(self, roomy: deque[WorkerNode]) -> None:
        """Let workers with nothing to do take what is parked at others: work beats locality."""
        for worker in roomy:
            if worker.assigned:
                continue
            while worker.has_room:
                victim = max(self.workers.values(), key=lambda other: len(other.parked))
                if not victim.parked:
                    return
                task = victim.parked.pop()
                if self._graph.is_ready(task):
                    if task.spec.executor in worker.facts.executors and (
                        task.spec.needs.slots <= worker.facts.slots
                    ):
                        self._assign(task, worker)
                    else:
                        victim.parked.append(task)
                        break

    def recall(self, now_s: float) -> None:
        """Have workers give back what stands in line there for long, while others are idle.

        What was given ahead may find itself behind a task that takes hours; only the worker knows
        what has begun, so the last that were given are asked for, and each asked for once.
        """
        if self.ready or len(self.workers) < 2:
            return
        idle = [w for w in self.workers.values() if w.slots_used < w.facts.slots and not w.parked]
        room = sum(w.credit.limit - w.slots_used for w in idle)
        for worker in self.workers.values() if idle else ():
            ahead = worker.slots_used - worker.facts.slots - len(worker.recalled)
            if ahead <= 0 or room <= 0:
                continue
            wait_s = ahead * worker.credit.task_s / worker.facts.slots
            silent_s = now_s - worker.reported_at_s
            if max(wait_s, silent_s) < RECALL_AFTER_S:
                continue
            worker.credit.learn_at_least(silent_s)
            keys = self._last_given(worker, min(ahead, room), idle)
            if keys:
                room -= len(keys)
                worker.recalled.update(keys)
                self._say(worker.facts.id, RecallTasks(tuple(keys)))

    def _last_given(
        self, worker: WorkerNode, count: int, takers: Iterable[WorkerNode]
    ) -> list[tuple[TaskId, int]]:
        """Name the last attempts that a worker was given and one of the takers could run."""
        keys: list[tuple[TaskId, int]] = []
        fixed = self._graph.objects.fixed
        for key, task in reversed(worker.assigned.items()):
            if len(keys) == count:
                break
            spec = task.spec
            able = any(
                spec.executor in taker.facts.executors and taker.has_free(spec.needs.slots)
                for taker in takers
            )
            if (fixed and place_of(self._graph, task)) or not worker.slots_of(task, key[1]):
                continue
            if able and key not in worker.recalled and task.attempt == key[1]:
                keys.append((spec.id, key[1]))
        return keys
