"""Which runnable task goes to which worker now. Requested by events, performed once a turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from ciel.core.graph import TaskGraph, TaskNode
from ciel.core.placement import Candidate, loads_of, rank
from ciel.master.state.ready import ReadyQueue
from ciel.master.state.workers import WorkerNode

HELD_BACK_MAX = 64
"""How many tasks that nobody can take now are looked past in a turn: order matters more than
filling up.
"""

Assign = Callable[[TaskNode, WorkerNode], None]
Refuse = Callable[[TaskNode, str, str], None]


class Dispatcher:
    """Holds the runnable tasks and gives them to workers that have room.

    A task without inputs to move goes to any worker in turn. One with inputs goes where it costs
    least; if that worker has no room now, the task is parked there, and taken from there by a
    worker that has nothing else to do.
    """

    def __init__(self, graph: TaskGraph, assign: Assign, refuse: Refuse) -> None:
        self._graph = graph
        self._assign = assign
        self._refuse = refuse
        self.workers: dict[str, WorkerNode] = {}
        self._by_netloc: dict[str, WorkerNode] = {}
        self._hosts: dict[str, str] = {}
        self._everywhere: frozenset[str] = frozenset()  # executors that all workers offer
        self._slots_min = 0
        self.ready = ReadyQueue()

    # --- workers ----------------------------------------------------------------------------------

    def add_worker(self, worker: WorkerNode) -> None:
        self.workers[worker.facts.id] = worker
        self._by_netloc[worker.facts.netloc] = worker
        self._take_stock()

    def remove_worker(self, worker: WorkerNode) -> None:
        del self.workers[worker.facts.id]
        if self._by_netloc.get(worker.facts.netloc) is worker:
            del self._by_netloc[worker.facts.netloc]
        for task in reversed(worker.parked):
            self.ready.push_first(task)
        self._take_stock()

    def _take_stock(self) -> None:
        facts = [worker.facts for worker in self.workers.values()]
        self._hosts = {fact.netloc: fact.host for fact in facts}
        self._slots_min = min((fact.slots for fact in facts), default=0)
        offers = [fact.executors for fact in facts]
        self._everywhere = frozenset.intersection(*offers) if offers else frozenset()

    # --- dispatch ---------------------------------------------------------------------------------

    def dispatch(self) -> None:
        """Give out as much as there is room for; the order within a priority is kept."""
        if not self.workers or not (self.ready or self._has_parked()):
            return
        self._serve_parked()
        roomy = deque([worker for worker in self.workers.values() if worker.has_room])
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
        able = list(self.workers.values()) if anywhere else self._able(task)
        if not able:
            return True
        loads = loads_of(self._graph.objects.reference(i) for i in spec.inputs)
        if loads:
            candidates = [Candidate(w.facts.netloc, w.facts.host, w.wait_s) for w in able]
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
        return any(worker.parked for worker in self.workers.values())

    def _serve_parked(self) -> None:
        for worker in self.workers.values():
            while worker.parked and worker.has_room:
                task = worker.parked.popleft()
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
