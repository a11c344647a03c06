"""The jobs of a master: their table, their states, and the messages to clients about them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator

from ciel.core.errors import CielError, UnknownJobError
from ciel.core.events import (
    DescribeJob,
    JobChanged,
    JobPrinted,
    ObjectSettled,
    SubmitJob,
    TaskPrinted,
)
from ciel.core.history import with_reason
from ciel.core.ids import JobId, ObjectId
from ciel.core.jobs import (
    ENDED,
    JOB_TRANSITIONS,
    Job,
    JobSpec,
    JobState,
    Predecessor,
    is_selector,
    summarise,
)
from ciel.core.refs import Reference, Stream
from ciel.core.tasks import TaskState
from ciel.master.state.context import Context
from ciel.master.state.placement.replication import Replication
from ciel.master.state.subscriptions import Subscriptions
from ciel.master.state.workers import WorkerNode

PROGRESS_INTERVAL_S = 0.2
JOBS_MAX = 100_000


def unmet_text(predecessor: Predecessor, earlier: Job) -> str:
    """Explain why a job cannot start after an earlier job that has ended; return "" if it can."""
    if predecessor.in_any_way or earlier.state is JobState.COMPLETED:
        return ""
    return f"job {earlier.number}, which has to complete first, is {earlier.state}"


class Jobs:
    """All jobs, by id, with their state transitions and the clients that watch them."""

    def __init__(self, context: Context, replication: Replication) -> None:
        self._context = context
        self._replication = replication
        self.by_id: dict[str, Job] = {}
        self.removed: dict[str, Job] = {}  # removed jobs, some of whose tasks are still known
        self.count = 0  # of all jobs that ever existed
        self.totals = dict.fromkeys(JobState, 0)
        self.task_totals = dict.fromkeys(TaskState, 0)  # of all jobs in the table
        self.ended: list[Job] = []  # emptied by the owner
        self._ended_at_s: OrderedDict[str, float] = OrderedDict()  # the oldest end first
        self.subscriptions = Subscriptions()
        self._released_later: dict[ObjectId, Job] = {}  # released when running tasks produce them
        self._released: list[tuple[Job, ObjectId]] = []
        self.unmet: list[Job] = []  # jobs that can never start; emptied by the owner
        self._followers: dict[JobId, list[Job]] = {}  # by an unfinished job: jobs that wait for it
        self._progress_due: dict[str, Job] = {}
        self._progress_at_s = 0.0

    def find(self, job_id: str) -> Job:
        """Return a job; raises UnknownJobError."""
        job = self.by_id.get(job_id)
        if job is None:
            raise UnknownJobError(job_id)
        return job

    def newest_first(self) -> Iterator[Job]:
        """Iterate over the jobs, the newest first."""
        return reversed(self.by_id.values())

    # --- states -----------------------------------------------------------------------------------

    def create(self, spec: JobSpec) -> Job:
        """Add a job; raises CielError."""
        if is_selector(spec.id):
            raise CielError(f"a job cannot have the id {spec.id}: commands use it to select jobs")
        if spec.id in self.removed:
            raise CielError(f"the former job {spec.id} is still being removed; try again soon")
        if len(self.by_id) >= JOBS_MAX:
            raise CielError(f"the cluster has {JOBS_MAX} jobs already; remove some")
        self.count += 1
        job = Job(spec, self.count, self._context.now_s, self.task_totals)
        job.history.record(self._context.now_s, "created")
        self.by_id[spec.id] = job
        self.totals[job.state] += 1
        self._context.journal.append(SubmitJob(spec))
        if spec.after:
            self._hold(job)
        return job

    def _hold(self, job: Job) -> None:
        """Postpone what a new job demands until its predecessors have ended."""
        job.postponed = {}
        for predecessor in job.spec.after:
            earlier = self.by_id.get(predecessor.job)
            if earlier is None:
                continue  # a removed job has ended
            job.awaited[predecessor.job] = predecessor
            if earlier.state not in ENDED:
                self._followers.setdefault(predecessor.job, []).append(job)
        for predecessor in list(job.awaited.values()):
            earlier = self.by_id[predecessor.job]
            if earlier.state in ENDED:
                self._predecessor_ended(earlier, job)
        self._let_start(job)

    def _predecessor_ended(self, earlier: Job, job: Job) -> None:
        predecessor = job.awaited.pop(earlier.spec.id)
        unmet = unmet_text(predecessor, earlier)
        if unmet and not job.unmet:
            job.unmet = unmet
            self.unmet.append(job)

    def _let_start(self, job: Job) -> None:
        """Let a job demand its objects, unless it waits for predecessors or one of them failed."""
        if job.unmet:
            return
        if job.awaited:
            earlier = [f"job {self.by_id[job_id].number}" for job_id in job.awaited]
            job.reason = f"waits for the end of {', '.join(earlier)}"
            return
        job.reason = ""
        postponed, job.postponed = job.postponed, None
        self._context.graph.demand(reversed(postponed or ()))
        self._context.touch(job)

    def move(self, job: Job, state: JobState) -> None:
        """Change the state of a job; raises CielError if the transition is not allowed."""
        if state not in JOB_TRANSITIONS[job.state]:
            raise CielError(f"job {job.spec.id} is {job.state} and cannot become {state}")
        self.totals[job.state] -= 1
        self.totals[state] += 1
        job.state = state

    def end(self, job: Job, state: JobState, reason: str) -> None:
        """End a job, all of whose tasks have ended or are not needed."""
        context, job_id = self._context, job.spec.id
        self.move(job, state)
        job.reason = reason
        if job.spec.after:
            job.postponed, job.unmet = None, ""
            job.awaited.clear()
        job.ended_at_s = context.now_s
        job.history.record(context.now_s, with_reason(str(state), reason))
        if context.graph.objects.fixed:
            context.graph.fixed.job_ended(job)
        self._replication.job_ended(job)
        self.subscriptions.disown(job_id)
        self._progress_due.pop(job_id, None)
        if self._released_later:
            later = self._released_later.items()
            self._released_later = {key: other for key, other in later if other is not job}
        if context.graph.settled:
            self.announce_settled()
        self.announce(job)
        for worker in context.table.by_id.values() if job.spec.context is not None else ():
            if job_id in worker.described:
                worker.described.discard(job_id)
                context.send(worker.facts.id, DescribeJob(job_id, None))
        self.ended.append(job)
        self._ended_at_s.pop(job_id, None)
        self._ended_at_s[job_id] = context.now_s
        context.journal.append(JobChanged(summarise(job)))
        for follower in self._followers.pop(job_id, ()):
            if job_id in follower.awaited:  # else it has ended itself
                self._predecessor_ended(job, follower)
                self._let_start(follower)

    def take_ended_before(self, time_s: float) -> Iterator[Job]:
        """Yield the jobs that ended before a time; each end counts once."""
        while self._ended_at_s:
            job_id, ended_at_s = self._ended_at_s.popitem(last=False)
            if ended_at_s >= time_s:
                self._ended_at_s[job_id] = ended_at_s
                self._ended_at_s.move_to_end(job_id, last=False)
                return
            if self.by_id[job_id].state in ENDED:  # else it was retried
                yield self.by_id[job_id]

    def remove(self, job: Job) -> None:
        """Remove an ended job from the table; its tasks are forgotten later."""
        job_id = job.spec.id
        del self.by_id[job_id]
        self._ended_at_s.pop(job_id, None)
        self.removed[job_id] = job
        self.totals[job.state] -= 1
        self.subscriptions.disown(job_id)
        self.subscriptions.remove_watchers(job_id)
        self._context.touched.pop(job_id, None)

    def why_too_early(self, job: Job) -> str:
        """Explain which predecessor forbids that a job starts now; return "" if none does."""
        for predecessor in job.spec.after:
            earlier = self.by_id.get(predecessor.job)
            if earlier is None:
                continue
            if earlier.state not in ENDED:
                return f"job {earlier.number} has to end first"
            if unmet := unmet_text(predecessor, earlier):
                return f"{unmet}: retry that job first"
        return ""

    # --- announcements ----------------------------------------------------------------------------

    def announce(self, job: Job) -> None:
        """Send the state of a job to its watchers."""
        watchers = self.subscriptions.state_watchers(job.spec.id)
        if watchers:
            message = JobChanged(summarise(job))
            self._context.outbox += [(client, message) for client in watchers]
        if job.state in ENDED:
            self.subscriptions.remove_watchers(job.spec.id)

    def announce_later(self, job: Job) -> None:
        """Send the state of a job to its watchers with the next report of progress."""
        if self.subscriptions.of(job.spec.id):
            self._progress_due[job.spec.id] = job

    def announce_progress(self) -> None:
        """Send reports of progress, if they are due."""
        now_s = self._context.now_s
        if self._progress_due and now_s >= self._progress_at_s + PROGRESS_INTERVAL_S:
            self._progress_at_s = now_s
            for job in self._progress_due.values():
                self.announce(job)
            self._progress_due.clear()

    @property
    def progress_due_s(self) -> float | None:
        """The time at which `announce_progress` will next send something; None for never."""
        return self._progress_at_s + PROGRESS_INTERVAL_S if self._progress_due else None

    def announce_growing(self, refs: Iterable[Reference]) -> None:
        """Announce to clients the wanted objects that can be read while they grow."""
        nodes, outbox = self._context.graph.objects.nodes, self._context.outbox
        for ref in refs:
            node = nodes.get(ref.id)
            known = None if node is None else node.ref
            if node is not None and type(known) is Stream:
                for job in node.wanters:
                    news = ObjectSettled(job.spec.id, known)
                    outbox += [(client, news) for client in self.subscriptions.of(job.spec.id)]

    def announce_settled(self) -> None:
        """Announce to clients the wanted objects that exist or have failed."""
        context = self._context
        if not context.graph.settled:
            return
        settled, context.graph.settled = context.graph.settled, []
        nodes, outbox = context.graph.objects.nodes, context.outbox
        for object_id in settled:
            node = nodes.get(object_id)
            if node is None or not node.is_settled or (ref := node.ref) is None:
                continue
            for job in node.wanters:
                job_id = job.spec.id
                context.touched[job_id] = job
                for client in self.subscriptions.of(job_id):
                    outbox.append((client, ObjectSettled(job_id, ref)))
        if self._released_later:
            for object_id in settled:
                owner = self._released_later.pop(object_id, None)
                if owner is not None:
                    self._released.append((owner, object_id))

    def release_later(self, job: Job, object_id: ObjectId) -> None:
        """Release an object when a running task has produced it."""
        self._released_later[object_id] = job

    def is_given_up(self, object_id: ObjectId) -> bool:
        """Whether `release_later` was called for an object that does not exist yet."""
        return object_id in self._released_later

    def take_released(self) -> Iterator[tuple[Job, ObjectId]]:
        """Yield the objects of `release_later` that exist now."""
        while self._released:
            yield self._released.pop(0)

    def pass_on_output(self, worker: WorkerNode, printed: TaskPrinted) -> None:
        """Send the lines that a task has printed to subscribed clients.

        Clients get these lines before any consequence of the end of the task.
        """
        task = self._context.graph.tasks.get(printed.task)
        if task is None:
            return
        spec = task.spec
        number = spec.ordinal + 1 if spec.parent == spec.job else 0
        about = (spec.job, spec.id, spec.name, number, worker.facts.netloc)
        to = self.subscriptions.of if printed.is_notice else self.subscriptions.output_watchers
        for client in to(spec.job):
            self._context.send(client, JobPrinted(*about, *printed[2:]))
