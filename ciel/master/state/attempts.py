"""Tracks each attempt at a task on the master.

An attempt exists from its assignment to a worker until the master accepts its report, it is
stopped, or its inputs turn out to be missing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from ciel.core.errors import CannotCancelTaskError
from ciel.core.events import (
    RECALLED,
    AttemptFailed,
    AttemptsKept,
    CancelTask,
    InputsLost,
    ObjectsStored,
    TaskFault,
    TaskReported,
)
from ciel.core.graph.any_inputs import inputs_of
from ciel.core.graph.failures import label
from ciel.core.graph.lost_objects import lose
from ciel.core.graph.nodes import Ending, TaskNode
from ciel.core.ids import ObjectId, TaskId
from ciel.core.jobs import Job
from ciel.core.refs import (
    Fixed,
    Reference,
    Tombstone,
    details_text,
    differs_in_content,
    locations_of,
    with_text,
)
from ciel.core.retries import (
    BACK_OFF_FIRST_S,
    INPUT_LOSSES_MAX,
    GiveUp,
    Retry,
    RetryState,
    after_failure,
    after_worker_loss,
    may_kill_workers,
)
from ciel.core.tasks import ASSIGNED, DONE, FINISHED, RUNNABLE, WAITING, TaskSpec
from ciel.core.weights import INPUTS_WEIGHED_FROM, why_too_large
from ciel.master.state.cancellations import Cancellations
from ciel.master.state.context import Context
from ciel.master.state.copies import EarlyCopies, StreamFollowers
from ciel.master.state.placement.eager_dispatch import EagerDispatch
from ciel.master.state.placement.lives import Lives
from ciel.master.state.retention import UnlistedCopies, has_copy_elsewhere
from ciel.master.state.timeline import Timeline
from ciel.master.state.workers import AttemptKey, WorkerNode

REPORTED_LATE_S = 0.02
"""Workers report the ends of shorter tasks late, and may start several of them ahead of that."""
FIRST_STARTED = "its first task was sent to worker"


def _by_number(key: tuple[str, int]) -> int:
    return key[1]


class Attempts:
    """All current attempts, and the reports that are held.

    A report of success is held while an input of the attempt still grows: if the stream breaks, the
    attempt has read only a part of the input.
    """

    def __init__(
        self,
        context: Context,
        eager: EagerDispatch,
        lives: Lives,
        cancellations: Cancellations,
        *,
        dispatches_eagerly: bool,
    ) -> None:
        """`dispatches_eagerly`: the master may send tasks before their inputs exist."""
        self._context = context
        self._graph = context.graph
        self._table = context.table
        self._eager = eager
        self._lives = lives
        self._cancellations = cancellations
        self._dispatches_eagerly = dispatches_eagerly
        self.held_reports: dict[TaskNode, tuple[WorkerNode, TaskReported]] = {}
        self._lost: dict[TaskNode, int] = {}  # attempts whose workers were declared dead
        self.timeline = Timeline()
        self.unlisted = UnlistedCopies(context)
        self._copies = EarlyCopies(context.graph)
        self._followers = StreamFollowers(context.graph)

    # --- assignment -------------------------------------------------------------------------------

    def assign(self, task: TaskNode, worker: WorkerNode) -> None:
        """Assign a task that is ready to a worker, and send it there."""
        inputs = inputs_of(self._graph.objects, task.spec) if task.spec.inputs else ()
        if len(inputs) > INPUTS_WEIGHED_FROM and (too_large := why_too_large(inputs)):
            self._context.fail(task, "INPUTS_TOO_LARGE", too_large)
            return
        self._context.skip_used_numbers(task)
        attempt = self._graph.assign(task, worker.facts.id)
        if self._graph.streams.readers:
            # The tasks that read an output now were adopted by this master: they have read what an
            # earlier attempt wrote.
            for object_id in task.spec.outputs:
                self._graph.streams.break_off(object_id)
        worker.add_attempt(task, self._context.now_s)
        if not task.job.is_started:
            self._note_start(task, worker)
        if self._lost:
            self._lost.pop(task, None)
        if self._table.suspects or self._table.unreached:
            inputs = tuple([self._table.fetchable(worker, ref) for ref in inputs])
        if self._graph.objects.growing:
            self._followers.task_sent(worker, inputs)
        taken = self._graph.redelegation.taken(task) if attempt > 1 else ()
        self._context.outbox += worker.assignment(task, attempt, inputs, taken)
        if self._dispatches_eagerly and self._graph.waiting.awaited:
            self._eager.assigned(task)

    def confirm(
        self, task: TaskNode, worker: WorkerNode, *, is_inline: bool = False, within: bool = False
    ) -> None:
        """Assign a ready task to a worker that has it already.

        The task was dispatched eagerly, or (`is_inline`) the worker started it by itself, possibly
        within the program of its parent (`within`).
        """
        self._graph.assign(task, worker.facts.id)
        if not task.job.is_started:
            self._note_start(task, worker)
        self._lost.pop(task, None)
        if is_inline:
            task.attempt = 0
        worker.add_attempt(task, self._context.now_s, within=within)
        self._eager.assigned(task)

    def _note_start(self, task: TaskNode, worker: WorkerNode) -> None:
        task.job.is_started = True
        self._context.note(task.job, f"{FIRST_STARTED} {worker.facts.id}")

    def adopt(self, worker: WorkerNode, kept: AttemptsKept) -> None:
        """Continue the attempts that a worker kept while the master was restarted.

        Cancel those whose tasks need not run, or have had an attempt with this number or a higher
        one: its end may be known, or a worker may still end it. So the attempt with the highest
        number comes first. An attempt that was lost with its worker may return with it.
        """
        within, cancelled = set(kept.within), set(kept.cancelled)
        later: set[str] = set()  # tasks of which the worker has named an attempt before
        for task_id, attempt in sorted(kept.attempts, key=_by_number, reverse=True):
            task = self._graph.tasks.get(task_id)
            is_first = attempt == 0 and task_id not in later  # a child that was started there
            is_latest = task is not None and (
                is_first or attempt == self._lost.get(task) or attempt > task.attempt
            )
            later.add(task_id)
            if task is not None and task in self._eager.tasks:
                self._eager.cancel(task)
            if task is not None and task_id not in cancelled and self._is_older(task, attempt):
                self.restart(task, f"attempt {attempt} continues on worker {worker.facts.id}")
            if task is not None and task.state is not ASSIGNED:
                task.attempt = max(task.attempt, attempt)
            elif task is not None and attempt > task.attempt:
                used = self._context.numbers_used
                used[task] = max(attempt, used.get(task, 0))
            if (
                task is None
                or task_id in cancelled
                or task.state not in (WAITING, RUNNABLE)
                or not is_latest
                or task.job in self._graph.cancelling
            ):
                self._context.send(worker.facts.id, CancelTask(TaskId(task_id), attempt))
                continue
            self._graph.adopt(task)
            task.worker, task.attempt = worker.facts.id, attempt
            worker.add_attempt(task, self._context.now_s, within=task_id in within)
            self._context.touch(task.job)
            if self._dispatches_eagerly:
                self._eager.assigned(task)

    def _is_older(self, task: TaskNode, attempt: int) -> bool:
        """Whether a task has an attempt that had been given up before another one began."""
        is_known = task.state is ASSIGNED and task not in self.held_reports
        return is_known and 0 < task.attempt < attempt

    def start_eager(self, task: TaskNode) -> bool:
        """Assign a runnable task to the worker to which it was dispatched eagerly, if any.

        Cancel that attempt if it cannot run there. Return whether the task was assigned.
        """
        worker = self._eager.tasks.get(task)
        if worker is None:
            return False
        if self._eager.claim(task, worker):
            self.confirm(task, worker)
            return True
        self._eager.cancel(task)
        return False

    def _current(self, worker: WorkerNode, task_id: str, attempt: int) -> TaskNode | None:
        """Return the task of a running attempt; None if the attempt is superseded."""
        # Unlike the table of all tasks, the worker's is small, so it lies in the caches.
        task = worker.assigned.get((task_id, attempt))
        if task is None or task.state is not ASSIGNED or task.attempt != attempt:
            return self._claim(worker, task_id, attempt) if self._eager.tasks else None
        return task if task.worker == worker.facts.id else None

    def _claim(self, worker: WorkerNode, task_id: str, attempt: int) -> TaskNode | None:
        """Assign an eagerly dispatched task that has started, if its inputs exist."""
        task = self._eager.find(worker, task_id, attempt)
        if task is None or not self._eager.claim(task, worker):
            return None
        self.confirm(task, worker)
        return task

    def reporting_task(self, worker: WorkerNode, task_id: str, attempt: int) -> TaskNode | None:
        """Return the task of a running attempt that reports something.

        If the attempt is superseded, cancel it and return None.
        """
        task = self._current(worker, task_id, attempt)
        if task is None and (early := self._eager.find(worker, task_id, attempt)) is not None:
            self._eager.cancel(early)
        return task

    # --- reports ----------------------------------------------------------------------------------

    def reported(self, worker: WorkerNode, report: TaskReported) -> None:
        """Process the end of an attempt."""
        task = self._current(worker, report.task, report.attempt)
        if task is None:
            self._reported_late(worker, report)
            return
        if (task.spec.id, task.attempt) in worker.recalled:
            self._table.returned.add(task)
        slots = worker.slots_of(task, task.attempt)
        self._note_end(worker, task, report)
        worker.remove_attempt(task, task.attempt)
        self._context.touch(task.job)
        if report.fault is not None and report.fault.reason == RECALLED:
            self._graph.requeue(task)
            return
        worker.reported_at_s = self._context.now_s
        if slots:  # an attempt within another one does not change the credit
            worker.credit.learn(report.run_s)
            if report.fault is None:
                self._lives.learn(task.spec, report.run_s)
        if report.fault is not None:
            self._failed(worker, task, report)
        elif task in self._graph.streams.reading:
            self.held_reports[task] = (worker, report)
        else:
            self._accept(task, worker, report)

    def replay(self, report: TaskReported) -> None:
        """Replay the end of an attempt from the journal; raises CielError."""
        task = self._graph.tasks.get(report.task)
        if task is None:
            return  # its client has taken over the results since
        if report.fault is None:
            self._context.retry_states.pop(report.task, None)
        task.attempt = max(task.attempt, report.attempt)
        if report.fault is not None:
            self._graph.fail(task, *report.fault)
            return
        self._graph.restore_assigned(task)
        self._graph.finish(task, report.published)

    def replay_spawn(self, spec: TaskSpec) -> None:
        """Note that the parent of a new task runs, before the task is added.

        If the journal has an end of the parent, then the parent has run again since. So it may
        create other tasks and objects than before.
        """
        parent = self._graph.tasks.get(spec.parent)
        if parent is not None and parent.state is DONE and spec.id not in self._graph.tasks:
            self._graph.reopen(parent)

    def replay_stored(self, stored: ObjectsStored) -> None:
        """Replay that a worker stored objects that were missing."""
        for ref in stored.refs:
            if ref.id in self._graph.objects.nodes:
                self._graph.publish(ref)

    def replay_failure(self, failed: AttemptFailed) -> None:
        """Replay the failure of an attempt that was retried; raises CielError."""
        task = self._graph.tasks.get(failed.task)
        if task is not None:
            task.attempt = max(task.attempt, failed.attempt)
            self._count(task, failed)

    def _failed(self, worker: WorkerNode, task: TaskNode, report: TaskReported) -> None:
        """Retry a task whose attempt failed, or fail the task."""
        assert report.fault is not None
        if report.fault.reason == "NO_SPACE" and self._may_fit_elsewhere(task, worker):
            where = f"attempt {task.attempt} found no space on worker {worker.facts.id}"
            self._context.record(task, f"{where}, and runs elsewhere: {report.fault.text}")
            self._graph.requeue(task)
            return
        failed = AttemptFailed(task.spec.id, task.attempt, worker.facts.id, report.fault)
        verdict = self._count(task, failed)
        if isinstance(verdict, Retry):
            self._graph.requeue(task)
            return
        details = verdict.details
        if task.spec.id in self._context.histories and not task.spec.needs.retries:
            count = f"(attempt {task.attempt}; see `ciel task explain` for earlier attempts)"
            details = with_text(details, f"{details_text(details)}\n{count}")
        self._give_up(task, verdict.reason, details)

    def _count(self, task: TaskNode, failed: AttemptFailed) -> Retry | GiveUp:
        """Count a failed attempt, and decide whether the task is retried."""
        context, (reason, details) = self._context, failed.fault
        retry_state = context.retry_states.setdefault(task.spec.id, RetryState())
        verdict: Retry | GiveUp
        if failed.worker_died:
            verdict = after_worker_loss(retry_state, failed.worker)
            text = _loss_text(failed.worker, failed.fault.text, failed.attempt)
        else:
            verdict = after_failure(retry_state, task.spec.needs, reason, details)
            where = f"attempt {failed.attempt} failed on worker {failed.worker}"
            text = f"{where}: {reason}: {failed.fault.text}"
        # Without a retry, and without earlier attempts in its history, the task fails with this
        # very fault, so the history need not repeat it.
        is_retried = isinstance(verdict, Retry)
        if is_retried or failed.worker_died or task.spec.id in context.histories:
            context.record(task, text)
        if isinstance(verdict, Retry):
            retry_state.not_before_s = context.now_s + verdict.delay_s
            context.journal.append(failed)
        return verdict

    def _give_up(self, task: TaskNode, reason: str, details: Any) -> None:
        """Fail a task for good."""
        self._graph.fail(task, reason, details)
        fault = TaskFault(reason, details)
        self._context.journal.append(TaskReported(task.spec.id, task.attempt, (), fault, 0.0))

    def _may_fit_elsewhere(self, task: TaskNode, worker: WorkerNode) -> bool:
        """Note that a task found no space on a worker; return whether another one may have it."""
        spec = task.spec
        full = self._context.retry_states.setdefault(spec.id, RetryState()).full_workers
        full.add(worker.facts.id)
        others = [
            other
            for other in self._table.by_id.values()
            if not (other.stores.is_full or other.suspicion or other.facts.id in full)
        ]
        may_fit = not self._graph.fixed.location_of(task) and any(
            other.can_hold(spec.needs) and spec.executor in other.facts.executors
            for other in others
        )
        if not may_fit:
            full.clear()  # a retry, if the task has any, may run anywhere
        return may_fit

    def _accept(self, task: TaskNode, worker: WorkerNode, report: TaskReported) -> None:
        """Accept a report of success: all inputs of the attempt are complete."""
        if self._eager.tasks:
            self._cancel_produced_elsewhere(report.published, task)
        self._graph.finish(task, report.published)
        self._context.journal.append(report)
        if self._context.retry_states:
            self._context.retry_states.pop(task.spec.id, None)
        if self._graph.objects.fixed:
            # A process that an earlier attempt left may be listed under the same id on another
            # worker. Then the process of this attempt must end.
            fixed = [ref for ref in report.published if type(ref) is Fixed]
            self.unlisted.add(worker, fixed)
        nodes = self._graph.objects.nodes
        # An output may have another producer. If that task has failed, the object is an error, so
        # the object table does not list this copy.
        for ref in report.published:
            node = nodes.get(ref.id)
            if node is not None and node.producer is not task:
                self.unlisted.add(worker, (ref,))

    def _cancel_produced_elsewhere(
        self, refs: Iterable[Reference], producer: TaskNode | None
    ) -> None:
        """Cancel eager attempts that wait for objects which were produced elsewhere."""
        for ref in refs:
            node = self._graph.objects.get(ref.id)
            if node is not None and node.producer is not producer:
                self._eager.produced_elsewhere(ref.id)

    def _reported_late(self, worker: WorkerNode, report: TaskReported) -> None:
        """Process the report of a superseded attempt."""
        late = worker.assigned.get((report.task, report.attempt))
        if late is not None and late.state in FINISHED and late.attempt == report.attempt:
            self._note_ending(late, worker, report.run_s, report.exit_status)  # it was cancelled
        self._superseded(worker, report.task, report.attempt)
        self.unlisted.add(worker, report.published, second=True)
        for ref in report.published:
            node = self._graph.objects.nodes.get(ref.id)
            if node is not None and differs_in_content(node.ref, ref):
                self.content_differs(worker, ref.id)

    def content_differs(self, worker: WorkerNode, object_id: ObjectId) -> None:
        """Note that a second result of a task differs from the first."""
        node = self._graph.objects.nodes.get(object_id)
        if node is not None and node.producer is not None:
            made = f"another attempt on worker {worker.facts.id} also produced {object_id}"
            self._context.record(
                node.producer, f"{made}, with different content; the earlier one stays"
            )

    def _superseded(self, worker: WorkerNode, task_id: str, attempt: int) -> None:
        """Note the end of a superseded attempt: a cancelled one, or one of a dead worker."""
        task = worker.assigned.get((task_id, attempt))
        if task is None:
            if (early := self._eager.find(worker, task_id, attempt)) is not None:
                self._eager.ended(early)
            return
        worker.remove_attempt(task, attempt)  # even if the task was forgotten
        self._cancellations.ended(task.spec.job, (worker.facts.id, task_id, attempt))

    def _note_end(self, worker: WorkerNode, task: TaskNode, report: TaskReported) -> None:
        key = (report.task, report.attempt)
        fault = "" if report.fault is None else report.fault.reason
        if fault != RECALLED:
            given_at_s, now_s = worker.given_at_s.get(key), self._context.now_s
            self.timeline.note(worker, task, key[1], given_at_s, now_s, report.run_s, fault)
            self._note_ending(task, worker, report.run_s, report.exit_status)

    def _note_ending(
        self, task: TaskNode, worker: WorkerNode, run_s: float, exit_status: int | None
    ) -> None:
        facts, ran_on = worker.facts, task.job.ran_on
        task.ending = Ending(facts.id, facts.hostname, self._context.now_s, run_s, exit_status)
        ran_on[facts.id] = ran_on.get(facts.id, 0) + 1

    # --- lost workers -----------------------------------------------------------------------------

    def worker_lost(self, worker: WorkerNode, reason: str, *, died: bool) -> None:
        """Run the attempts of a lost worker again.

        `died`: its process is known to have ended, so the loss counts against the tasks that it
        ran.
        """
        self._lost = {t: n for t, n in self._lost.items() if t.state in (WAITING, RUNNABLE)}
        slots_left, ran = worker.facts.slots, Counter[Job]()
        for (_, attempt), task in worker.assigned.items():
            # Only the oldest attempts were running, as far as the master knows.
            slots = worker.slots_of(task, attempt)
            may_have_run = slots_left > 0 or not slots
            slots_left -= slots
            if task.worker != worker.facts.id or task.attempt != attempt:
                continue  # it was cancelled
            if may_have_run:
                ran[task.job] += 1
            self._attempt_lost(worker, task, reason, may_have_run=may_have_run, died=died)
        for job, count in ran.items():
            which = "a task" if count == 1 else f"{count} tasks"
            self._context.note(
                job, f"worker {worker.facts.id}, which ran {which}, was lost: {reason}"
            )
        for task in [task for task, (holder, _) in self.held_reports.items() if holder is worker]:
            del self.held_reports[task]
            self._graph.requeue(task)
        self._copies.lose(worker)
        self._followers.lose(worker)
        self._cancellations.worker_lost(worker.facts.id)

    def _attempt_lost(
        self, worker: WorkerNode, task: TaskNode, reason: str, *, may_have_run: bool, died: bool
    ) -> None:
        """Run an attempt of a lost worker again, or fail its task.

        The death of the worker counts against a task that it ran. If its tasks are brief, the
        first one counts against each that it had: the master does not know yet which have ended.
        """
        context, worker_id, key = self._context, worker.facts.id, (task.spec.id, task.attempt)
        verdict: Retry | GiveUp = Retry(0.0)
        is_known = worker.credit.task_s >= REPORTED_LATE_S or may_kill_workers(
            context.retry_states.get(task.spec.id)
        )
        if died and (may_have_run or not is_known):
            fault = TaskFault("WORKER_LOST", reason)
            failed = AttemptFailed(task.spec.id, task.attempt, worker_id, fault, worker_died=True)
            verdict = self._count(task, failed)
        else:
            context.record(task, _loss_text(worker_id, reason, task.attempt))
        now_s = context.now_s
        given_at_s = worker.given_at_s.get(key, now_s)
        run_s = now_s - given_at_s if may_have_run else 0.0
        self.timeline.note(worker, task, task.attempt, given_at_s, now_s, run_s, "WORKER_LOST")
        if may_have_run:
            self._note_ending(task, worker, run_s, None)
        context.touch(task.job)
        if isinstance(verdict, Retry):
            self._lost[task] = task.attempt
            self._graph.requeue(task)
        else:
            self._give_up(task, verdict.reason, verdict.details)

    # --- streams ----------------------------------------------------------------------------------

    def follow_streams(self) -> None:
        """Stop the readers of broken streams; accept the reports of readers of complete ones."""
        streams = self._graph.streams
        while streams.broken_readers or streams.completed_readers:
            if streams.broken_readers:
                self._stop_reading(*streams.broken_readers.pop())
            else:
                task = streams.completed_readers.pop()
                if task in self.held_reports:
                    self._context.touch(task.job)
                    self._accept(task, *self.held_reports.pop(task))
        for worker, ref in self._copies.take_back():
            node = self._graph.objects.get(ref.id)
            if node is not None and node.is_settled:
                self._graph.publish(ref)
            self.unlisted.add(worker, (ref,))

    def _stop_reading(self, task: TaskNode, attempt: int) -> None:
        if task.state is RUNNABLE or task.state is WAITING:
            self._graph.recheck(task)
        elif task.state is ASSIGNED and task.attempt == attempt:
            why = f"the producer of an input stopped during attempt {task.attempt}"
            self.restart(task, f"{why}: the task runs again")
            self._drop_held_report(task)

    def followers_of_broken(self) -> Iterator[tuple[WorkerNode, ObjectId]]:
        """Yield the workers that still copy a stream that broke, with the object."""
        return self._followers.of_broken()

    # --- stopping ---------------------------------------------------------------------------------

    def stop(self, task: TaskNode, *, aborts: bool = False) -> AttemptKey | None:
        """Cancel the attempt of a task.

        If it still runs, return its key: the worker will report its end. `aborts`: the attempt
        counts as failed.
        """
        if task in self.held_reports or task.worker is None:
            return None
        self._context.send(task.worker, CancelTask(task.spec.id, task.attempt, aborts))
        return (task.worker, task.spec.id, task.attempt)

    def restart(self, task: TaskNode, why: str) -> None:
        """Stop the attempt of a task, which runs again."""
        self._context.touch(task.job)
        self._context.record(task, why)
        self.stop(task)
        self._graph.requeue(task)

    def hand_over(self, worker: WorkerNode, why: str) -> None:
        """Stop all attempts on a worker; their tasks run again."""
        held = [task for task, (holder, _) in self.held_reports.items() if holder is worker]
        for task in dict.fromkeys([*worker.assigned.values(), *held]):
            if task.state is ASSIGNED and task.worker == worker.facts.id:
                self._learn_unfinished(worker, task)
                self.restart(task, f"{why} during attempt {task.attempt}: the task runs again")
                self._drop_held_report(task)

    def _learn_unfinished(self, worker: WorkerNode, task: TaskNode) -> None:
        """Note how long a task has run that a worker hands over: it needs a longer life."""
        key = (task.spec.id, task.attempt)
        given_at_s = worker.given_at_s.get(key)
        if given_at_s is not None and task in worker.running_tasks():
            self._lives.learn_at_least(task.spec, self._context.now_s - given_at_s)

    def cancel(self, task: TaskNode, reason: str) -> None:
        """Cancel a task, and fail the tasks that need it; its job continues.

        Raises CannotCancelTaskError if the task has ended.
        """
        if task.state in FINISHED:
            raise CannotCancelTaskError(label(task), str(task.state))
        if task.state is ASSIGNED:
            self.stop(task)
        self._context.fail(task, "CANCELLED", reason)
        self._drop_held_report(task)

    def stop_job(self, job: Job, reason: str) -> Iterator[AttemptKey | None]:
        """Cancel all attempts of a job and fail their tasks.

        Yield, for each attempt, its key if the worker will report its end, or None.
        """
        yield from self._eager.cancel_job(job)
        for worker in list(self._table.by_id.values()):
            for (_, attempt), task in list(worker.assigned.items()):
                is_current = (task.worker, task.attempt) == (worker.facts.id, attempt)
                if task.job is job and is_current and task.state is ASSIGNED:
                    stopped = self.stop(task)
                    self._graph.fail(task, "CANCELLED", reason)
                    yield stopped
        for task in [task for task in self.held_reports if task.job is job]:
            if task.state is ASSIGNED:
                self._graph.fail(task, "CANCELLED", reason)
            self._drop_held_report(task)
            yield None

    def stop_unneeded(self) -> None:
        """Cancel the attempts that should not run any more.

        These attempts read broken streams, are not needed, or are eager and cannot start.
        """
        graph = self._graph
        self.follow_streams()
        while graph.unneeded:
            unneeded, graph.unneeded = graph.unneeded, []
            for task in unneeded:
                if task.worker is not None and not graph.is_needed(task):
                    self.stop(task)
                    graph.deactivate(task)
                    self._drop_held_report(task)
            self.follow_streams()
        self._eager.check()

    def _drop_held_report(self, task: TaskNode) -> None:
        """Discard a held report, and delete the objects that the attempt produced."""
        if task in self.held_reports:
            worker, report = self.held_reports.pop(task)
            self.unlisted.add(worker, report.published)

    # --- objects ----------------------------------------------------------------------------------

    def stored(
        self, worker: WorkerNode, refs: Iterable[Reference], *, kept: bool, idle: bool
    ) -> None:
        """Note that a worker stores objects, or (`Tombstone`) does not store them any more.

        The object table lists copies of a growing object once its producer has completed it.
        `kept`: the worker stored the objects before it joined. `idle`: no client will name them.

        The journal gets the objects that were missing. They can be results, of which clients learn
        now, and no report may ever name them: their attempt may have ended with its worker.
        """
        gone = [ref.id for ref in refs if type(ref) is Tombstone]
        for object_id in gone:  # it was damaged
            lose(self._graph, object_id, worker.facts.netloc)
        refs = [ref for ref in refs if type(ref) is not Tombstone] if gone else refs
        known = self._copies.put_aside(worker, refs) if self._graph.objects.growing else refs
        if self._eager.tasks:
            self._cancel_produced_elsewhere(known, None)
        found = []
        for ref in known:
            node = self._graph.objects.get(ref.id)
            if node is None or type(ref) is Fixed:  # a process that was given up is not used again
                continue
            if not (kept and has_copy_elsewhere(node, worker.facts.netloc)):
                if node.ref is None:
                    found.append(ref)
                self._graph.publish(ref)
                if kept:  # it may have been dropped while the worker was away
                    self._graph.retention.drop_if_unused(ref.id, node)
        if found:  # no report may have named them, or not since they were lost
            self._context.journal.append(ObjectsStored(tuple(found)))
        self.unlisted.add(worker, known, idle=idle)

    def inputs_lost(self, worker: WorkerNode, message: InputsLost) -> None:
        """Retry a task whose attempt could not get its inputs, or fail the task."""
        task = self._current(worker, message.task, message.attempt)
        if task is None:
            self._superseded(worker, message.task, message.attempt)
            return
        context = self._context
        worker.remove_attempt(task, task.attempt)
        context.touch(task.job)
        context.record(task, f"attempt {task.attempt} could not get its inputs: {message.details}")
        retry_state = context.retry_states.setdefault(task.spec.id, RetryState())
        unreached = self._table.unreached.get(worker, {})
        changed = [
            # The object is not lost. The next attempt runs elsewhere, see `Reach`.
            _is_first(retry_state, worker, object_id)
            if place in unreached
            else self._lose_copy(worker, object_id, place)
            for object_id, place in message.losses
        ]
        if not any(changed):
            # The object table still lists the copies that the worker could not read. They may
            # become readable, so retry a few times.
            retry_state.missing_inputs += 1
            retry_state.not_before_s = context.now_s + BACK_OFF_FIRST_S
        retry_state.input_losses += 1
        too_often = retry_state.input_losses > INPUT_LOSSES_MAX * (len(task.spec.inputs) + 1)
        if too_often or retry_state.missing_inputs > max(3, task.spec.needs.retries):
            if message.lacks_room:
                about = f"its inputs do not fit into the store of worker {worker.facts.id}"
                advice = "give the worker a larger store, or end jobs whose results it retains"
                self._give_up(task, "NO_SPACE", f"{about}: {message.details}; {advice}")
            else:
                self._give_up(task, "MISSING_INPUT", message.details)
        else:
            self._graph.requeue(task)

    def _lose_copy(self, reader: WorkerNode, object_id: ObjectId, place: str) -> bool:
        """Note that a reader could not get an object from the worker at `place`.

        Return whether the object table changes, or may have changed, so that another attempt can
        succeed. If False, the next attempt would try the same copies, and should be delayed.

        The table no longer lists the copy. If the worker has it after all, the master orders its
        deletion, unless the object cannot be recomputed, or is being recomputed there.
        """
        node = self._graph.objects.get(object_id)
        ref = None if node is None else node.ref
        if node is None or ref is None:
            return True
        holder = self._table.at(place)
        places = locations_of(ref)
        if place not in places:  # no copy is listed there; newer copies may exist
            return not places or holder is not None
        if place in self._table.suspects:
            # It may reconnect, or be started again: the task waits for that, see `Dispatcher`.
            return True
        if place in self._table.awaited.values():
            return True  # it may still return to this master, which assigns no task until then
        if holder is not None and holder is not reader and node.producer is None:
            return False
        lose(self._graph, object_id, place)
        if holder is not None:
            self.unlisted.add(holder, (ref,))
        return True


def _is_first(retry_state: RetryState, worker: WorkerNode, object_id: ObjectId) -> bool:
    """Note that a worker could not reach an object; return whether it is the first time."""
    workers = retry_state.unfetched.setdefault(object_id, set())
    is_first = worker.facts.id not in workers
    workers.add(worker.facts.id)
    return is_first


def _loss_text(worker: str, reason: str, attempt: int) -> str:
    return f"worker {worker} was lost ({reason}) during attempt {attempt}"
