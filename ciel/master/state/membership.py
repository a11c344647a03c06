"""Tracks the workers of the cluster, which join, are suspected, reconnect, and are lost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from ciel.core.events import (
    RESTART_GRACE_S,
    SUSPECT_AFTER_S,
    WORKER_TIMEOUT_S,
    WorkerLeft,
    WorkerSeen,
)
from ciel.core.graph.lost_objects import lose, lose_location
from ciel.core.ids import ObjectId
from ciel.core.refs import Reference, locations_of
from ciel.master.state.attempts import Attempts
from ciel.master.state.bulk import BulkOperations
from ciel.master.state.context import Context
from ciel.master.state.draining import Draining
from ciel.master.state.inline_children import InlineChildren
from ciel.master.state.member_states import MemberStates
from ciel.master.state.placement.dispatch import Dispatcher
from ciel.master.state.placement.eager_dispatch import EagerDispatch
from ciel.master.state.placement.replication import Replication
from ciel.master.state.workers import WorkerFacts, WorkerNode


class Membership:
    """The workers that have joined, and lost workers some of whose objects are still listed.

    A worker is suspected after `suspect_after_s` of silence, and declared dead after `timeout_s`.
    The objects of a worker whose process has ended stay listed for RESTART_GRACE_S if its work
    directory outlives it: a new worker at that address reports which of them exist.
    """

    def __init__(
        self,
        context: Context,
        bulk: BulkOperations,
        dispatcher: Dispatcher,
        eager: EagerDispatch,
        attempts: Attempts,
        children: InlineChildren,
        draining: Draining,
        replication: Replication,
        member_states: MemberStates,
        *,
        suspect_after_s: float = SUSPECT_AFTER_S,
        timeout_s: float = WORKER_TIMEOUT_S,
    ) -> None:
        self._context = context
        self._workers = context.table.by_id
        self._expected = context.table.expected
        self._bulk = bulk
        self._dispatcher = dispatcher
        self._eager = eager
        self._attempts = attempts
        self._children = children
        self._draining = draining
        self._replication = replication
        self._member_states = member_states
        self._losing: dict[str, WorkerNode] = {}  # lost workers, by address
        self.suspect_after_s = suspect_after_s
        self.timeout_s = timeout_s
        self.awaited = context.table.awaited
        """Workers of the previous master that have not rejoined: their addresses, by id. Until all
        have, or the wait ends, this master assigns no tasks, since these workers may run attempts
        of the same tasks."""
        self._await_until_s = 0.0
        self.unlisted: dict[str, dict[ObjectId, None]] = {}
        """For each joined worker, by id: the objects that the object table lists there, but which
        the worker has not reported yet."""
        self.joined_count = 0  # since the start of the master
        self.lost_count = 0

    def joined(self, facts: WorkerFacts, *, returns: bool) -> None:
        """Add a worker.

        If it `returns`, it gets no tasks until it has reported which attempts it runs: this master
        does not know the numbers of those attempts, and a new attempt needs an unused number.

        An earlier worker with the same id has lost its attempts; an earlier worker with the same
        address or work directory has ended. Objects that are still listed at the address are kept
        if the new worker lists them, too.
        """
        for other in list(self._workers.values()):
            if other.facts.id == facts.id:
                self.lost(facts.id, "it joined again")
            elif other.facts.netloc == facts.netloc or (
                facts.spool and other.facts.spool == facts.spool
            ):
                self.lost(other.facts.id, "another worker took its place", died=True)
        for lost in list(self._losing.values()):
            place = lost.facts.netloc
            if place == facts.netloc and place not in self._expected:
                self._lose_rest(place)
            elif place != facts.netloc and facts.spool and lost.facts.spool == facts.spool:
                self._give_up(place)  # its objects have another address now
        self.joined_count += 1
        worker = WorkerNode(facts, self._context.now_s)
        self._dispatcher.add_worker(worker)
        self._replication.worker_joined(worker)
        if facts.is_draining:
            self._draining.start(worker, facts.drain_within_s)
        if returns:
            worker.is_returning = worker.is_listing = True
            self.suspect(worker, "it has not reported yet which attempts it runs")
        self._context.journal.append(WorkerSeen(facts.id, facts.netloc))
        if held := self._context.graph.objects.held_at(facts.netloc):
            # The journal lists them, or a worker at this address has ended and its objects are
            # still listed.
            self.unlisted[facts.id] = dict.fromkeys(held)
            worker.is_listing = True
        elif facts.netloc in self._expected:
            self._end_wait(worker)

    def await_workers(self, netlocs: Mapping[str, str], until_s: float) -> None:
        """Wait until `until_s` for the previous master's workers, at these addresses, by id."""
        self.awaited.update(netlocs)
        self._await_until_s = until_s
        if not netlocs:
            self._lose_absent()

    def stored(self, worker: WorkerNode, refs: Iterable[Reference]) -> None:
        """Note objects that a worker still has."""
        if (unlisted := self.unlisted.get(worker.facts.id)) is not None:
            for ref in refs:
                unlisted.pop(ref.id, None)

    def store_listed(self, worker: WorkerNode) -> None:
        """Mark objects as lost that the table lists at a worker, but that it does not have."""
        worker.is_listing = False
        self._replication.store_listed(worker)
        facts = worker.facts
        graph = self._context.graph
        for object_id in self.unlisted.pop(facts.id, ()):
            if object_id not in graph.objects.fixed:
                lose(graph, object_id, facts.netloc)
        if facts.netloc in self._expected:
            self._end_wait(worker)
        if self.awaited:
            for worker_id, netloc in list(self.awaited.items()):
                if worker_id == facts.id or netloc == facts.netloc:
                    del self.awaited[worker_id]
            if not self.awaited:
                self._lose_absent()

    def check_awaited(self) -> None:
        """Stop waiting for workers that have not returned in time."""
        if self.awaited and self._context.now_s >= self._await_until_s:
            for worker_id in self.awaited:
                self._context.journal.append(WorkerLeft(worker_id))
            self.awaited.clear()
            self._lose_absent()

    def _lose_absent(self) -> None:
        """Mark all objects at the addresses of absent workers as lost."""
        graph = self._context.graph
        objects = graph.objects
        here = {worker.facts.netloc for worker in self._workers.values()}
        for object_id in list(objects.fixed):  # at once, as in `lost`
            for netloc in sorted(locations_of(objects.reference(object_id)) - here):
                lose(graph, object_id, netloc)
        for netloc in objects.locations():
            if netloc not in here and netloc not in self._losing:
                facts = WorkerFacts("", netloc, "", 1, frozenset())
                self._bulk.start(self._losing_objects(WorkerNode(facts, self._context.now_s)))

    def heard(self, worker: WorkerNode, heard_at_s: float) -> None:
        """Note when a worker last sent something; if that is recent, stop suspecting it."""
        worker.heard_at_s = heard_at_s
        if worker.is_returning:
            return
        if worker.suspicion and self._context.now_s - heard_at_s < self.suspect_after_s:
            worker.suspicion = ""
            self._dispatcher.trust(worker)
            self._replication.retry()

    def suspect(self, worker: WorkerNode, why: str) -> None:
        """Suspect a worker, unless it is suspected already."""
        if not worker.suspicion:
            worker.suspicion = why
            self._dispatcher.suspect(worker)

    def check_silence(self) -> None:
        """Suspect silent workers, and declare a worker dead after a longer silence.

        While all workers are silent, the master declares none of them dead: no other worker could
        run the tasks, and the master itself may be disconnected.
        """
        now_s = self._context.now_s
        for worker in self._workers.values():
            silent_s = now_s - worker.heard_at_s
            if silent_s > self.suspect_after_s:
                self.suspect(worker, f"it was silent for {silent_s:.1f} s")
        if any(not worker.suspicion for worker in self._workers.values()):
            for worker in list(self._workers.values()):
                silent_s = now_s - worker.heard_at_s
                if silent_s > self.timeout_s:
                    self.lost(worker.facts.id, f"silent for {silent_s:.1f} s")

    def was_stalled(self, late_s: float) -> None:
        """Note that the master itself stalled: that time does not count as silence of workers."""
        for worker in self._workers.values():
            worker.heard_at_s += late_s

    def lost(self, worker_id: str, reason: str, *, died: bool = False) -> None:
        """Remove a worker and its attempts.

        Its objects are lost, too, or stay listed if it may be started again with them. `died`: its
        process is known to have ended, so the loss counts against each task that it ran.
        """
        worker = self._workers.get(worker_id)
        if worker is None:
            return
        self.lost_count += 1
        self.unlisted.pop(worker_id, None)
        self._dispatcher.remove_worker(worker)
        self._eager.worker_lost(worker)
        self._attempts.worker_lost(worker, reason, died=died)
        self._children.worker_lost(worker)
        self._draining.worker_lost(worker)
        self._replication.worker_lost(worker)
        self._member_states.worker_lost(worker)
        graph, place = self._context.graph, worker.facts.netloc
        for object_id in (*graph.objects.fixed, *graph.objects.growing):
            lose(graph, object_id, place)  # at once, since running programs depend on these
        if died and worker.facts.keeps_objects and graph.objects.has_any_at(place):
            # A worker that has ended again before it has listed its objects gets no more time.
            until_s = self._expected.get(place, self._context.now_s + RESTART_GRACE_S)
            self._stop_expecting(place)
            self._expected[place] = until_s
            self._losing[place] = worker
            self._context.table.suspects |= {place}
        else:
            self._stop_expecting(place)
            self._context.journal.append(WorkerLeft(worker_id))
            self._bulk.start(self._losing_objects(worker))

    def check_expected(self) -> None:
        """If an ended worker is not started again in time, mark its objects as lost.

        They stay listed while there are no workers, since no worker could recompute them.
        """
        if self._workers:
            for place, until_s in list(self._expected.items()):
                if self._context.now_s >= until_s and self._context.table.at(place) is None:
                    self._give_up(place)

    def _give_up(self, place: str) -> None:
        """Mark the objects of an ended worker as lost, if they are still listed for its return."""
        if place in self._expected:
            self._stop_expecting(place)
            self._bulk.start(self._losing_objects(self._losing[place]))

    def _end_wait(self, worker: WorkerNode) -> None:
        """Stop waiting for an ended worker.

        `worker` is its successor, and tasks may use its objects again.
        """
        place = worker.facts.netloc
        self._stop_expecting(place)
        del self._losing[place]
        if not worker.suspicion:
            self._dispatcher.trust(worker)

    def _stop_expecting(self, place: str) -> None:
        """Stop waiting for the worker that has ended at an address, if there is one.

        The journal names that worker until this call, so that a restarted master waits for it, too.
        """
        if self._expected.pop(place, None) is not None:
            worker_id = self._losing[place].facts.id
            if worker_id not in self._workers:
                self._context.journal.append(WorkerLeft(worker_id))

    def _losing_objects(self, worker: WorkerNode) -> Iterator[None]:
        """Mark the objects of a lost worker as lost, in slices.

        Until that is done its address counts as suspected, so that no task is sent to read an input
        there.
        """
        graph, place = self._context.graph, worker.facts.netloc
        for object_id in graph.objects.held_at(place):
            lose(graph, object_id, place)
            graph.steps_left -= 1
            if graph.steps_left < 0:
                self._losing[place] = worker
                self._context.table.suspects |= {place}
                yield
                if self._losing.get(place) is not worker:
                    return  # another worker has joined at this address
        if self._losing.pop(place, None) is not None:
            self._dispatcher.trust(worker)

    def _lose_rest(self, place: str) -> None:
        """Mark the remaining objects of a lost worker as lost at once.

        Another worker is about to join at its address.
        """
        worker = self._losing.pop(place, None)
        if worker is not None:
            lose_location(self._context.graph, place)
            self._dispatcher.trust(worker)

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield every contradiction between the tables: an address, and a description."""
        table = self._context.table
        suspected = {worker.facts.netloc for worker in self._workers.values() if worker.suspicion}
        for place in suspected - table.suspects:
            yield place, "its worker is suspected, but tasks may be sent to read objects there"
        # Not `-`: a frozenset minus the keys of a dictionary is a set.
        for place in table.suspects.difference(suspected, self._losing):
            yield place, "tasks avoid it, but no worker there is suspected or lost"
        for place in table.expected.keys() - self._losing.keys():
            yield place, "a worker is expected there, but none has ended"
