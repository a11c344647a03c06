"""The state machine of the master: turns messages of clients and workers into messages to them.

Every method takes the time, and none does I/O. Messages collect in an outbox as (peer, message)
pairs. The service calls `end_tick` once after a batch of events: it places tasks, announces results
and ends jobs, once for all these events. Peers are names: the id of a worker, or the name of
a client's connection.

The machine itself only receives events and orders the work of a tick. Its components decide; each
owns its tables, and knows the components before it: `Context`, `Dispatcher`, `EagerDispatch`,
`Attempts`, `InlineChildren`, `Replication`, `Draining`, `Membership`, `Jobs`, `JobOperations`,
`ClientRequests`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ciel.core.events import (
    CLIENT_GRACE_S,
    FORGET_JOBS_AFTER_S,
    SUSPECT_AFTER_S,
    WORKER_TIMEOUT_S,
    AddTask,
    AttemptsKept,
    Change,
    ContentDiffers,
    CopyTimed,
    DiskQueued,
    DrainAsked,
    DropObjects,
    InputsLost,
    Message,
    NotCopied,
    ObjectsStored,
    SpawnTask,
    StateSet,
    StoreListed,
    StoresReported,
    StreamsOpened,
    TaskPrinted,
    TaskReported,
    WorkersUnreached,
)
from ciel.core.graph.early_outputs import open_streams
from ciel.core.graph.nodes import TaskNode
from ciel.core.history import History
from ciel.core.ids import ObjectId
from ciel.core.jobs import Job, JobSpec
from ciel.core.retries import RetryState, not_before_s
from ciel.master.state.attempts import Attempts
from ciel.master.state.bulk import BulkOperations
from ciel.master.state.cancellations import Cancellations
from ciel.master.state.client_requests import ClientRequests
from ciel.master.state.context import Context
from ciel.master.state.draining import Draining
from ciel.master.state.inline_children import InlineChildren
from ciel.master.state.jobs import Jobs
from ciel.master.state.member_states import MemberStates
from ciel.master.state.membership import Membership
from ciel.master.state.operations import JobOperations
from ciel.master.state.placement.dispatch import Dispatcher
from ciel.master.state.placement.eager_dispatch import EagerDispatch
from ciel.master.state.placement.lives import Lives
from ciel.master.state.placement.reach import Reach
from ciel.master.state.placement.replication import Replication
from ciel.master.state.retention import Kept, drop_unneeded
from ciel.master.state.workers import AttemptKey, WorkerFacts, WorkerNode


class MasterMachine:
    """The state of the master: all jobs and workers, and every decision about them."""

    def __init__(
        self,
        *,
        delegates: bool = True,
        suspect_after_s: float = SUSPECT_AFTER_S,
        worker_timeout_s: float = WORKER_TIMEOUT_S,
        forget_jobs_after_s: float = FORGET_JOBS_AFTER_S,
        tasks_max: int = 0,
    ) -> None:
        """`delegates`: the master leaves decisions to workers: it dispatches tasks eagerly, and
        workers run children inline. This does not concern the delegation of outputs.

        A worker is suspected after `suspect_after_s` of silence, and declared dead after
        `worker_timeout_s`. Ended jobs are removed after `forget_jobs_after_s`; 0: never. A job may
        have `tasks_max` tasks; 0: any number.
        """
        context = self.context = Context(tasks_max)
        self.graph = context.graph
        self.workers: Mapping[str, WorkerNode] = context.table.by_id
        self.histories: Mapping[str, History] = context.histories
        self.retry_states: Mapping[str, RetryState] = context.retry_states
        self.kept: dict[ObjectId, Kept] = {}  # objects that stay when their jobs are removed
        self.bulk = BulkOperations(self.graph)
        self.cancellations = Cancellations(context)
        self.lives = Lives(context)
        self.eager = EagerDispatch(context, self.lives)
        self.attempts = Attempts(
            context, self.eager, self.lives, self.cancellations, dispatches_eagerly=delegates
        )
        self.timeline = self.attempts.timeline
        self.reach = Reach(context)
        self.dispatcher = Dispatcher(
            self.graph,
            context.table,
            context.retry_states,
            self.reach,
            self.lives,
            self.attempts.assign,
            context.fail,
            context.send,
        )
        self.children = InlineChildren(context, self.attempts, starts_inline=delegates)
        self.replication = Replication(context)
        self.member_states = MemberStates(context)
        self.draining = Draining(
            context, self.dispatcher, self.eager, self.attempts, self.lives, self.replication
        )
        self.membership = Membership(
            context, self.bulk, self.dispatcher, self.eager, self.attempts, self.children,
            self.draining, self.replication, self.member_states,
            suspect_after_s=suspect_after_s, timeout_s=worker_timeout_s,
        )  # fmt: skip
        self.job_table = Jobs(context, self.replication)
        self.jobs: Mapping[str, Job] = self.job_table.by_id
        self.operations = JobOperations(
            context, self.job_table, self.bulk, self.cancellations, self.kept,
            self._settle_children, self._stop_job,
        )  # fmt: skip
        self.clients = ClientRequests(context, self.job_table, self.operations, self.replication)
        self._delegates = delegates
        self._forget_jobs_after_s = forget_jobs_after_s
        if delegates:
            self.graph.newly_waiting = []

    # --- results ----------------------------------------------------------------------------------

    @property
    def outbox(self) -> list[tuple[str, Message]]:
        return self.context.outbox

    @property
    def epoch_s(self) -> float:
        """This machine's time plus this is the time since the epoch."""
        return self.context.epoch_s

    @epoch_s.setter
    def epoch_s(self, epoch_s: float) -> None:
        self.context.epoch_s = epoch_s

    @property
    def journal(self) -> list[Message]:
        return self.context.journal

    def take_outbox(self) -> list[tuple[str, Message]]:
        """Remove and return the messages to be sent, each with its receiver."""
        outbox, self.context.outbox = self.context.outbox, []
        return outbox

    def take_journal(self) -> list[Message]:
        """Remove and return the records for the journal.

        They must be written before the outbox is sent.
        """
        journal, self.context.journal = self.context.journal, []
        return journal

    def take_ended(self) -> list[Job]:
        """Remove and return the jobs that have ended."""
        ended, self.job_table.ended = self.job_table.ended, []
        return ended

    @property
    def workers_version(self) -> int:
        """A number that increases whenever a worker joins or is lost."""
        return self.membership.joined_count + self.membership.lost_count

    # --- workers ----------------------------------------------------------------------------------

    def worker_joined(self, facts: WorkerFacts, now_s: float, *, returns: bool = False) -> None:
        """Add a worker; it replaces an earlier one with the same id, address or work directory.

        `returns`: it starts over, and will first report the attempts that it runs.
        """
        self.context.now_s = now_s
        self.membership.joined(facts, returns=returns)

    def worker_heard(self, worker_id: str, heard_at_s: float, now_s: float) -> None:
        """Note that a worker is connected, and when it last sent something."""
        worker = self.workers.get(worker_id)
        if worker is not None:
            self.context.now_s = now_s
            self.membership.heard(worker, heard_at_s)

    def worker_cut_off(self, worker_id: str, reason: str, now_s: float) -> None:
        """Suspect a worker whose connection broke; it may reconnect soon."""
        worker = self.workers.get(worker_id)
        if worker is not None:
            self.context.now_s = now_s
            self.membership.suspect(worker, f"it lost its connection ({reason})")

    def was_stalled(self, late_s: float) -> None:
        """Note that the master itself stalled: that time does not count as silence of workers."""
        self.membership.was_stalled(late_s)

    def worker_lost(self, worker_id: str, reason: str, now_s: float, *, died: bool = False) -> None:
        """Remove a worker, with its attempts and its objects.

        `died`: its process is known to have ended, so the loss counts against the tasks that it
        ran.
        """
        self.context.now_s = now_s
        self.membership.lost(worker_id, reason, died=died)

    def worker_sent(self, worker_id: str, message: Message, now_s: float) -> None:
        """Process one message of a worker that has joined."""
        self.context.now_s = now_s
        worker = self.workers.get(worker_id)
        if worker is None:
            return
        if worker.suspicion:
            worker.is_returning = False  # this is the report of its attempts
            self.membership.heard(worker, now_s)
        worker.heard_at_s = now_s
        streams = self.graph.streams
        if streams.broken_readers or streams.completed_readers:
            self.attempts.follow_streams()
        if self.children and self.children.postpone(worker, message):
            return
        self._worker_sent(worker, message)
        if streams.broken_readers or streams.completed_readers:
            self.attempts.follow_streams()

    def _check_postponed(self, worker: WorkerNode) -> None:
        """Check the copies again whose deletion waited, for the end of an attempt or of a list."""
        if worker.postponed_deletions:
            postponed, worker.postponed_deletions = worker.postponed_deletions, {}
            self.attempts.unlisted.add(worker, postponed.values())

    def _worker_sent(self, worker: WorkerNode, message: Message) -> None:
        attempts = self.attempts
        match message:
            case TaskReported():
                if self.membership.unlisted:
                    self.membership.stored(worker, message.published)
                attempts.reported(worker, message)
                self._check_postponed(worker)
            case SpawnTask(spec, _, attempt):
                parent = attempts.reporting_task(worker, spec.parent, attempt)
                if parent is not None:
                    self.children.spawned(worker, parent, message)
                else:
                    self.children.spawned_late(worker, message)
            case InputsLost():
                attempts.inputs_lost(worker, message)
                self._check_postponed(worker)
            case ObjectsStored(refs, kept, idle):
                self.membership.stored(worker, refs)
                attempts.stored(worker, refs, kept=kept, idle=idle)
                if self.draining:
                    self.draining.stored(worker, message)
                if self.replication:
                    self.replication.stored(worker, message)
                self.reach.stored(worker, refs)
            case NotCopied():
                self.draining.not_copied(worker, message)
                self.replication.not_copied(worker, message)
                self.reach.not_copied(worker, message)
            case ContentDiffers(object_id):
                attempts.content_differs(worker, object_id)
            case StreamsOpened(task_id, attempt, refs):
                task = attempts.reporting_task(worker, task_id, attempt)
                if task is not None:
                    open_streams(self.graph, task, refs)
                    self.job_table.announce_growing(refs)
            case TaskPrinted():
                self.job_table.pass_on_output(worker, message)
            case DiskQueued():
                worker.disk = message
            case AttemptsKept():
                attempts.adopt(worker, message)
            case StoreListed():
                self.membership.store_listed(worker)
                self._check_postponed(worker)
            case CopyTimed():
                self.dispatcher.learn_bandwidth(worker, message)
            case WorkersUnreached(netlocs):
                self.dispatcher.unreached(worker, netlocs)
            case StoresReported():
                worker.stores = message
                worker.disks.learn(message.disks)
            case DrainAsked(within_s):
                self.draining.asked(worker, within_s)
            case StateSet():
                self.member_states.set(worker, message)

    def drain_worker(self, worker: WorkerNode, timeout_s: float | None, now_s: float) -> None:
        """Let a worker leave when other workers have its tasks and objects.

        After `timeout_s`, tasks that still run there run elsewhere. Raises CannotDrainError.
        """
        self.context.now_s = now_s
        self.draining.request(worker, timeout_s)

    # --- clients ----------------------------------------------------------------------------------

    def client_sent(self, client: str, message: Message, now_s: float) -> None:
        """Process one message of a client. A rejected message changes nothing."""
        self.context.now_s = now_s
        self.clients.carry_out(client, message)

    def refuse(self, client: str, message: Message, reason: str) -> None:
        """Report to a client that the master rejects a message."""
        self.clients.refuse(client, message, reason)

    def client_gone(self, client: str, now_s: float, grace_s: float = CLIENT_GRACE_S) -> None:
        """Note that the connection of a client ended: its jobs get a grace period."""
        self.job_table.subscriptions.gone(client, self.jobs, now_s + grace_s)

    def submit_job(
        self,
        spec: JobSpec,
        tasks: Sequence[AddTask],
        wanted: tuple[ObjectId, ...],
        now_s: float,
        copies: int = 1,
    ) -> Job:
        """Create a complete job, with its tasks and wants, for a client without a connection.

        As many workers as there are `copies` hold each uploaded object that the tasks read. Raises
        CielError, and then creates nothing.
        """
        self.context.now_s = now_s
        return self.clients.submit_job(spec, tasks, wanted, copies)

    def find_job(self, job_id: str) -> Job:
        """Return a job; raises UnknownJobError."""
        return self.job_table.find(job_id)

    def cancel_job(self, job: Job, reason: str, now_s: float) -> None:
        """Cancel a job; does nothing if it has ended."""
        self.context.now_s = now_s
        self.operations.cancel(job, reason)

    def fail_job(self, job: Job, reason: str, now_s: float) -> None:
        """End a job as failed; does nothing if it has ended."""
        self.context.now_s = now_s
        self.operations.fail(job, reason)

    def remove_job(self, job: Job) -> None:
        """Forget an ended job and its results; raises JobNotEndedError."""
        self.operations.remove(job)
        self.timeline.forget(job)
        self.eager.job_removed(job)

    def retry_job(self, job: Job, now_s: float) -> None:
        """Run the failed and cancelled tasks of an ended job again.

        Raises CielError if that is impossible. In a large job this may be detected later; then the
        job ends again as before.
        """
        self.context.now_s = now_s
        self.operations.retry(job)

    def retry_task(self, task: TaskNode, now_s: float) -> None:
        """Run a failed or cancelled task again, with the failed tasks that it needs.

        Raises CielError if that is impossible. An ended job becomes active again.
        """
        self.context.now_s = now_s
        self.operations.retry_task(task)

    def cancel_task(self, task: TaskNode, reason: str, now_s: float) -> None:
        """Cancel a task, and fail the tasks that need it; raises CielError if it has ended.

        Its job continues.
        """
        self.context.now_s = now_s
        self.attempts.cancel(task, reason)

    def abort(self, task: TaskNode) -> bool:
        """Abort the current attempt of a task, which then counts as failed.

        Return False if the task has no current attempt.
        """
        return self.attempts.stop(task, aborts=True) is not None

    def forget(self, object_id: ObjectId) -> None:
        """Forget an object that no task or job names, and delete its copies."""
        places = self.graph.objects.forget(self.graph.objects.nodes[object_id])
        self.graph.remove_object(object_id)
        self.context.delete({place: [object_id] for place in places})

    def _stop_job(self, job: Job, reason: str) -> Iterator[AttemptKey | None]:
        self.dispatcher.drop_job(job)
        yield from self.attempts.stop_job(job, reason)

    # --- the tick ---------------------------------------------------------------------------------

    def end_tick(self, now_s: float) -> None:
        """Place tasks, announce results, end jobs; called once after a batch of events."""
        self.context.now_s = now_s
        self._pass()
        while self.graph.runnable:  # tasks that read errors of a stuck job can run now
            self._pass()
        self.bulk.end_tick()

    def _pass(self) -> None:
        graph, unlisted = self.graph, self.attempts.unlisted
        self.dispatcher.introduce_workers()
        self._settle_children()
        if self.bulk or graph.has_more:
            self.bulk.resume()
        self.attempts.stop_unneeded()
        if unlisted:  # before the tasks are sent that read other copies of these objects
            unlisted.delete()
        self._collect_runnable()
        if self.membership.awaited:
            self._announce()
            return  # workers may return with attempts at these tasks
        self.dispatcher.dispatch()
        # The dispatcher may detect lost inputs, which have to be recomputed.
        while graph.runnable or graph.streams.broken_readers:
            self.attempts.follow_streams()
            self.eager.check()
            self._collect_runnable()
            self.dispatcher.dispatch()
        if self._delegates:
            self.eager.check()
            self.eager.send()
        self.dispatcher.recall(self.context.now_s)
        if self.draining:
            self.draining.step()
            self.attempts.follow_streams()
        if self.replication:
            self.replication.step()
        self._announce()

    def _announce(self) -> None:
        """Announce results, end jobs, and delete what is not needed."""
        graph, unlisted = self.graph, self.attempts.unlisted
        self.job_table.announce_settled()
        self.operations.hand_over_released()
        self._drop()
        self.operations.judge_jobs(awaits_workers=bool(self.membership.awaited))
        self.operations.hand_over_released()
        if graph.fixed.released:
            self._drop()
        if unlisted:
            unlisted.delete()
        if self.member_states:
            self.member_states.check()

    @property
    def has_more(self) -> bool:
        """Whether this tick has left work for the next one, which should follow at once."""
        is_started = bool(self.bulk) or self.graph.has_more or self.dispatcher.is_cut_short
        if is_started or self.membership.awaited:
            return is_started
        if self.draining and self.draining.has_more:
            return True
        return bool(self.replication) and self.replication.has_more

    def _settle_children(self) -> None:
        """Assign or cancel the inline children that are not decided yet."""
        while self.children:
            for worker_id, message in self.children.decide():
                self.worker_sent(worker_id, message, self.context.now_s)

    def _collect_runnable(self) -> None:
        """Queue the runnable tasks; assign eagerly dispatched tasks to their workers."""
        # Copies of broken streams must end before a task on the same worker reads the object again.
        for worker, object_id in self.attempts.followers_of_broken():
            self.context.send(worker.facts.id, DropObjects((object_id,), unless_complete=True))
        graph, now_s, ready = self.graph, self.context.now_s, self.dispatcher.ready
        if graph.runnable:
            runnable, graph.runnable = graph.runnable, []
            for task in runnable:
                task.ready_at_s = now_s
                if self.eager.tasks and self.attempts.start_eager(task):
                    continue
                due_s = not_before_s(
                    task, self.retry_states.get(task.spec.id) if self.retry_states else None
                )
                if due_s > now_s:
                    ready.push_later(task, due_s)
                else:
                    ready.push(task)
        ready.wake(now_s)

    def _drop(self) -> None:
        """Order workers to delete objects that are not needed, and to end such processes."""
        if self.graph.retention.droppable:
            self.context.delete(drop_unneeded(self.graph))
        if self.graph.objects.replaced:
            self.context.delete(self.graph.objects.take_replaced())
        if self.graph.fixed.released:
            self.context.delete(self.graph.fixed.forget_released())

    # --- time -------------------------------------------------------------------------------------

    def check_timeouts(self, now_s: float) -> None:
        """Check for silent workers and jobs without clients; called four times a second."""
        self.context.now_s = now_s
        self.membership.check_silence()
        self.membership.check_awaited()
        self.membership.check_expected()
        self.dispatcher.check_reach()
        for job_id in self.job_table.subscriptions.expired(now_s):
            self.operations.cancel(self.jobs[job_id], "its client was disconnected for too long")
        if self._forget_jobs_after_s:
            for job in self.job_table.take_ended_before(now_s - self._forget_jobs_after_s):
                self.remove_job(job)
                self.context.journal.append(Change(0, "remove", {"job": job.spec.id}))

    def due_s(self) -> float | None:
        """The time at which `end_tick` must be called if no event arrives before; None: never."""
        if self.has_more:
            return self.context.now_s
        due = [self.job_table.progress_due_s, self.dispatcher.ready.due_s]
        if self.draining and not self.membership.awaited:
            due.append(self.draining.due_s())
        if self.replication and not self.membership.awaited:
            due.append(self.replication.due_s())
        return min((due_s for due_s in due if due_s is not None), default=None)
