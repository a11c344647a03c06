"""Maintains a number of copies of each uploaded object: if one is lost, another worker copies it.

A client states how many workers hold an object that it uploads. The master orders other workers to
copy it if these are too few, and again whenever one of them is lost. See ADR 92.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from ciel.core.events import CopyObjects, DropObjects, NotCopied, ObjectsStored
from ciel.core.ids import ObjectId
from ciel.core.jobs import Job
from ciel.core.refs import Concrete, Reference, Sweetheart, locations_of
from ciel.master.state.context import Context
from ciel.master.state.workers import WorkerNode

COPYING_MAX: Final = 64
"""The number of copies that all workers together make at a time."""
EXAMINED_MAX: Final = 2000
"""The number of objects that are examined per tick; about 5 ms."""
AGAIN_AFTER_S: Final = 5.0
"""After this time, objects that workers could not copy are offered to all workers again."""
LISTING_MAX_S: Final = 10.0
"""How long a worker that has joined may take to report its objects, before others copy them."""
NO_WORKER: Final = "no other worker can take a copy now"
NO_SOURCE: Final = "no worker that holds it can be reached now"


class Claim:
    """The number of copies that an object should have, until `job` ends; without a job, until
    `release`.

    `places`: the addresses of workers that retain their copy, connected or not. A copy that a
    worker fetched for a task does not count, since its store may drop it.
    """

    __slots__ = ("copies", "copying", "job", "places", "refused", "why")

    def __init__(self, copies: int, job: Job | None, places: Iterable[str]) -> None:
        self.copies = copies
        self.job = job
        self.places = set(places)
        self.copying: set[WorkerNode] = set()  # these workers have orders to copy it
        self.refused: set[str] = set()  # these workers could not copy it
        self.why = ""  # it has fewer copies


class Situation(NamedTuple):
    """An object during its examination, its claim, and the hosts that have copies."""

    ref: Concrete | Sweetheart
    claim: Claim
    hosts: Collection[str]  # of the workers that hold it or copy it


class Replication:
    """The objects of which several copies are to exist, and the copies that workers make now."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._objects = context.graph.objects
        self._workers: Mapping[str, WorkerNode] = context.table.by_id
        self._claims: dict[ObjectId, Claim] = {}
        self._by_job: dict[str, dict[ObjectId, None]] = {}
        self._unexamined: dict[ObjectId, None] = {}  # their copies may be too few
        self._short: dict[ObjectId, None] = {}  # their copies are too few, and no worker can help
        self._copying: dict[ObjectId, None] = {}  # objects that workers are copying now
        self._count = 0  # copy orders in progress
        self._unneeded: dict[ObjectId, set[WorkerNode]] = {}  # orders whose claim has ended
        # Workers that still report their objects, and until when to wait for that.
        self._listing: dict[WorkerNode, float] = {}
        self._again_s = 0.0  # when `_short` is examined again; 0: when a worker joins
        self._turn = 0  # the index of the worker that gets the next object

    def __bool__(self) -> bool:
        return bool(self._claims or self._unneeded)

    # --- claims -----------------------------------------------------------------------------------

    def claim(self, ref: Reference, copies: int, job: Job | None) -> None:
        """Make `copies` workers hold an uploaded object until `job` ends; without a job, until
        `release`.

        The locations of `ref` count as copies. Short content needs no copies, since the master
        stores it.
        """
        if copies < 2 or not isinstance(ref, Concrete | Sweetheart):
            return
        object_id = ref.id
        known = self._claims.get(object_id)
        if known is not None:
            known.copies = max(known.copies, copies)
        else:
            self._claims[object_id] = Claim(copies, job, ref.locations)
            self._objects.watched.add(object_id)
            if job is not None:
                self._by_job.setdefault(job.spec.id, {})[object_id] = None
        self._unexamined[object_id] = None

    def release(self, object_id: ObjectId) -> None:
        """Stop maintaining copies of an object; existing copies stay."""
        claim = self._claims.pop(object_id, None)
        if claim is None:
            return
        self._objects.watched.discard(object_id)
        for table in (self._unexamined, self._short, self._copying, self._objects.changed):
            table.pop(object_id, None)
        if claim.job is not None:
            objects = self._by_job.get(claim.job.spec.id, {})
            objects.pop(object_id, None)
            if not objects:
                self._by_job.pop(claim.job.spec.id, None)
        if claim.copying:
            self._count -= len(claim.copying)
            self._unneeded.setdefault(object_id, set()).update(claim.copying)

    def job_ended(self, job: Job) -> None:
        """Stop maintaining copies of the objects of a job; existing copies stay."""
        for object_id in list(self._by_job.get(job.spec.id, ())):
            self.release(object_id)

    def copies(self) -> dict[ObjectId, int]:
        """Return how many copies of each object are to exist."""
        return {object_id: claim.copies for object_id, claim in self._claims.items()}

    def is_claimed(self, object_id: ObjectId) -> bool:
        """Whether several copies of an object are to exist."""
        return object_id in self._claims

    # --- events -----------------------------------------------------------------------------------

    def worker_joined(self, worker: WorkerNode) -> None:
        """Postpone copying until the new worker has reported its objects: it may have copies.

        Copying goes on after LISTING_MAX_S at the latest.
        """
        self._listing[worker] = self._context.now_s + LISTING_MAX_S

    def store_listed(self, worker: WorkerNode) -> None:
        """Note that a worker has reported all its objects, and can copy others."""
        if self._listing.pop(worker, None) is not None:
            self.retry()

    def worker_lost(self, worker: WorkerNode) -> None:
        """Forget the copies that a lost worker was making."""
        self._listing.pop(worker, None)
        for object_id in list(self._copying):
            self._end_order(object_id, worker)
        for object_id in list(self._unneeded):
            self._end_unneeded(object_id, worker)

    def stored(self, worker: WorkerNode, message: ObjectsStored) -> None:
        """Note the copies that a worker has made by order."""
        for ref in message.refs:
            if (claim := self._end_order(ref.id, worker)) is not None:
                claim.places.add(worker.facts.netloc)
            elif self._end_unneeded(ref.id, worker) and self._objects.get(ref.id) is None:
                self._context.send(worker.facts.id, DropObjects((ref.id,)))

    def not_copied(self, worker: WorkerNode, message: NotCopied) -> None:
        """Note that a worker could not copy an object: another one is to do so."""
        if (claim := self._end_order(message.object, worker)) is not None:
            claim.places.difference_update(message.missing_at)
            claim.refused.add(worker.facts.id)
            claim.why = message.details
        else:
            self._end_unneeded(message.object, worker)

    def retry(self) -> None:
        """Examine objects again that no worker could copy, since a worker may be able to now."""
        self._again_s = 0.0
        for object_id in self._short:
            self._claims[object_id].refused.clear()
        self._unexamined |= self._short
        self._short.clear()

    def _end_order(self, object_id: ObjectId, worker: WorkerNode) -> Claim | None:
        """End an order to copy a claimed object; return the claim, None without an order."""
        claim = self._claims.get(object_id)
        if claim is None or worker not in claim.copying:
            return None
        claim.copying.discard(worker)
        self._count -= 1
        if not claim.copying:
            del self._copying[object_id]
        self._unexamined[object_id] = None
        return claim

    def _end_unneeded(self, object_id: ObjectId, worker: WorkerNode) -> bool:
        """Remove an order whose claim has ended; return whether there was one."""
        workers = self._unneeded.get(object_id)
        if workers is None or worker not in workers:
            return False
        workers.discard(worker)
        if not workers:
            del self._unneeded[object_id]
        return True

    # --- the tick ---------------------------------------------------------------------------------

    def step(self) -> None:
        """Order the copies that are missing, as far as workers can make them now."""
        if self._objects.changed:
            self._unexamined |= self._objects.changed
            self._objects.changed.clear()
        if self._again_s and self._context.now_s >= self._again_s:
            self.retry()
        if not self.has_more:
            return
        orders: dict[WorkerNode, list[Reference]] = {}
        takers = [worker for worker in self._workers.values() if worker.takes_tasks]
        examined = 0
        while self._unexamined and self._count < COPYING_MAX and examined < EXAMINED_MAX:
            object_id = next(iter(self._unexamined))
            del self._unexamined[object_id]
            examined += 1
            self._examine(object_id, takers, orders)
        for worker, refs in orders.items():
            self._context.send(worker.facts.id, CopyObjects(tuple(refs)))

    def _examine(
        self,
        object_id: ObjectId,
        takers: Sequence[WorkerNode],
        orders: dict[WorkerNode, list[Reference]],
    ) -> None:
        """Order the missing copies of one object."""
        claim, ref = self._claims[object_id], self._objects.reference(object_id)
        if not isinstance(ref, Concrete | Sweetheart):
            self.release(object_id)  # the object was forgotten or lost
            return
        table = self._context.table
        claim.places &= ref.locations
        self._short.pop(object_id, None)
        holders = [node for place in claim.places if (node := table.at(place)) is not None]
        missing = claim.copies - self._count_there(claim) - len(claim.copying)
        while missing > 0:
            hosts = {worker.facts.host for worker in (*holders, *claim.copying)}
            taker = None
            if not self._has_source(ref):
                claim.why = NO_SOURCE
            elif (taker := self._taker(Situation(ref, claim, hosts), takers)) is None:
                claim.why = claim.why if claim.refused else NO_WORKER
            if taker is None:
                self._short[object_id] = None
                if claim.refused and not self._again_s:
                    self._again_s = self._context.now_s + AGAIN_AFTER_S
                return
            claim.copying.add(taker)
            self._copying[object_id] = None
            self._count += 1
            missing -= 1
            orders.setdefault(taker, []).append(table.without_suspects(ref))
        if missing <= 0 and not claim.copying:
            claim.refused.clear()
            claim.why = ""

    def _count_there(self, claim: Claim) -> int:
        """Count the copies on workers that are connected, or have just ended and may come back."""
        table = self._context.table
        return sum(table.at(p) is not None or p in table.expected for p in claim.places)

    def _has_source(self, ref: Concrete | Sweetheart) -> bool:
        """Whether a worker that can be reached holds an object."""
        nodes = [self._context.table.at(place) for place in ref.locations]
        return any(node is not None and not node.suspicion for node in nodes)

    def _taker(self, found: Situation, takers: Sequence[WorkerNode]) -> WorkerNode | None:
        """Return a worker for a further copy; None if there is none.

        Prefer a host without a copy. Among workers of such hosts, prefer one that has fetched the
        object for a task, since it only has to retain its copy.
        """
        table = self._context.table
        nodes = [table.at(place) for place in sorted(found.ref.locations)]
        fetched = [node for node in nodes if node is not None]
        start = self._turn = (self._turn + 1) % max(len(takers), 1)
        near: WorkerNode | None = None
        for group in (fetched, takers[start:], takers[:start]):
            for worker in group:
                if not _may_take(worker, found.claim):
                    continue
                if worker.facts.host not in found.hosts:
                    return worker
                near = near or worker
        return near

    # --- views ------------------------------------------------------------------------------------

    @property
    def has_more(self) -> bool:
        """Whether `step` has something to do, even if no event arrives before."""
        has_objects = bool(self._objects.changed or self._unexamined)
        return has_objects and self._count < COPYING_MAX and self._listing_until_s() is None

    def _listing_until_s(self) -> float | None:
        """The time until which workers may report their objects; None if no worker is reporting."""
        now_s = self._context.now_s
        return max((u for u in self._listing.values() if u > now_s), default=None)

    def due_s(self) -> float | None:
        """The time at which `step` must be called if no event arrives before; None: never."""
        due = [self._again_s] if self._again_s else []
        until_s = self._listing_until_s()
        if until_s is not None and (self._unexamined or self._short):
            due.append(until_s)
        return min(due, default=None)

    def describe(self, object_id: ObjectId) -> dict[str, Any] | None:
        """Describe the copies of an object; None if their number is not maintained."""
        claim = self._claims.get(object_id)
        if claim is None:
            return None
        places = claim.places & locations_of(self._objects.reference(object_id))
        there = sum(self._context.table.at(place) is not None for place in places)
        return {
            "wanted": claim.copies,
            "there": there,
            "copying": len(claim.copying),
            "why": claim.why if object_id in self._short else "",
        }

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield every contradiction between the tables: an object, and a description."""
        pending = self._unexamined.keys() | self._objects.changed.keys()
        for object_id, claim in self._claims.items():
            node = self._objects.get(object_id)
            if (node is None or node.is_future) and object_id not in pending:
                yield object_id, "copies of it are to exist, but it was forgotten"
            there = self._count_there(claim)
            is_short = there + len(claim.copying) < claim.copies
            if is_short and object_id not in pending and object_id not in self._short:
                yield object_id, f"it has {there} copies of {claim.copies}, but none is being made"
            if bool(claim.copying) != (object_id in self._copying):
                count = len(claim.copying)
                yield object_id, f"{count} workers copy it, but `_copying` does not agree"
            if not claim.copying <= set(self._workers.values()):
                yield object_id, f"a lost worker is to copy it: {claim.copying}"
            job = claim.job
            if job is not None and object_id not in self._by_job.get(job.spec.id, ()):
                yield object_id, f"copies of it are to exist for {job}, which does not list it"
        for table in (self._unexamined, self._short, self._copying, self._objects.watched):
            for object_id in table:
                if object_id not in self._claims:
                    yield object_id, "it is listed to be copied, and no copies are to exist"
        count = sum(len(claim.copying) for claim in self._claims.values())
        if count != self._count or count > COPYING_MAX:
            yield "copies", f"{count} are being made, {self._count} are counted"


def _may_take(worker: WorkerNode, claim: Claim) -> bool:
    """Whether a worker can be ordered to make a further copy."""
    facts = worker.facts
    return (
        worker.takes_tasks
        and facts.netloc not in claim.places
        and worker not in claim.copying
        and facts.id not in claim.refused
    )
