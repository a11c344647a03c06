"""Drains workers: other workers get their tasks and their objects, and then they may leave.

A worker that drains gets no more tasks, except tasks that no other worker can run. Attempts that
have not started are recalled; running attempts have time to end. See ADR 80.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ciel.core.errors import CielError
from ciel.core.events import (
    CopyObjects,
    DismissWorker,
    DrainWorker,
    DropObjects,
    NotCopied,
    ObjectsStored,
    RecallTasks,
)
from ciel.core.graph.lost_objects import lose
from ciel.core.ids import ObjectId, is_output
from ciel.core.refs import Concrete, Reference, Sweetheart, locations_of
from ciel.core.workers.lives import Life
from ciel.master.state.attempts import Attempts
from ciel.master.state.context import Context
from ciel.master.state.placement.dispatch import Dispatcher
from ciel.master.state.placement.eager_dispatch import EagerDispatch
from ciel.master.state.placement.lives import Lives
from ciel.master.state.placement.replication import Replication
from ciel.master.state.workers import WorkerNode

COPIES_MAX: Final = 64
"""The number of objects of one worker that are being copied at a time."""
EXAMINED_MAX: Final = 5000
"""The number of objects that are examined per tick and worker; about 5 ms."""
AGAIN_AFTER_S: Final = 5.0
"""After this time, objects that fitted on no other worker are offered to all again."""
NAMED_WITHIN_S: Final = 30.0
"""The time for which a worker waits for the job that names an upload: its client is about to."""


class CannotDrainError(CielError):
    """A worker cannot be drained; the message says why."""


class Drain:
    """The rest of the work before one worker may leave."""

    __slots__ = (
        "again_s",
        "copying",
        "is_dismissed",
        "is_handed_over",
        "is_last_pass",
        "moved",
        "refused",
        "stuck",
        "unchecked",
        "until_s",
        "uploads",
    )

    def __init__(self, objects: list[ObjectId]) -> None:
        self.until_s: float | None = None  # then other workers run its tasks
        self.is_handed_over = False
        self.unchecked = objects  # held by the worker, and not examined in this pass
        self.is_last_pass = False  # this pass started when the worker had nothing else to do
        self.copying: dict[ObjectId, WorkerNode] = {}  # to these workers
        self.moved: dict[ObjectId, str] = {}  # the locations of the new copies
        self.refused: dict[ObjectId, set[str]] = {}  # by these workers
        self.stuck: dict[ObjectId, str] = {}  # no worker takes these objects, and why
        self.again_s = 0.0  # when they are offered again
        self.uploads: dict[ObjectId, float] = {}  # no job has named them; how long to wait for one
        self.is_dismissed = False

    @property
    def can_examine(self) -> bool:
        return bool(self.unchecked) and len(self.copying) < COPIES_MAX


class Draining:
    """The workers that drain, and how far they are."""

    def __init__(
        self,
        context: Context,
        dispatcher: Dispatcher,
        eager: EagerDispatch,
        attempts: Attempts,
        lives: Lives,
        replication: Replication,
    ) -> None:
        self._context = context
        self._objects = context.graph.objects
        self._workers: Mapping[str, WorkerNode] = context.table.by_id
        self._dispatcher = dispatcher
        self._eager = eager
        self._attempts = attempts
        self._lives = lives
        self._replication = replication
        self._drains: dict[WorkerNode, Drain] = {}
        self._turn = 0  # the index of the worker that gets the next object

    def __bool__(self) -> bool:
        return bool(self._drains)

    # --- requests ---------------------------------------------------------------------------------

    def request(self, worker: WorkerNode, timeout_s: float | None) -> None:
        """Start to drain a worker, or change the time limit; raises CannotDrainError."""
        if not any(other.takes_tasks for other in self._workers.values() if other is not worker):
            raise CannotDrainError(
                f"no other worker can take the tasks and objects of {worker.facts.id}: start "
                "another one first, or stop the cluster"
            )
        self.start(worker, timeout_s)

    def asked(self, worker: WorkerNode, within_s: float | None) -> None:
        """Drain a worker that asks for it, unless it may stay and is needed."""
        if within_s is not None:
            worker.life = Life(self._context.now_s)  # no task starts there any more
            self._lives.joined(worker)
            self.start(worker, within_s)
        elif not self._is_needed(worker):
            self.start(worker, None)

    def _is_needed(self, worker: WorkerNode) -> bool:
        """Whether an idle worker has work, or tasks or objects that no other worker can take."""
        if worker in self._drains or worker.assigned or worker.eager or worker.parked:
            return True
        if any(other.takes_tasks for other in self._workers.values() if other is not worker):
            return False
        is_listed = self._objects.has_any_at(worker.facts.netloc) or worker.is_listing
        return is_listed or self._dispatcher.has_queued

    def start(self, worker: WorkerNode, timeout_s: float | None) -> None:
        """As `request`, for a worker that leaves in any case, or has drained when it joined."""
        self._context.send(worker.facts.id, DrainWorker(timeout_s))
        drain = self._drains.get(worker)
        if drain is None:
            drain = self._drains[worker] = Drain(self._objects.held_at(worker.facts.netloc))
            self._dispatcher.drain(worker)
            for task in list(worker.eager):
                self._eager.cancel(task)
            self._recall(worker)
        drain.until_s = None if timeout_s is None else self._context.now_s + timeout_s

    def _recall(self, worker: WorkerNode) -> None:
        """Recall the attempts that have not started, unless they can only run there."""
        fixed = self._context.graph.fixed
        keys = [
            (task.spec.id, attempt)
            for (task_id, attempt), task in worker.assigned.items()
            if (task_id, attempt) not in worker.recalled
            and (task.worker, task.attempt) == (worker.facts.id, attempt)
            and worker.slots_of(task, attempt)
            and not fixed.location_of(task)
        ]
        worker.recalled.update(keys)
        if keys:
            self._context.send(worker.facts.id, RecallTasks(tuple(keys)))

    # --- events -----------------------------------------------------------------------------------

    def stored(self, worker: WorkerNode, message: ObjectsStored) -> None:
        """Note the copies of a worker, or the uploads of a worker that drains."""
        own = self._drains.get(worker)
        for ref in message.refs:
            for drain in self._drains.values():
                if drain.copying.get(ref.id) is worker:
                    del drain.copying[ref.id]
                    drain.moved[ref.id] = worker.facts.netloc
            if own is not None and not is_output(ref.id) and self._objects.get(ref.id) is None:
                own.uploads.setdefault(ref.id, self._context.now_s + NAMED_WITHIN_S)

    def not_copied(self, worker: WorkerNode, message: NotCopied) -> None:
        """Offer an object that a worker could not copy to another one."""
        object_id = message.object
        for source, drain in self._drains.items():
            if drain.copying.get(object_id) is not worker:
                continue
            del drain.copying[object_id]
            drain.unchecked.append(object_id)
            node, place = self._objects.get(object_id), source.facts.netloc
            if place in message.missing_at and node is not None and node.producer is not None:
                lose(self._context.graph, object_id, place)  # it is recomputed when it is needed
            else:
                drain.refused.setdefault(object_id, set()).add(worker.facts.id)
                drain.stuck[object_id] = message.details

    def worker_lost(self, worker: WorkerNode) -> None:
        """Forget a worker that has left, and let other workers copy its share of objects."""
        self._drains.pop(worker, None)
        for drain in self._drains.values():
            for object_id in [o for o, taker in drain.copying.items() if taker is worker]:
                del drain.copying[object_id]
                drain.unchecked.append(object_id)

    # --- the tick ---------------------------------------------------------------------------------

    def step(self) -> None:
        """Order what can be ordered now, and dismiss workers that have nothing left."""
        for worker, drain in self._drains.items():
            if not (worker.suspicion or drain.is_dismissed):
                self._step(worker, drain)

    def _step(self, worker: WorkerNode, drain: Drain) -> None:
        now_s = self._context.now_s
        if drain.until_s is not None and now_s >= drain.until_s and not drain.is_handed_over:
            drain.is_handed_over = True
            self._hand_over(worker)
        self._copy_some(worker, drain)
        while not drain.unchecked and not drain.copying:
            if self._is_busy(worker, drain) or (drain.stuck and now_s < drain.again_s):
                return
            if drain.is_last_pass and not drain.stuck:
                drain.is_dismissed = True
                self._context.send(worker.facts.id, DismissWorker())
                return
            if drain.is_last_pass and not drain.again_s:
                drain.again_s = now_s + AGAIN_AFTER_S
                return
            drain.is_last_pass = True
            drain.again_s = 0.0
            drain.refused.clear()
            drain.stuck.clear()
            drain.unchecked = self._objects.held_at(worker.facts.netloc)
            self._copy_some(worker, drain)

    def _hand_over(self, worker: WorkerNode) -> None:
        """Stop everything that runs on a worker; other workers run it again."""
        place = worker.facts.netloc
        self._attempts.hand_over(worker, f"worker {worker.facts.id} was drained")
        fixed = [o for o in self._objects.fixed if place in locations_of(self._reference(o))]
        for object_id in fixed:
            lose(self._context.graph, object_id, place)
        if fixed:
            self._context.send(worker.facts.id, DropObjects(tuple(fixed)))

    def _is_busy(self, worker: WorkerNode, drain: Drain) -> bool:
        """Whether the worker has attempts, processes, or uploads that a job will soon name."""
        now_s, place = self._context.now_s, worker.facts.netloc
        for object_id, until_s in list(drain.uploads.items()):
            if now_s >= until_s or self._objects.get(object_id) is not None:
                del drain.uploads[object_id]
        return (
            bool(worker.assigned or worker.eager or worker.parked or worker.bound or drain.uploads)
            or any(holder is worker for holder, _ in self._attempts.held_reports.values())
            or any(place in locations_of(self._reference(o)) for o in self._objects.fixed)
        )

    # --- objects ----------------------------------------------------------------------------------

    def _copy_some(self, worker: WorkerNode, drain: Drain) -> None:
        """Examine some objects, and order other workers to copy them."""
        if not drain.can_examine:
            return
        others = [other for other in self._workers.values() if other.takes_tasks]
        near = [other for other in others if other.facts.host == worker.facts.host]
        orders: dict[WorkerNode, list[Reference]] = {}
        examined = 0
        while drain.can_examine and examined < EXAMINED_MAX:
            object_id = drain.unchecked.pop()
            examined += 1
            ref, place = self._reference(object_id), worker.facts.netloc
            why = drain.stuck.pop(object_id, "no other worker can take objects now")
            if not isinstance(ref, Concrete | Sweetheart) or place not in ref.locations:
                continue
            if drain.moved.get(object_id, "") in ref.locations:
                continue
            if (taker := self._taker(drain, ref, near, others)) is not None:
                drain.copying[object_id] = taker
                orders.setdefault(taker, []).append(ref)
            else:
                drain.stuck[object_id] = why
        for taker, refs in orders.items():
            self._context.send(taker.facts.id, CopyObjects(tuple(refs)))

    def _taker(
        self, drain: Drain, ref: Concrete | Sweetheart, near: Sequence[WorkerNode],
        others: Sequence[WorkerNode],
    ) -> WorkerNode | None:  # fmt: skip
        """Return a worker for an object: preferably one with a copy, then one on the same host.

        A worker that has it must copy it as well, since its store might drop its copy. If several
        copies are to exist, preferably a worker without one.
        """
        refused = drain.refused.get(ref.id, ())
        holders = []
        for place in sorted(ref.locations):
            holder = self._context.table.at(place)
            if holder is not None and holder.takes_tasks and holder.facts.id not in refused:
                holders.append(holder)
        if holders and not self._replication.is_claimed(ref.id):
            return holders[0]
        for takers in (near, others):
            for _ in takers:
                self._turn += 1
                taker = takers[self._turn % len(takers)]
                if taker.facts.id not in refused and taker not in holders:
                    return taker
        return holders[0] if holders else None

    def _reference(self, object_id: ObjectId) -> Reference:
        return self._objects.reference(object_id)

    # --- views ------------------------------------------------------------------------------------

    @property
    def has_more(self) -> bool:
        """Whether this tick has left work for the next one."""
        return any(
            drain.can_examine and not worker.suspicion for worker, drain in self._drains.items()
        )

    def due_s(self) -> float | None:
        """The time at which `step` must be called if no event arrives before; None: never.

        Times that have passed wait for an event: that a copy ends, or a suspected worker returns.
        """
        due: list[float] = []
        for drain in self._drains.values():
            if not drain.is_dismissed:
                due += drain.uploads.values()
                if drain.until_s is not None and not drain.is_handed_over:
                    due.append(drain.until_s)
                if drain.again_s:
                    due.append(drain.again_s)
        now_s = self._context.now_s
        return min([due_s for due_s in due if due_s > now_s], default=None)

    def describe(self, worker: WorkerNode) -> dict[str, Any] | None:
        """Describe how far a worker is; None if it does not drain."""
        drain = self._drains.get(worker)
        if drain is None:
            return None
        now_s = self._context.now_s
        return {
            "tasks": len(worker.assigned) + len(worker.parked) + len(worker.bound),
            "uploads": len(drain.uploads),
            "copying": len(drain.copying),
            "moved": len(drain.moved),
            "stuck": len(drain.stuck) if drain.again_s else 0,
            "why": next(iter(drain.stuck.values()), "") if drain.again_s else "",
            "left_s": None if drain.until_s is None else round(max(drain.until_s - now_s, 0.0), 3),
        }
