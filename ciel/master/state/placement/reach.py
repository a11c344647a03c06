"""Finds workers that can read all inputs of a task, although some workers cannot reach each other.

A worker reports that another one does not answer, while both are connected to the master. Then the
master assumes for a while that this worker cannot fetch from that address
(`WorkerTable.unreached`), and the dispatcher places the tasks elsewhere. If no worker can fetch all
inputs of a task, the inputs are gathered: copied through a third worker, or else recomputed. See
ADR 93.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from ciel.core.events import CopyObjects, NotCopied
from ciel.core.graph.any_inputs import inputs_of
from ciel.core.graph.lost_objects import lose, why_not_recomputable
from ciel.core.graph.nodes import TaskNode
from ciel.core.ids import ObjectId
from ciel.core.refs import Concrete, Fixed, Reference, Sweetheart, locations_of
from ciel.core.retries import RetryState
from ciel.master.state.context import Context
from ciel.master.state.workers import WorkerNode

UNREACHED_FIRST_S: Final = 120.0
"""How long the master assumes that a worker cannot reach an address, after the first report."""
UNREACHED_MAX_S: Final = 600.0
"""The longest such time: it doubles when the address does not answer soon after the last time. Each
new attempt costs its tasks 10 s."""
GATHERED_MAX: Final = 10
"""How often the inputs of one task are gathered; then the task waits."""
APART_MAX_S: Final = 300.0
"""How long a task waits whose inputs cannot be gathered, until it fails."""
APART_RETRY_S: Final = 60.0
"""How soon the workers that could run such a task try again to reach its inputs."""
LINEAGE_MAX: Final = 1000
"""The number of objects that are examined to find out whether one can be recomputed elsewhere."""

LISTED_MAX: Final = 3
"""The number of objects or workers that a message names."""


class Gathering(NamedTuple):
    """How one worker gets the inputs of a task that it cannot fetch."""

    home: WorkerNode
    copied: Sequence[tuple[WorkerNode, Reference]]  # by workers from which it can fetch the copies
    recomputed: Sequence[Reference]  # by workers from which it can fetch them


class Reach:
    """Finds the workers that can fetch the inputs of a task; orders copies if there is none."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._graph = context.graph
        self._table = context.table
        self._retry_states = context.retry_states
        # The end and the length of the latest time for which a worker counts as cut off from an
        # address, by the worker's id and the address.
        self._spans: dict[tuple[str, str], tuple[float, float]] = {}
        self._copying: dict[ObjectId, WorkerNode] = {}  # ordered, and not reported as failed

    # --- events -----------------------------------------------------------------------------------

    def unreached(self, worker: WorkerNode, netlocs: Iterable[str]) -> None:
        """Note that addresses did not answer a worker.

        Ignore the addresses of workers that do not answer the master either.
        """
        now_s = self._context.now_s
        for netloc in netlocs:
            holder = self._table.at(netloc)
            if holder is None or holder is worker or holder.suspicion:
                continue
            key = (worker.facts.id, netloc)
            until_s, span_s = self._spans.get(key, (0.0, 0.0))
            if now_s >= until_s:
                is_soon = now_s - until_s < span_s
                span_s = min(2 * span_s, UNREACHED_MAX_S) if is_soon else UNREACHED_FIRST_S
                until_s = now_s + span_s
                self._spans[key] = (until_s, span_s)
            self._table.unreached.setdefault(worker, {})[netloc] = until_s

    def expire(self) -> None:
        """Let workers try again to reach the addresses whose time is over."""
        now_s, unreached = self._context.now_s, self._table.unreached
        for worker, netlocs in list(unreached.items()):
            for netloc in [netloc for netloc, until_s in netlocs.items() if now_s >= until_s]:
                del netlocs[netloc]
            if not netlocs:
                del unreached[worker]
        if not unreached:
            self._copying.clear()

    def worker_lost(self, worker: WorkerNode) -> None:
        """Forget a worker that has left."""
        for worker_id, netloc in list(self._spans):
            if worker_id == worker.facts.id or netloc == worker.facts.netloc:
                del self._spans[worker_id, netloc]
        for object_id in [o for o, taker in self._copying.items() if taker is worker]:
            del self._copying[object_id]

    def stored(self, worker: WorkerNode, refs: Iterable[Reference]) -> None:
        """Note the copies that a worker has made."""
        if self._copying:
            for ref in refs:
                self._end_order(worker, ref.id)

    def not_copied(self, worker: WorkerNode, message: NotCopied) -> None:
        """Note that a worker could not copy an object."""
        self._end_order(worker, message.object)

    def _end_order(self, worker: WorkerNode, object_id: ObjectId) -> None:
        if self._copying.get(object_id) is worker:
            del self._copying[object_id]

    # --- placement --------------------------------------------------------------------------------

    def readers(self, task: TaskNode, workers: Sequence[WorkerNode]) -> Sequence[WorkerNode]:
        """Return the workers that can fetch all inputs of a task, as far as is known.

        If an attempt could not fetch an input, prefer workers that hold the input.
        """
        if not self._table.unreached:
            return workers
        refs = self._needed(task)
        able = [w for w in workers if all(self._table.can_fetch(w, ref) for ref in refs)]
        state = self._retry_states.get(task.spec.id)
        if state is None:
            return able
        places = [locations_of(ref) for ref in refs if ref.id in state.unfetched]
        return [w for w in able if all(w.facts.netloc in p for p in places if p)] or able

    def suits(self, task: TaskNode, worker: WorkerNode) -> bool:
        """Whether a worker can fetch a task's inputs, and readers the task's recomputed outputs."""
        if not self._table.unreached:
            return True
        state = self._retry_states.get(task.spec.id)
        is_near = state is None or worker.facts.id not in state.out_of_reach
        return is_near and all(self._table.can_fetch(worker, ref) for ref in self._needed(task))

    def _needed(self, task: TaskNode) -> list[Reference]:
        """Return the inputs of a task, and further objects that an attempt could not fetch."""
        refs = list(inputs_of(self._graph.objects, task.spec))
        state = self._retry_states.get(task.spec.id)
        if state is not None and state.unfetched:
            others = state.unfetched.keys() - set(task.spec.inputs)
            refs += [self._graph.objects.reference(object_id) for object_id in sorted(others)]
        return refs

    def near(self, task: TaskNode, workers: Sequence[WorkerNode]) -> Sequence[WorkerNode]:
        """Return the workers from which a reader can fetch the recomputed outputs of a task."""
        state = self._retry_states.get(task.spec.id)
        if state is None or not state.out_of_reach:
            return workers
        return [w for w in workers if w.facts.id not in state.out_of_reach] or workers

    def gather(self, task: TaskNode, able: Sequence[WorkerNode]) -> bool:
        """Gather the inputs of a task, all of which none of the `able` workers can fetch.

        Return whether the task must be examined again later. Otherwise it waits for inputs that are
        recomputed, or has failed.
        """
        state = self._retry_states.setdefault(task.spec.id, RetryState())
        found = self._gathering(task, able) if state.gathered < GATHERED_MAX else None
        if found is None:
            return self._wait(task, state, able)
        state.apart_since_s = 0.0
        task.reason = f"its inputs are copied to where worker {found.home.facts.id} reaches them"
        ordered = [(taker, ref) for taker, ref in found.copied if ref.id not in self._copying]
        if ordered or found.recomputed:
            state.gathered += 1
        for taker, ref in ordered:
            self._copying[ref.id] = taker
            order = CopyObjects((self._table.fetchable(taker, ref),))
            self._context.send(taker.facts.id, order)
        for ref in found.recomputed:
            self._recompute(ref, found.home)
        if found.recomputed:
            listed = ", ".join([ref.id for ref in found.recomputed[:LISTED_MAX]])
            text = f"no worker can fetch all its inputs: {listed} must be recomputed"
            self._context.record(task, text)
            return not self._graph.recheck(task)
        return True

    def _gathering(self, task: TaskNode, able: Sequence[WorkerNode]) -> Gathering | None:
        """Choose the worker that gets all inputs; None if none can.

        Copies are better than recomputed objects. Apart from that, the order of workers is the same
        for all tasks, so that tasks do not move an object to and fro.
        """
        refs, unreached = self._needed(task), self._table.unreached
        best: Gathering | None = None
        for home in sorted(able, key=lambda w: (len(unreached.get(w, ())), w.facts.netloc)):
            found = self._gathering_at(home, refs)
            if found is not None and not found.recomputed:
                return found
            best = best or found
        return best

    def _gathering_at(self, home: WorkerNode, refs: Iterable[Reference]) -> Gathering | None:
        copied: list[tuple[WorkerNode, Reference]] = []
        recomputed: list[Reference] = []
        for ref in refs:
            if self._table.can_fetch(home, ref):
                continue
            if not isinstance(ref, Concrete | Sweetheart):
                return None  # a process, or a stream, which will be complete some day
            if (taker := self._taker(home, ref)) is not None:
                copied.append((taker, ref))
            elif self._is_recomputable(ref, home):
                recomputed.append(ref)
            else:
                return None
        return Gathering(home, copied, recomputed)

    def _taker(self, home: WorkerNode, ref: Reference) -> WorkerNode | None:
        """Return a worker that can fetch an object, and from which `home` can fetch it."""
        known = self._copying.get(ref.id)
        workers = self._table.by_id.values() if known is None else (known,)
        for worker in workers:
            if worker.takes_tasks and self._is_reached(home, worker):
                if self._table.can_fetch(worker, ref):
                    return worker
        return None

    def _is_reached(self, home: WorkerNode, worker: WorkerNode) -> bool:
        return worker.facts.netloc not in self._table.unreached.get(home, ())

    def _is_recomputable(self, wanted: Reference, home: WorkerNode) -> bool:
        """Whether an object can be recomputed by workers that `home` reaches.

        They must be able to run its producer. `home` must be able to fetch the inputs of the
        producer, or these must be recomputable in the same way.
        """
        near = [w for w in self._table.by_id.values() if w.takes_tasks]
        near = [w for w in near if self._is_reached(home, w)]
        pending, seen = [wanted], {wanted.id}
        while pending:
            ref = pending.pop()
            node = self._graph.objects.get(ref.id)
            producer = None if node is None else node.producer
            if type(ref) is Fixed or why_not_recomputable(producer) or producer is None:
                return False
            spec = producer.spec
            if not any(spec.executor in w.facts.executors and w.can_hold(spec.needs) for w in near):
                return False
            for each in inputs_of(self._graph.objects, spec):
                is_there = bool(locations_of(each)) and self._table.can_fetch(home, each)
                if not is_there and each.id not in seen and self._must_exist(each):
                    seen.add(each.id)
                    pending.append(each)
            if len(seen) > LINEAGE_MAX:
                return False
        return True

    def _must_exist(self, ref: Reference) -> bool:
        """Whether an object has to be fetched or recomputed: it is not in its reference."""
        node = self._graph.objects.get(ref.id)
        return bool(locations_of(ref)) or node is None or node.is_future

    def _recompute(self, ref: Reference, home: WorkerNode) -> None:
        """Recompute an object where a worker can fetch it, and delete the copies out of reach."""
        places = sorted(locations_of(ref))
        node = self._graph.objects.get(ref.id)
        if node is not None and node.producer is not None:
            state = self._retry_states.setdefault(node.producer.spec.id, RetryState())
            workers = self._table.by_id.values()
            state.out_of_reach = {w.facts.id for w in workers if not self._is_reached(home, w)}
        for place in places:
            lose(self._graph, ref.id, place)
        self._context.delete({place: [ref.id] for place in places})

    def _wait(self, task: TaskNode, state: RetryState, able: Sequence[WorkerNode]) -> bool:
        """Let a task wait until workers reach each other again; fail it after some time."""
        now_s = self._context.now_s
        state.apart_since_s = state.apart_since_s or now_s
        task.reason = f"no worker can fetch all its inputs: {self._why(task, able)}"
        if now_s - state.apart_since_s <= APART_MAX_S:
            self._retry_by(now_s + APART_RETRY_S, task, able)
            return True
        advice = "mend the network between the hosts, and retry the job"
        self._context.fail(task, "MISSING_INPUT", f"{task.reason}; {advice}")
        return False

    def _retry_by(self, time_s: float, task: TaskNode, workers: Iterable[WorkerNode]) -> None:
        """Let workers try again at a time, at the latest, to reach the inputs of a task."""
        refs = self._needed(task)
        for worker in workers:
            netlocs = self._table.unreached.get(worker, {})
            for place in {place for ref in refs for place in locations_of(ref)} & netlocs.keys():
                netlocs[place] = min(netlocs[place], time_s)

    def _why(self, task: TaskNode, able: Sequence[WorkerNode]) -> str:
        """Name one input that each of the first workers cannot fetch."""
        reasons = []
        for worker in able[:LISTED_MAX]:
            for ref in self._needed(task):
                if not self._table.can_fetch(worker, ref):
                    place = min(locations_of(ref))
                    text = f"worker {worker.facts.id} cannot reach {place}, which has {ref.id}"
                    reasons.append(text)
                    break
        return "; ".join(reasons)
