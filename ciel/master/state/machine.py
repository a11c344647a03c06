"""The state machine of the master: messages from clients and workers go in, messages to them come
out.

Every method takes the time, and none does I/O. Messages collect in `outbox` as (peer, message)
pairs. The service calls `end_turn` once after a batch of events: it places tasks, announces results
and ends jobs, so that ten events cost one pass. Peers are names: the id of a worker, or the name of
a client's connection.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ciel.core.any_inputs import given
from ciel.core.early_outputs import open_streams
from ciel.core.errors import CannotCancelTaskError
from ciel.core.events import (
    RECALLED,
    SUSPECT_AFTER_S,
    WORKER_TIMEOUT_S,
    CancelTask,
    CopyTimed,
    DiskQueued,
    DropObjects,
    InputsLost,
    Message,
    ObjectsStored,
    SpawnTask,
    StoresReported,
    StreamsOpened,
    TaskPrinted,
    TaskReported,
)
from ciel.core.failures import label
from ciel.core.ids import ObjectId
from ciel.core.jobs import Job
from ciel.core.lost_objects import lose, lose_location
from ciel.core.nodes import Ending, TaskNode
from ciel.core.refs import Fixed, Reference, details_text, locations_of, with_text
from ciel.core.retries import (
    BACK_OFF_FIRST_S,
    INPUT_LOSSES_MAX,
    Again,
    Blame,
    GiveUp,
    after_failure,
    after_worker_loss,
    not_before_s,
)
from ciel.core.tasks import ASSIGNED, FINISHED, RUNNABLE, WAITING
from ciel.core.weights import INPUTS_WEIGHED_FROM, why_too_large
from ciel.master.state.children import ChildDesk
from ciel.master.state.copies import EarlyCopies, Followers
from ciel.master.state.dispatch import Dispatcher
from ciel.master.state.eager_dispatch import Ahead
from ciel.master.state.jobs import PROGRESS_INTERVAL_S
from ciel.master.state.retention import drop_unneeded, is_made_elsewhere, unlisted
from ciel.master.state.timeline import Timeline
from ciel.master.state.workers import Call, WorkerFacts, WorkerNode


class MasterMachine(ChildDesk):
    """The state of the master: all jobs and workers, and every decision about them."""

    def __init__(
        self,
        *,
        delegates: bool = True,
        suspect_after_s: float = SUSPECT_AFTER_S,
        worker_timeout_s: float = WORKER_TIMEOUT_S,
    ) -> None:
        """`delegates`: workers may start eager successors and children by themselves. A worker is
        suspected after `suspect_after_s` of silence, and declared dead after `worker_timeout_s`.
        """
        super().__init__()
        self.dispatcher = Dispatcher(self.graph, self._assign, self._refuse_task, self._say)
        self.workers = self.dispatcher.workers
        self.ahead = Ahead(self.graph, self.workers, self.blame, self._say)
        self.held: dict[
            TaskNode, tuple[WorkerNode, TaskReported]
        ] = {}  # till all they read is whole
        self._losing: dict[str, WorkerNode] = {}  # lost, by their place: what they held goes still
        self.timeline = Timeline()
        self.epoch_s = 0.0  # what makes a time of its clock one since the epoch, for answers
        self.workers_joined = 0  # of all there ever were
        self.workers_lost = 0
        self.suspect_after_s = suspect_after_s
        self.worker_timeout_s = worker_timeout_s
        self._delegates = delegates
        self._perhaps_unlisted: list[tuple[WorkerNode, tuple[Reference, ...], bool]] = []
        self._copies = EarlyCopies(self.graph)
        self._followers = Followers(self.graph)
        if delegates:
            self.graph.began_waiting = []

    # --- workers ----------------------------------------------------------------------------------

    @property
    def workers_version(self) -> int:
        """A number that grows whenever a worker joins or is lost."""
        return self.workers_joined + self.workers_lost

    def worker_joined(self, facts: WorkerFacts, now_s: float) -> None:
        """Add a worker. An earlier worker with the same id has lost its attempts; an earlier worker
        with the same address or work directory has ended.
        """
        self._now_s = now_s
        for other in list(self.workers.values()):
            if other.facts.id == facts.id:
                self.worker_lost(facts.id, "it joined anew", now_s)
            elif other.facts.netloc == facts.netloc or (
                facts.spool and other.facts.spool == facts.spool
            ):
                reason = "another worker took its place"
                self.worker_lost(other.facts.id, reason, now_s, died=True)
        self._lose_rest(facts.netloc)
        self.workers_joined += 1
        self.dispatcher.add_worker(WorkerNode(facts, now_s))

    def worker_heard(self, worker_id: str, heard_at_s: float, now_s: float) -> None:
        """Note that a worker has a connection, and when it was last heard."""
        worker = self.workers.get(worker_id)
        if worker is None:
            return
        worker.heard_at_s = heard_at_s
        if worker.suspicion and now_s - heard_at_s < self.suspect_after_s:
            self._now_s = now_s
            worker.suspicion = ""
            self.dispatcher.trust(worker)

    def worker_cut_off(self, worker_id: str, reason: str, now_s: float) -> None:
        """Suspect a worker whose connection broke; it may reconnect soon."""
        worker = self.workers.get(worker_id)
        if worker is not None and not worker.suspicion:
            self._now_s = now_s
            worker.suspicion = f"it lost its connection ({reason})"
            self.dispatcher.suspect(worker)

    def was_held_up(self, late_s: float) -> None:
        """Note that the master itself stood still: workers are not blamed for that time."""
        for worker in self.workers.values():
            worker.heard_at_s += late_s

    def worker_lost(self, worker_id: str, reason: str, now_s: float, *, died: bool = False) -> None:
        """Remove a worker, with its attempts and its objects. `died`: its process is known to have
        ended, so the tasks that it ran may be blamed.
        """
        self._now_s = now_s
        worker = self.workers.get(worker_id)
        if worker is None:
            return
        self.workers_lost += 1
        self.dispatcher.remove_worker(worker)
        self.ahead.lose(worker)
        slots_left = worker.facts.slots
        for (_, attempt), task in worker.assigned.items():
            # Only those at the head can have run, and have had to do with the loss.
            slots = worker.slots_of(task, attempt)
            may_have_run = slots_left > 0 or not slots
            slots_left -= slots
            if task.worker != worker_id or task.attempt != attempt:
                continue  # it was called off
            verdict: Again | GiveUp = Again(0.0)
            if may_have_run and died:
                blame = self.blame.setdefault(task.spec.id, Blame())
                verdict = after_worker_loss(blame, worker_id)
            self._tell(
                task, f"worker {worker_id} was lost ({reason}) during attempt {task.attempt}"
            )
            given_at_s = worker.given_at_s.get((task.spec.id, attempt), now_s)
            run_s = now_s - given_at_s if may_have_run else 0.0
            self.timeline.note(worker, task, attempt, given_at_s, now_s, run_s, "WORKER_LOST")
            if may_have_run:
                self._note_ending(task, worker, run_s, None)
            self._touched[task.spec.job] = task.job
            if isinstance(verdict, Again):
                self.graph.requeue(task)
            else:
                self.graph.fail(task, verdict.reason, verdict.details)
        for task in [task for task, (holder, _) in self.held.items() if holder is worker]:
            del self.held[task]
            self.graph.requeue(task)
        self._begun = {task: at for task, at in self._begun.items() if at is not worker}
        self._kept = [(at, message) for at, message in self._kept if at != worker_id]
        self._lose_held(worker)
        self._copies.lose(worker)
        self._followers.lose(worker)
        for job_id, attempts in list(self._called_off.items()):
            self._forget_calls(job_id, {call for call in attempts if call[0] == worker_id})

    def _lose_held(self, worker: WorkerNode) -> None:
        """Mark the objects of a lost worker as lost: its processes and streams at once, since
        programs depend on them, the others in slices.
        """
        graph, place = self.graph, worker.facts.netloc
        for object_id in (*graph.objects.fixed, *graph.objects.growing):
            lose(graph, object_id, place)
        self.bulk.begin(self._losing_held(worker))

    def _losing_held(self, worker: WorkerNode) -> Iterator[None]:
        """Mark the objects of a lost worker as lost, in slices. Until the end its address counts as
        suspected, so that no task is given an input that was there.
        """
        place = worker.facts.netloc
        for object_id in self.graph.objects.held_at(place):
            lose(self.graph, object_id, place)
            self.graph.steps_left -= 1
            if self.graph.steps_left < 0:
                if place not in self._losing:
                    self._losing[place] = worker
                    self.dispatcher.suspects |= {place}
                yield
                if self._losing.get(place) is not worker:
                    return  # another worker has joined at this place
        if self._losing.pop(place, None) is not None:
            self.dispatcher.trust(worker)

    def _lose_rest(self, place: str) -> None:
        """Mark the remaining objects of a lost worker as lost at once, since another worker joins
        at its address.
        """
        worker = self._losing.pop(place, None)
        if worker is not None:
            lose_location(self.graph, place)
            self.dispatcher.trust(worker)

    def worker_said(self, worker_id: str, message: Message, now_s: float) -> None:
        """Process one message of a worker that has joined."""
        self._now_s = now_s
        worker = self.workers.get(worker_id)
        if worker is None:
            return
        if worker.suspicion:
            self.worker_heard(worker_id, now_s, now_s)
        worker.heard_at_s = now_s
        if self.graph.streams.broken or self.graph.streams.whole:
            self._follow_streams()
        if self._begun and self._is_early(worker, message):
            self._kept.append((worker_id, message))
            return
        match message:
            case TaskReported():
                self._reported(worker, message)
                if worker.spared:
                    spared, worker.spared = worker.spared, {}
                    self._drop_unlisted(worker, spared.values())
            case SpawnTask(spec, _, attempt):
                parent = self._speaker(worker, spec.parent, attempt)
                if parent is not None:
                    self._spawned(worker, parent, message)
                else:
                    self._drop_unlisted(worker, message.known)
                    if message.begun:
                        self._call_off_begun(worker, spec)
            case InputsLost():
                self._inputs_lost(worker, message)
            case ObjectsStored(refs, kept, idle):
                self._stored(worker, refs, kept=kept, idle=idle)
            case StreamsOpened(task_id, attempt, refs):
                task = self._speaker(worker, task_id, attempt)
                if task is not None:
                    open_streams(self.graph, task, refs)
                    self._announce_growing(refs)
            case TaskPrinted():
                self._pass_on_prints(worker, message)
            case DiskQueued():
                worker.disk = message
            case CopyTimed():
                self.dispatcher.learn_bandwidth(worker, message)
            case StoresReported():
                worker.stores = message
        if self.graph.streams.broken or self.graph.streams.whole:
            self._follow_streams()

    def _current(self, worker: WorkerNode, task_id: str, attempt: int) -> TaskNode | None:
        """Return the task of a running attempt; None if the attempt does not count any more."""
        task = self.graph.tasks.get(task_id)
        if task is None or task.state is not ASSIGNED or task.attempt != attempt:
            return self._claim(worker, task_id, attempt) if self.ahead.tasks else None
        return task if task.worker == worker.facts.id else None

    def _claim(self, worker: WorkerNode, task_id: str, attempt: int) -> TaskNode | None:
        """Assign an eagerly dispatched task that has started, if its inputs are there."""
        task = self.ahead.find(worker, task_id, attempt)
        if task is None or not self.ahead.claim(task, worker):
            return None
        self._assign_silently(task, worker)
        return task

    def _speaker(self, worker: WorkerNode, task_id: str, attempt: int) -> TaskNode | None:
        """Return the task of a running attempt that reports something; cancel the attempt if it
        does not count any more.
        """
        task = self._current(worker, task_id, attempt)
        if task is None and (early := self.ahead.find(worker, task_id, attempt)) is not None:
            self.ahead.call_off(early)
        return task

    # --- reports ----------------------------------------------------------------------------------

    def _reported(self, worker: WorkerNode, report: TaskReported) -> None:
        task = self._current(worker, report.task, report.attempt)
        if task is None:
            late = worker.assigned.get((report.task, report.attempt))
            if late is not None and late.state in FINISHED and late.attempt == report.attempt:
                self._note_ending(
                    late, worker, report.run_s, report.exit_status
                )  # of a cancelled one
            self._superseded(worker, report.task, report.attempt)
            self._drop_unlisted(worker, report.published)
            self._tell_of_unlike(worker.facts.id, report)
            return
        if (task.spec.id, task.attempt) in worker.recalled:
            self.dispatcher.returned.add(task)
        slots = worker.slots_of(task, task.attempt)
        self._note_end(worker, task, report)
        worker.give_back(task, task.attempt)
        self._touched[task.spec.job] = task.job
        if report.fault is not None and report.fault.reason == RECALLED:
            self.graph.requeue(task)
            return
        worker.reported_at_s = self._now_s
        if slots:  # what runs within others says nothing of what can be sent
            worker.credit.learn(report.run_s)
        if report.fault is None:
            if task in self.graph.streams.reading:
                self.held[task] = (worker, report)
            else:
                self._count(task, worker, report)
            return
        reason, details = report.fault
        where = f"attempt {task.attempt} failed on worker {worker.facts.id}"
        blame = self.blame.setdefault(task.spec.id, Blame())
        verdict = after_failure(blame, task.spec.needs, reason, details)
        if isinstance(verdict, Again) or task.spec.id in self.stories:  # else the failure tells all
            self._tell(task, f"{where}: {reason}: {report.fault.text}")
        if isinstance(verdict, Again):
            blame.not_before_s = self._now_s + verdict.delay_s
            self.graph.requeue(task)
        else:
            details = verdict.details
            if task.spec.id in self.stories and not task.spec.needs.retries:
                count = f"(attempt {task.attempt}; `ciel task explain` tells of those before)"
                details = with_text(details, f"{details_text(details)}\n{count}")
            self.graph.fail(task, verdict.reason, details)
            self.journal.append(report)

    def _note_end(self, worker: WorkerNode, task: TaskNode, report: TaskReported) -> None:
        key = (report.task, report.attempt)
        fault = "" if report.fault is None else report.fault.reason
        if fault != RECALLED:
            given_at_s = worker.given_at_s.get(key)
            self.timeline.note(worker, task, key[1], given_at_s, self._now_s, report.run_s, fault)
            self._note_ending(task, worker, report.run_s, report.exit_status)

    def _note_ending(
        self, task: TaskNode, worker: WorkerNode, run_s: float, exit_status: int | None
    ) -> None:
        facts, ran_on = worker.facts, task.job.ran_on
        task.ending = Ending(facts.id, facts.hostname, self._now_s, run_s, exit_status)
        ran_on[facts.id] = ran_on.get(facts.id, 0) + 1

    def _count(self, task: TaskNode, worker: WorkerNode, report: TaskReported) -> None:
        """Accept a report of success: all inputs of the attempt are complete."""
        if self.ahead.tasks:
            self._avoid_others(report.published, task)
        self.graph.finish(task, report.published)
        self.journal.append(report)
        if self.blame:
            self.blame.pop(task.spec.id, None)
        if self.graph.objects.fixed:  # another of the same name may wait elsewhere already
            fixed = [ref for ref in report.published if type(ref) is Fixed]
            self._drop_unlisted(worker, fixed)
        nodes = self.graph.objects.nodes
        for ref in report.published:
            node = nodes.get(ref.id)
            if node is not None and node.producer is not task:  # another was to make it, and failed
                self._drop_unlisted(worker, (ref,))

    def _avoid_others(self, refs: Iterable[Reference], maker: TaskNode | None) -> None:
        """Cancel eager attempts that wait for objects which were produced elsewhere."""
        for ref in refs:
            node = self.graph.objects.get(ref.id)
            if node is not None and node.producer is not maker:
                self.ahead.settles_otherwise(ref.id)

    def _superseded(self, worker: WorkerNode, task_id: str, attempt: int) -> None:
        """Note the end of an attempt that does not count any more: it was cancelled, or its worker
        was declared dead.
        """
        task = worker.assigned.get((task_id, attempt))
        if task is None:
            if (early := self.ahead.find(worker, task_id, attempt)) is not None:
                self.ahead.ended(early)
            return
        worker.give_back(task, attempt)  # also if the task was forgotten since
        self._forget_calls(task.spec.job, {(worker.facts.id, task_id, attempt)})

    def _drop_unlisted(
        self, worker: WorkerNode, refs: Iterable[Reference], *, idle: bool = False
    ) -> None:
        """Have a worker delete those of these objects that the table does not list. They are judged
        at the end of the tick, since a later message may list them.
        """
        self._perhaps_unlisted.append((worker, tuple(refs), idle))

    def _delete_unlisted(self) -> None:
        suspects, self._perhaps_unlisted = self._perhaps_unlisted, []
        for worker, refs, idle in suspects:
            if self.workers.get(worker.facts.id) is worker:
                if doomed := unlisted(self.graph, worker, refs, idle=idle):
                    self._say(worker.facts.id, DropObjects(doomed))

    def _stored(
        self, worker: WorkerNode, refs: Iterable[Reference], *, kept: bool, idle: bool
    ) -> None:
        """Note that a worker stores objects. A copy of a growing object counts once its producer
        has completed the object.
        """
        known = self._copies.put_aside(worker, refs) if self.graph.objects.growing else refs
        if self.ahead.tasks:
            self._avoid_others(known, None)
        for ref in known:
            node = self.graph.objects.get(ref.id)
            if node is not None and not (kept and is_made_elsewhere(node, worker.facts.netloc)):
                self.graph.publish(ref)
        self._drop_unlisted(worker, known, idle=idle)

    # --- streams ----------------------------------------------------------------------------------

    def _follow_streams(self) -> None:
        """Stop attempts whose streams broke, and accept the reports of attempts whose streams are
        complete.
        """
        graph = self.graph
        streams = graph.streams
        while streams.broken or streams.whole:
            if streams.broken:
                self._stop_reading(*streams.broken.pop())
            else:
                task = streams.whole.pop()
                if task in self.held:
                    self._touched[task.spec.job] = task.job
                    self._count(task, *self.held.pop(task))
        for worker, ref in self._copies.take_back():
            node = graph.objects.get(ref.id)
            if node is not None and node.is_settled:
                graph.publish(ref)
            self._drop_unlisted(worker, (ref,))

    def _stop_reading(self, task: TaskNode, attempt: int) -> None:
        if task.state is RUNNABLE or task.state is WAITING:
            self.graph.recheck(task)
        elif task.state is ASSIGNED and task.attempt == attempt:
            self._touched[task.spec.job] = task.job
            self._tell(task, f"what attempt {task.attempt} read broke off: it runs again")
            self._stop(task)
            self.graph.requeue(task)
            self._drop_held(task)

    def _stop(self, task: TaskNode, *, aborts: bool = False) -> Call | None:
        """Cancel the attempt of a task; return the report to be waited for, if the attempt still
        runs.
        """
        if task in self.held or task.worker is None:
            return None
        self._say(task.worker, CancelTask(task.spec.id, task.attempt, aborts))
        return (task.worker, task.spec.id, task.attempt)

    def abort(self, task: TaskNode) -> bool:
        """Abort the attempt of a task, which then counts as failed; return whether there is one."""
        return self._stop(task, aborts=True) is not None

    def cancel_task(self, task: TaskNode, reason: str, now_s: float) -> None:
        """Cancel a task, and fail the tasks that need it; raises CielError if it has ended. Its job
        goes on.
        """
        self._now_s = now_s
        if task.state in FINISHED:
            raise CannotCancelTaskError(label(task), str(task.state))
        if task.state is ASSIGNED:
            self._stop(task)
        self._touched[task.spec.job] = task.job
        self.graph.fail(task, "CANCELLED", reason)
        self._drop_held(task)

    def _drop_held(self, task: TaskNode) -> None:
        """Discard a held report, and delete the objects that the attempt produced."""
        if task in self.held:
            worker, report = self.held.pop(task)
            self._drop_unlisted(worker, report.published)

    # --- inputs that are not there ----------------------------------------------------------------

    def _inputs_lost(self, worker: WorkerNode, message: InputsLost) -> None:
        task = self._current(worker, message.task, message.attempt)
        if task is None:
            self._superseded(worker, message.task, message.attempt)
            return
        worker.give_back(task, task.attempt)
        self._touched[task.spec.job] = task.job
        self._tell(task, f"attempt {task.attempt} could not get its inputs: {message.details}")
        blame = self.blame.setdefault(task.spec.id, Blame())
        changed = [self._lose_copy(worker, *loss) for loss in message.losses]
        if not any(changed):
            blame.missing_inputs += 1  # the copies are said to be there: do not try for ever
            blame.not_before_s = self._now_s + BACK_OFF_FIRST_S
        blame.input_losses += 1
        too_often = blame.input_losses > INPUT_LOSSES_MAX * (len(task.spec.inputs) + 1)
        if too_often or blame.missing_inputs > max(3, task.spec.needs.retries):
            if message.lacks_room:
                about = f"its inputs do not fit into the store of worker {worker.facts.id}"
                advice = "give the worker a larger store, or end jobs whose results it keeps"
                self.graph.fail(task, "NO_SPACE", f"{about}: {message.details}; {advice}")
            else:
                self.graph.fail(task, "MISSING_INPUT", message.details)
        else:
            self.graph.requeue(task)

    def _lose_copy(self, reader: WorkerNode, object_id: ObjectId, place: str) -> bool:
        """Note that a reader could not get an object from a worker; return whether the object table
        has changed since the attempt was assigned.

        A copy that does exist there is deleted, since the table does not list it any more; unless
        it cannot be recomputed, or is being recomputed there.
        """
        node = self.graph.objects.get(object_id)
        ref = None if node is None else node.ref
        if node is None or ref is None:
            return True
        holder = self.dispatcher.worker_at(place)
        places = locations_of(ref)
        if place not in places:  # it came to be since, or nobody ever said that it is there
            return not places or holder is not None
        if holder is not None and holder.suspicion:
            return True  # it may be back soon: the reader waits for that, see `Dispatcher`
        if holder is not None and holder is not reader and node.producer is None:
            return False
        lose(self.graph, object_id, place)
        if holder is not None:
            self._drop_unlisted(holder, (ref,))
        return True

    # --- the end of a turn ------------------------------------------------------------------------

    def end_turn(self, now_s: float) -> None:
        """Place tasks, announce results, end jobs; called once after a batch of events."""
        graph = self.graph
        self._now_s = now_s
        self.dispatcher.introduce_workers()
        self._decide()
        if self.bulk or graph.has_more:
            self.bulk.go_on()
        self._stop_unneeded()
        if self._perhaps_unlisted:  # before tasks are sent that are to read other copies
            self._delete_unlisted()
        self._collect_runnable()
        self.dispatcher.dispatch()
        while (
            graph.runnable or graph.streams.broken
        ):  # an input was found to be lost: it is made again
            self._follow_streams()
            self.ahead.check()
            self._collect_runnable()
            self.dispatcher.dispatch()
        if self._delegates:
            self.ahead.check()
            self.ahead.send()
        self.dispatcher.recall(now_s)
        self._announce_settled()
        self._drop()
        self._settle_jobs()
        if graph.fixed.released:
            self._drop()
        if self._perhaps_unlisted:
            self._delete_unlisted()
        if graph.runnable:  # what goes on with an error: its job had come to a standstill
            self.end_turn(now_s)
        self.bulk.end_turn()

    @property
    def has_more(self) -> bool:
        """Whether this tick left work for the next one, which should follow soon."""
        return bool(self.bulk) or self.graph.has_more or self.dispatcher.is_cut_short

    def _collect_runnable(self) -> None:
        for worker, object_id in self._followers.in_vain():  # before it is read there anew
            self._say(worker.facts.id, DropObjects((object_id,), unless_whole=True))
        graph = self.graph
        if graph.runnable:
            runnable, graph.runnable = graph.runnable, []
            push = self.dispatcher.ready.push
            for task in runnable:
                task.ready_at_s = self._now_s
                if self.ahead.tasks and self._goes_on_where_it_is(task):
                    continue
                due_s = not_before_s(task, self.blame.get(task.spec.id) if self.blame else None)
                if due_s > self._now_s:
                    self.dispatcher.ready.push_later(task, due_s)
                else:
                    push(task)
        self.dispatcher.ready.wake(self._now_s)

    def _goes_on_where_it_is(self, task: TaskNode) -> bool:
        """Assign a runnable task to the worker to which it was dispatched eagerly; cancel that
        attempt if it cannot run there.
        """
        worker = self.ahead.tasks.get(task)
        if worker is None:
            return False
        if self.ahead.claim(task, worker):
            self._assign_silently(task, worker)
            return True
        self.ahead.call_off(task)
        return False

    def _assign_silently(
        self, task: TaskNode, worker: WorkerNode, *, begun: bool = False, within: bool = False
    ) -> None:
        self.graph.assign(task, worker.facts.id)
        if begun:
            task.attempt = 0
        worker.take(task, self._now_s, within=within)
        self.ahead.assigned(task)

    def _assign(self, task: TaskNode, worker: WorkerNode) -> None:
        inputs = given(self.graph.objects, task.spec) if task.spec.inputs else ()
        if len(inputs) > INPUTS_WEIGHED_FROM and (too_large := why_too_large(inputs)):
            self._refuse_task(task, "INPUTS_TOO_LARGE", too_large)
            return
        attempt = self.graph.assign(task, worker.facts.id)
        worker.take(task, self._now_s)
        if self.dispatcher.suspects:
            inputs = tuple([self.dispatcher.without_suspects(ref) for ref in inputs])
        if self.graph.objects.growing:
            self._followers.told(worker, inputs)
        self.outbox += worker.assignment(task, attempt, inputs)
        if self._delegates and self.graph.waiting.awaited:
            self.ahead.assigned(task)

    def _refuse_task(self, task: TaskNode, reason: str, details: str) -> None:
        self._touched[task.spec.job] = task.job
        self.graph.fail(task, reason, details)

    def _stop_unneeded(self) -> None:
        """Cancel attempts that read broken streams, that are not needed, or that were dispatched in
        vain.
        """
        graph = self.graph
        self._follow_streams()
        while graph.unneeded:
            unneeded, graph.unneeded = graph.unneeded, []
            for task in unneeded:
                if task.worker is not None and not graph.is_needed(task):
                    self._stop(task)
                    graph.sleep(task)
                    self._drop_held(task)
            self._follow_streams()
        self.ahead.check()

    def _stop_attempts(self, job: Job, reason: str) -> Iterator[Call | None]:
        self.dispatcher.drop_job(job)
        yield from self.ahead.call_off_job(job)
        for worker in list(self.workers.values()):
            for (_, attempt), task in list(worker.assigned.items()):
                is_current = (task.worker, task.attempt) == (worker.facts.id, attempt)
                if task.job is job and is_current and task.state is ASSIGNED:
                    call = self._stop(task)
                    self.graph.fail(task, "CANCELLED", reason)
                    yield call
        for task in [task for task in self.held if task.job is job]:
            if task.state is ASSIGNED:
                self.graph.fail(task, "CANCELLED", reason)
            self._drop_held(task)
            yield None

    def _drop(self) -> None:
        if self.graph.retention.droppable:
            self._delete(drop_unneeded(self.graph))
        if self.graph.objects.replaced:
            self._delete(self.graph.objects.take_replaced())
        if self.graph.fixed.released:
            self._delete(self.graph.fixed.forget_released())

    def remove_job(self, job: Job) -> None:
        super().remove_job(job)
        self.timeline.forget(job)
        self.ahead.forget(job)

    # --- time -------------------------------------------------------------------------------------

    def tick(self, now_s: float) -> None:
        """Act on the time: silent workers, jobs without clients; called about once a second.

        While no worker is heard, none is declared dead: no other worker could run its tasks, and
        the master itself may be disconnected.
        """
        self._now_s = now_s
        for worker in self.workers.values():
            silent_s = now_s - worker.heard_at_s
            if silent_s > self.suspect_after_s and not worker.suspicion:
                worker.suspicion = f"it was silent for {silent_s:.1f} s"
                self.dispatcher.suspect(worker)
        if any(not worker.suspicion for worker in self.workers.values()):
            for worker in list(self.workers.values()):
                silent_s = now_s - worker.heard_at_s
                if silent_s > self.worker_timeout_s:
                    self.worker_lost(worker.facts.id, f"silent for {silent_s:.1f} s", now_s)
        for job_id in self._subscriptions.forsaken(now_s):
            self._cancel(self.jobs[job_id], "its client is gone")

    def due_s(self) -> float | None:
        """When `end_turn` has to be called next even if no event arrives; None for never."""
        if self.has_more:
            return self._now_s
        due = [self._progress_at_s + PROGRESS_INTERVAL_S] if self._progress_due else []
        if (due_s := self.dispatcher.ready.due_s) is not None:
            due.append(due_s)
        return min(due, default=None)
