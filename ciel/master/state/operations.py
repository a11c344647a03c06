"""Runs operations on all tasks of a job, in slices (see `bulk`).

They cancel, fail, remove and retry a job, release its results, and check all results at its end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

from ciel.core.errors import CannotRetryError, CannotRetryTaskError, JobNotEndedError
from ciel.core.events import CancelJob, JobChanged, ObjectSettled
from ciel.core.graph.endings import OBJECTS_PER_STEP, failed_results, saw_error, stuck
from ciel.core.graph.failures import label
from ciel.core.graph.job_retry import cancel, end_retry, retry_tasks
from ciel.core.graph.nodes import TaskNode
from ciel.core.graph.removal import hand_over, remove
from ciel.core.history import with_reason
from ciel.core.ids import ObjectId
from ciel.core.jobs import ENDED, Job, JobState, summarise
from ciel.core.refs import Failure, Stream
from ciel.core.tasks import ACTIVE, TaskState
from ciel.master.state.bulk import BulkOperations
from ciel.master.state.cancellations import Cancellations
from ciel.master.state.context import Context
from ciel.master.state.jobs import Jobs
from ciel.master.state.retention import Kept
from ciel.master.state.workers import AttemptKey

StopJob = Callable[[Job, str], Iterator[AttemptKey | None]]


def too_many_text(job: Job) -> str:
    """Explain why a job of which too many tasks have failed is cancelled."""
    failed, allowed = job.counts[TaskState.FAILED], job.spec.max_fails
    return f"{failed} tasks failed, and {allowed} may (max-fails)"


class JobOperations:
    """Starts operations on jobs, and decides at the end of each tick which jobs have ended."""

    def __init__(
        self,
        context: Context,
        jobs: Jobs,
        bulk: BulkOperations,
        cancellations: Cancellations,
        kept: dict[ObjectId, Kept],
        settle_children: Callable[[], None],
        stop_job: StopJob,
    ) -> None:
        """`kept`: objects that stay when their jobs are removed.

        `settle_children` assigns or cancels the inline children that are not decided yet.
        `stop_job` cancels all attempts of a job for a reason, and yields the keys of attempts whose
        end workers will report, or None.
        """
        self._context = context
        self._graph = context.graph
        self._jobs = jobs
        self._bulk = bulk
        self._cancellations = cancellations
        self._kept = kept
        self._settle_children = settle_children
        self._stop_job = stop_job
        self._judged: set[Job] = set()  # jobs that an operation is finishing or retrying

    def is_judged(self, job: Job) -> bool:
        """Return whether a job is being finished or retried."""
        return job in self._judged

    # --- the end of jobs --------------------------------------------------------------------------

    def judge_jobs(self, *, awaits_workers: bool = False) -> None:
        """End the touched jobs that are complete or stuck, and announce the progress of others.

        `awaits_workers`: the journal names results of which no worker has said yet whether they
        still exist. Until then, active jobs do not end.
        """
        context = self._context
        touched, context.touched = context.touched, {}
        for job in touched.values():
            if job.state is JobState.ACTIVE:
                if awaits_workers:
                    context.touch(job)
                elif 0 <= job.spec.max_fails < job.counts[TaskState.FAILED]:
                    self.cancel(job, too_many_text(job))
                elif job.awaited or job.unmet:
                    self._jobs.announce_later(job)
                elif job not in self._judged:  # otherwise its operation calls `touch` again
                    self._judge(job)
            elif job.state is JobState.CANCELLING:
                if job not in self._graph.cancelling and not self._cancellations.is_pending(job):
                    self._jobs.end(job, JobState.CANCELLED, job.reason)
            elif job.state in ENDED and not job.unsettled:
                # An object that was lost after the end of the job exists again.
                self._jobs.announce(job)
        while self._jobs.unmet:  # a cancelled job may have followers itself
            job = self._jobs.unmet.pop()
            self.cancel(job, job.unmet)
        self._jobs.announce_progress()

    def _judge(self, job: Job) -> None:
        if not job.open and job.unsettled == 0:
            self._bulk.start(self._finishing(job))
        elif not job.open and not job.is_busy:
            if self._graph.has_more:
                self._context.touch(job)  # deferred work may continue the job
            else:
                self._fail_stuck(job)
        else:
            self._jobs.announce_later(job)

    def _fail_stuck(self, job: Job) -> None:
        """Fail a job that lacks objects although none of its tasks runs or can run."""
        missing = stuck(self._graph, job)
        if not missing:
            return  # the job will be touched again
        text = f"no task will produce {', '.join(missing[:3])}"
        for object_id in missing:
            details = f"no task of the job produces {object_id}"
            self._graph.publish(Failure(object_id, "NEVER_MADE", details))
        if job.is_busy:  # tasks that see errors can run now
            self._context.touch(job)
        elif job.unsettled:
            self.fail(job, text)
        else:
            self._context.touch(job)
            self._jobs.announce_settled()
            self._bulk.start(self._finishing(job))

    def _finishing(self, job: Job) -> Iterator[None]:
        self._judged.add(job)
        failed = yield from failed_results(self._graph, job)
        self._judged.discard(job)
        if job.state is not JobState.ACTIVE:
            return  # it was cancelled meanwhile
        if job.unsettled:
            self._context.touch(job)  # a result was lost meanwhile
        elif failed:
            ref = self._graph.objects.reference(failed[0])
            more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
            why = f"{ref.reason}: {ref.text}" if isinstance(ref, Failure) else "a result failed"
            self._jobs.end(job, JobState.FAILED, f"{why}{more}")
        else:
            self._jobs.end(job, JobState.COMPLETED, "")

    # --- cancelling -------------------------------------------------------------------------------

    def fail(self, job: Job, reason: str) -> None:
        """End a job as failed; does nothing if it has ended."""
        self._end_by_force(job, JobState.FAILED, reason)

    def cancel(self, job: Job, reason: str) -> None:
        """Cancel a job; does nothing if it has ended."""
        if job.state is JobState.ACTIVE:
            job.open = False
            self._context.journal.append(CancelJob(job.spec.id, reason))
            job.history.record(self._context.now_s, with_reason("being cancelled", reason))
        self._end_by_force(job, JobState.CANCELLED, reason)

    def _end_by_force(self, job: Job, state: JobState, reason: str) -> None:
        if job.state is JobState.ACTIVE:
            self._jobs.move(job, JobState.CANCELLING)
            self._bulk.start(self._ending_by_force(job, state, reason))

    def end_now(self, job: Job, state: JobState, reason: str) -> None:
        """Cancel or fail a job with few tasks or without attempts, at once."""
        job.open = job.open and state is not JobState.CANCELLED
        self._jobs.move(job, JobState.CANCELLING)
        deque(self._ending_by_force(job, state, reason), maxlen=0)

    def undo(self, job: Job, reason: str) -> None:
        """Cancel and remove a new job with few tasks, at once."""
        self.end_now(job, JobState.CANCELLED, reason)
        self.remove(job)

    def _ending_by_force(self, job: Job, state: JobState, reason: str) -> Iterator[None]:
        """Cancel the tasks of a job, then end it.

        A cancelled job ends when its programs have ended.
        """
        job.reason = reason
        yield from self._cancelling(job, reason)
        if state is JobState.FAILED or not self._cancellations.is_pending(job):
            self._jobs.end(job, state, reason)

    def _cancelling(self, job: Job, reason: str) -> Iterator[None]:
        self._settle_children()
        job.is_cancelled = True
        self._graph.cancelling.add(job)
        for stopped in self._stop_job(job, reason):
            if stopped is not None:
                self._cancellations.add(job, stopped)
            self._graph.steps_left -= 1
            if self._graph.steps_left < 0:
                yield
        yield from cancel(self._graph, job, reason)

    # --- removing ---------------------------------------------------------------------------------

    def remove(self, job: Job) -> None:
        """Forget an ended job and its results; raises JobNotEndedError."""
        if job.state not in ENDED:
            raise JobNotEndedError(job.number)
        self._jobs.remove(job)
        self._bulk.start(self._removal(job))

    def _removal(self, job: Job) -> Iterator[None]:
        if any(job.counts[state] for state in ACTIVE):  # lost objects are being recomputed
            yield from self._cancelling(job, "its job was removed")
        self._graph.cancelling.add(job)
        records = (self._context.histories, self._context.retry_states)
        yield from self._delete_all(remove(self._graph, job, self._kept, records))
        self._graph.cancelling.discard(job)
        for state, count in job.counts.items():  # tasks that were forgotten at a handover
            self._jobs.task_totals[state] -= count
        del self._jobs.removed[job.spec.id]

    def hand_over(self, job: Job, objects: Sequence[ObjectId]) -> None:
        """Forget objects of a job that its client will not name again.

        Forget also the tasks that only these objects need.
        """
        operation = hand_over(self._graph, job, objects, self._context.histories)
        self._bulk.start(self._delete_all(operation))

    def hand_over_released(self) -> None:
        """Hand over the objects that their client released before they existed."""
        for job, object_id in self._jobs.take_released():
            self.hand_over(job, (object_id,))

    def _delete_all(self, operation: Iterable[dict[str, list[ObjectId]]]) -> Iterator[None]:
        """Order workers to delete the objects that an operation yields, in slices."""
        for deletions in operation:
            self._context.delete(deletions)
            if self._graph.steps_left < 0:
                yield

    # --- retrying ---------------------------------------------------------------------------------

    def retry(self, job: Job) -> None:
        """Run the failed and cancelled tasks of an ended job again.

        Raises CielError if that is impossible. In a large job this may be detected later; then the
        job ends again as before.
        """
        if job.state is not JobState.CANCELLED and (
            job.state is not JobState.FAILED or job.is_cancelled
        ):
            raise CannotRetryError(job.number, f"it is {job.state}, and no task failed")
        self._retry(job)

    def retry_task(self, task: TaskNode) -> None:
        """Run a failed or cancelled task again, with the failed tasks that it needs.

        Raises CielError if that is impossible. An ended job becomes active again.
        """
        job = task.job
        if task.state not in (TaskState.FAILED, TaskState.CANCELLED):
            raise CannotRetryTaskError(label(task), f"it is {task.state}")
        if job.state is JobState.CANCELLING or (job.state is JobState.FAILED and job.is_cancelled):
            raise CannotRetryTaskError(label(task), f"its job is {job.state}: {job.reason}")
        if job.state is JobState.ACTIVE and not job.spec.detached:
            why = "its job still runs, and its client was notified of the failure already"
            raise CannotRetryTaskError(label(task), why)
        if job in self._judged:
            raise CannotRetryTaskError(label(task), "its job is about to end; try again soon")
        if self._context.retry_states.pop(task.spec.id, None) is not None:
            self._record_retry(task)
        self._retry(job, task.outputs)

    def _retry(self, job: Job, objects: Sequence[ObjectId] | None = None) -> None:
        if why := self._jobs.why_too_early(job):
            raise CannotRetryError(job.number, why)
        refused: list[CannotRetryError] = []
        self._bulk.start(self._retrying(job, refused, objects))
        if refused:
            raise refused[0]
        job.history.record(self._context.now_s, "retried")

    def _retrying(
        self,
        job: Job,
        refused: list[CannotRetryError],
        objects: Sequence[ObjectId] | None = None,
    ) -> Iterator[None]:
        """Retry a job's failed tasks, or only the failed tasks on which `objects` depend."""
        jobs = self._jobs
        state, before = job.state, (job.reason, job.ended_at_s, job.is_cancelled)
        if state is not JobState.ACTIVE:
            jobs.move(job, JobState.ACTIVE)
        job.reason, job.ended_at_s = "", None
        self._judged.add(job)
        is_late = False
        operation: Iterator[object]
        operation = (
            self._retry_all(job) if objects is None else retry_tasks(self._graph, job, objects)
        )
        try:
            while next(operation, True) is None:
                is_late = True
                yield
                if job.state is not JobState.ACTIVE:  # it was cancelled meanwhile
                    return
        except CannotRetryError as error:
            refused.append(error)
            if state is JobState.CANCELLED:
                jobs.move(job, JobState.CANCELLING)
            jobs.move(job, state)
            job.reason, job.ended_at_s, job.is_cancelled = before
            if is_late:
                job.reason = f"{job.reason} ({error})"
                self._context.journal.append(JobChanged(summarise(job)))  # the retry is in it
                jobs.announce(job)
        finally:
            self._judged.discard(job)
            end_retry(self._graph, job)
        self._context.touch(job)

    def _retry_all(self, job: Job) -> Generator[None, None, None]:
        graph, retry_states = self._graph, self._context.retry_states
        if seer := (yield from saw_error(graph, job)):
            raise CannotRetryError(job.number, f"its task {seer} computed its result from an error")
        for place, task_id in enumerate(job.tasks):
            if retry_states.pop(task_id, None) is not None:
                self._record_retry(graph.tasks[task_id])
            if place % OBJECTS_PER_STEP == 0:
                graph.steps_left -= 1
                if graph.steps_left < 0:
                    yield
        if not (yield from retry_tasks(graph, job)):
            raise CannotRetryError(job.number, "none of its tasks failed")

    def _record_retry(self, task: TaskNode) -> None:
        """Record a retry in the history of a task, with the failure before it."""
        refs = [self._graph.objects.reference(object_id) for object_id in task.spec.outputs]
        failure = next((ref for ref in refs if isinstance(ref, Failure)), None)
        if failure is not None and task.spec.id not in self._context.histories:
            text = f"attempt {task.attempt} failed: {failure.reason}: {failure.text}"
            self._context.record(task, text)
        self._context.record(task, "its user retried it")

    # --- watching ---------------------------------------------------------------------------------

    def watch(self, client: str, job: Job, *, prints: bool) -> None:
        """Subscribe a client to a job. `prints`: also to the output of its tasks."""
        self._jobs.subscriptions.watch(client, job, prints=prints)
        self._bulk.start(self._catching_up(client, job))

    def _catching_up(self, client: str, job: Job) -> Iterator[None]:
        """Send a client the finished and growing results of a job, and then the job's state.

        Do so even if the job ends meanwhile.
        """
        self._jobs.subscriptions.catch_up(client, job.spec.id)
        nodes = self._graph.objects.nodes
        for object_id in list(job.wanted):
            self._graph.steps_left -= 1
            if self._graph.steps_left < 0:
                yield
            node = nodes.get(object_id)
            ref = None if node is None else node.ref
            if node is not None and ref is not None and (node.is_settled or type(ref) is Stream):
                self._context.send(client, ObjectSettled(job.spec.id, ref))
        self._jobs.subscriptions.caught_up(client, job.spec.id)
        self._context.send(client, JobChanged(summarise(job)))
