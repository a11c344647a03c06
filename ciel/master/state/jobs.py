"""The jobs of a master: what clients say of them, how they end, and who is told.

Half of the master's machine (`machine` has the other: workers, and turns). Messages pile up in
`outbox`; what has to be looked at when a turn ends is noted in `_touched`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ciel.core.early_outputs import introduce
from ciel.core.endings import stuck
from ciel.core.errors import (
    CannotRetryError,
    CannotRetryTaskError,
    CielError,
    JobNotEndedError,
    UnknownJobError,
)
from ciel.core.events import (
    CLIENT_GRACE_S,
    AddTask,
    CancelJob,
    Change,
    CloseJob,
    DescribeJob,
    DropObjects,
    JobChanged,
    JobPrinted,
    Message,
    ObjectSettled,
    ReleaseObjects,
    RequestRefused,
    SubmitJob,
    TaskPrinted,
    TaskReported,
    WantObjects,
    WatchJob,
)
from ciel.core.failures import label
from ciel.core.graph import TaskGraph
from ciel.core.ids import JobId, ObjectId
from ciel.core.jobs import (
    ENDED,
    JOB_TRANSITIONS,
    Job,
    JobSpec,
    JobState,
    is_selector,
    summarise,
)
from ciel.core.nodes import TaskNode
from ciel.core.refs import Failure, Reference, Stream, Value, is_unlike
from ciel.core.removal import hand_over, never_named
from ciel.core.retries import (
    Blame,
)
from ciel.core.task_history import Story
from ciel.core.tasks import TaskSpec, TaskState, check_task
from ciel.master.state.bulk import BulkOperations
from ciel.master.state.operations import JobOperations
from ciel.master.state.subscriptions import Subscriptions
from ciel.master.state.workers import Call, WorkerNode

if TYPE_CHECKING:
    from ciel.master.state.retention import Kept

PROGRESS_INTERVAL_S = 0.2
JOBS_MAX = 100_000


class JobDesk(JobOperations):
    """All jobs, the graph of their tasks, and the clients that own and watch them."""

    def __init__(self) -> None:
        self.graph = TaskGraph()
        self.bulk = BulkOperations(self.graph)
        self.jobs: dict[str, Job] = {}
        self.workers: dict[str, WorkerNode] = {}
        self.outbox: list[tuple[str, Message]] = []
        self.journal: list[Message] = []  # what a journal has to keep, in order
        self.kept: dict[ObjectId, Kept] = {}  # whatever becomes of jobs
        self.stories: dict[str, Story] = {}
        self.blame: dict[str, Blame] = {}
        self.job_count = 0  # of all jobs there ever were
        self.job_totals = dict.fromkeys(JobState, 0)
        self.task_totals = dict.fromkeys(TaskState, 0)  # of all jobs that are there
        self.ended: list[Job] = []  # jobs that ended, for those who wait for that
        self._subscriptions = Subscriptions()
        self._called_off: dict[str, set[Call]] = {}  # job: attempts that still run
        self._released_later: dict[ObjectId, Job] = {}  # once the task that runs has made them
        self._touched: dict[str, Job] = {}
        self._judged: set[Job] = set()  # being finished or retried: nothing else decides of them
        self._removed: dict[str, Job] = {}  # tasks of theirs are still there
        self._catching_up: set[tuple[str, str]] = set()  # clients, and jobs they learn the state of
        self._progress_due: dict[str, Job] = {}
        self._progress_at_s = 0.0
        self._now_s = 0.0

    def find_job(self, job_id: str) -> Job:
        job = self.jobs.get(job_id)
        if job is None:
            raise UnknownJobError(job_id)
        return job

    # --- clients ----------------------------------------------------------------------------------

    def client_said(self, client: str, message: Message, now_s: float) -> None:
        """Process one message of a client. A message that cannot be carried out is refused, and
        changes nothing.
        """
        self._now_s = now_s
        try:
            self._client_said(client, message)
        except CielError as error:
            self.refuse(client, message, str(error))

    def refuse(self, client: str, message: Message, reason: str) -> None:
        """Tell a client that the master refuses a message."""
        match message:
            case AddTask(spec, _):
                job_id = spec.job
                if job_id in self.jobs:
                    self._fail_job(self.jobs[job_id], f"a task was refused: {reason}")
            case SubmitJob(job_spec):
                job_id = job_spec.id
            case _:
                job_id = getattr(message, "job", JobId(""))
        self._say(client, RequestRefused(job_id, reason))

    def _client_said(self, client: str, message: Message) -> None:
        match message:
            case AddTask(spec, known):
                job = self.find_job(spec.job)
                for ref in known:
                    if type(ref) is Value:
                        ref.content  # noqa: B018  # can it be read? a worker would fall over it
                if job.state is not JobState.COMPLETED:  # any other may be tried again, whole
                    self._add_task(spec, known, job)
            case WantObjects(job_id, objects):
                job = self.find_job(job_id)
                told = self._want(job, objects)
                self.outbox += [(client, news) for news in told]
                if job.state is JobState.ACTIVE:
                    self.journal.append(message)
            case ReleaseObjects(job_id, objects, for_good, uploads):
                job = self.find_job(job_id)
                if for_good:
                    self._delete(never_named(self.graph, uploads))
                    self._hand_over(job, objects)
                else:
                    for object_id in objects:
                        self.graph.unwant(object_id, job)
                self._touched[job_id] = job
                self.journal.append(message)
            case SubmitJob():
                self._submit(client, message)
            case CloseJob(job_id):
                job = self.find_job(job_id)
                job.open = False
                if job.spec.detached:
                    self._subscriptions.disown(job_id)
                self._touched[job_id] = job
                self.journal.append(message)
            case WatchJob(job_id, prints):
                self._watch(client, self.find_job(job_id), prints=prints)
            case CancelJob(job_id, reason):
                self._cancel(self.find_job(job_id), reason)

    def _hand_over(self, job: Job, objects: Sequence[ObjectId]) -> None:
        """Release objects that their client will not name again. Tasks that have not started do not
        run for them; finished attempts are counted first.
        """
        nodes, released = self.graph.objects.nodes, []
        for object_id in objects:
            node = nodes.get(object_id)
            maker = None if node is None or node.is_settled else node.producer
            if maker is not None and maker.state is TaskState.ASSIGNED and object_id in job.wanted:
                self._released_later[object_id] = job
            else:
                released.append(object_id)
        self.bulk.begin(self._delete_all(hand_over(self.graph, job, released, self.stories)))

    def _submit(self, client: str, message: SubmitJob) -> None:
        job = self.jobs.get(message.spec.id) or self._create(message.spec)
        self._subscriptions.own(client, job)
        self._subscriptions.watch(client, job)
        self._say(client, JobChanged(summarise(job)))

    def _create(self, spec: JobSpec) -> Job:
        if is_selector(spec.id):
            raise CielError(f"a job cannot have the id {spec.id}, which means jobs otherwise")
        if spec.id in self._removed:
            raise CielError(f"the former job {spec.id} is still being removed; try again soon")
        if len(self.jobs) >= JOBS_MAX:
            raise CielError(f"there are {JOBS_MAX} jobs already; remove some")
        self.job_count += 1
        job = Job(spec, self.job_count, self._now_s, self.task_totals)
        self.jobs[spec.id] = job
        self.job_totals[job.state] += 1
        self.journal.append(SubmitJob(spec))
        return job

    def begin_job(
        self, spec: JobSpec, tasks: Sequence[AddTask], wanted: tuple[ObjectId, ...], now_s: float
    ) -> Job:
        """Create a whole job, with its tasks and wants, for a client that does not stay. Raises
        CielError, and then creates nothing.
        """
        self._now_s = now_s
        if spec.id in self.jobs:
            raise CielError(f"there is a job {spec.id} already")
        for task, _ in tasks:
            check_task(task)
        job = self._create(spec)
        try:
            for task, known in tasks:
                self._add_task(task, known, job)
        except CielError:
            self._move(job, JobState.CANCELLING)
            everything = self._ending_by_force(
                job, JobState.CANCELLED, "one of its tasks was refused"
            )
            deque(everything, maxlen=0)  # a request's body has few tasks
            self.remove_job(job)
            self.journal.append(Change(0, "remove", {"job": spec.id}))
            raise
        self._want(job, wanted)
        self.journal.append(WantObjects(spec.id, wanted))
        return job

    def cancel_job(self, job: Job, reason: str, now_s: float) -> None:
        """Cancel a job; does nothing if it has ended."""
        self._now_s = now_s
        self._cancel(job, reason)

    def fail_job(self, job: Job, reason: str, now_s: float) -> None:
        """End a job as failed; does nothing if it has ended."""
        self._now_s = now_s
        self._fail_job(job, reason)

    def _watch(self, client: str, job: Job, *, prints: bool) -> None:
        self._subscriptions.watch(client, job, prints=prints)
        self.bulk.begin(self._tell_all(client, job))

    def _want(self, job: Job, objects: tuple[ObjectId, ...]) -> list[ObjectSettled]:
        """Have a job want objects; return the objects to be announced again, since the request may
        come from another client, or repeat one. For a job that has ended, nothing else happens.
        """
        nodes, wanted, is_active = (
            self.graph.objects.nodes,
            job.wanted,
            job.state is JobState.ACTIVE,
        )
        told = []
        for object_id in objects:
            if is_active and object_id not in wanted:
                self.graph.want(object_id, job)
                continue
            node = nodes.get(object_id)
            if node is not None and node.ref is not None and node.is_settled:
                told.append(ObjectSettled(job.spec.id, node.ref))
        if is_active:
            self._touched[job.spec.id] = job
        return told

    def client_gone(self, client: str, now_s: float, grace_s: float = CLIENT_GRACE_S) -> None:
        """Note that the connection of a client ended: its jobs get a grace period."""
        self._subscriptions.gone(client, self.jobs, now_s + grace_s)

    # --- changes that anybody may ask for ---------------------------------------------------------

    def remove_job(self, job: Job) -> None:
        """Forget an ended job and its results; raises JobNotEndedError."""
        if job.state not in ENDED:
            raise JobNotEndedError(job.number)
        job_id = job.spec.id
        del self.jobs[job_id]
        self._removed[job_id] = job
        self.job_totals[job.state] -= 1
        self._subscriptions.disown(job_id)
        self._subscriptions.dismiss(job_id)
        self._touched.pop(job_id, None)
        self.bulk.begin(self._removal(job))

    def retry_job(self, job: Job, now_s: float) -> None:
        """Run the failed and cancelled tasks of an ended job again; raises CielError if that is
        impossible. For a large job that turns out later: then the job ends again as before.
        """
        self._now_s = now_s
        if job.state is not JobState.CANCELLED and (
            job.state is not JobState.FAILED or job.called_off
        ):
            raise CannotRetryError(job.number, f"it is {job.state}, nothing failed")
        self._retry(job)

    def retry_task(self, task: TaskNode, now_s: float) -> None:
        """Run a failed or cancelled task again, with the failed tasks that it needs; raises
        CielError if that is impossible. An ended job goes on.
        """
        self._now_s = now_s
        job = task.job
        if task.state not in (TaskState.FAILED, TaskState.CANCELLED):
            raise CannotRetryTaskError(label(task), f"it is {task.state}")
        if job.state is JobState.CANCELLING or (job.state is JobState.FAILED and job.called_off):
            raise CannotRetryTaskError(label(task), f"its job is {job.state}: {job.reason}")
        if job.state is JobState.ACTIVE and not job.spec.detached:
            why = "its job runs, and whoever waits for it was told of the failure already"
            raise CannotRetryTaskError(label(task), why)
        if job in self._judged:
            raise CannotRetryTaskError(label(task), "its job is just ending; try again soon")
        if self.blame.pop(task.spec.id, None) is not None:
            self._tell_of_retry(task)
        self._retry(job, task.outputs)

    def _retry(self, job: Job, objects: Sequence[ObjectId] | None = None) -> None:
        refused: list[CannotRetryError] = []
        self.bulk.begin(self._retrying(job, refused, objects))
        if refused:
            raise refused[0]

    def _add_task(self, spec: TaskSpec, known: tuple[Reference, ...], job: Job) -> None:
        check_task(spec)
        for ref in known:
            introduce(self.graph, ref, job)
        self.graph.add(spec, job)
        self.journal.append(AddTask(spec, known))

    # --- jobs -------------------------------------------------------------------------------------

    def _settle_jobs(self) -> None:
        touched, self._touched = self._touched, {}
        for job_id, job in touched.items():
            if job.state is not JobState.ACTIVE:
                if job.state in ENDED and not job.unsettled:
                    self._tell_watchers(job)  # what was lost since its end is there again
                continue
            if job in self._judged:
                continue  # it is looked at again when that is over
            if not job.open and job.unsettled == 0:
                self._finish_job(job)
            elif not job.open and not job.is_busy:
                if self.graph.has_more:
                    self._touched[job_id] = job  # what goes on with it may be among that
                else:
                    self._fail_stuck(job)
            elif self._subscriptions.of(job_id):
                self._progress_due[job_id] = job
        if self._progress_due and self._now_s >= self._progress_at_s + PROGRESS_INTERVAL_S:
            self._progress_at_s = self._now_s
            for job in self._progress_due.values():
                self._tell_watchers(job)
            self._progress_due.clear()

    def _finish_job(self, job: Job) -> None:
        self.bulk.begin(self._finishing(job))

    def _fail_stuck(self, job: Job) -> None:
        """Fail a job of which nothing runs or can run, although an object is missing; say which."""
        missing = stuck(self.graph, job)
        if not missing:
            return  # touched again by what becomes of that
        text = f"nothing is going to make {', '.join(missing[:3])}"
        for object_id in missing:
            details = f"no task of the job makes {object_id}"
            self.graph.publish(Failure(object_id, "NEVER_MADE", details))
        if job.is_busy:  # who sees errors goes on with these
            self._touched[job.spec.id] = job
        elif job.unsettled:
            self._fail_job(job, text)
        else:
            self._touched[job.spec.id] = job
            self._announce_settled()
            self._finish_job(job)

    def _fail_job(self, job: Job, reason: str) -> None:
        self._end_by_force(job, JobState.FAILED, reason)

    def _cancel(self, job: Job, reason: str) -> None:
        if job.state is JobState.ACTIVE:
            job.open = False
        self._end_by_force(job, JobState.CANCELLED, reason)

    def _end_by_force(self, job: Job, state: JobState, reason: str) -> None:
        if job.state is JobState.ACTIVE:
            self._move(job, JobState.CANCELLING)
            self.bulk.begin(self._ending_by_force(job, state, reason))

    def _forget_calls(self, job_id: str, calls: set[Call]) -> None:
        left = self._called_off.get(job_id)
        if left is None:
            return
        left -= calls
        if not left:
            del self._called_off[job_id]
            job = self.jobs.get(job_id)
            is_over = job is not None and job not in self.graph.ending
            if job is not None and is_over and job.state is JobState.CANCELLING:
                self._end_job(job, JobState.CANCELLED, job.reason)

    def _end_job(self, job: Job, state: JobState, reason: str) -> None:
        self._move(job, state)
        job.reason = reason
        job.ended_at_s = self._now_s
        if self.graph.objects.fixed:
            self.graph.fixed.job_ended(job)
        job_id = job.spec.id
        self._subscriptions.disown(job_id)
        self._progress_due.pop(job_id, None)
        if self._released_later:
            later = self._released_later.items()
            self._released_later = {key: other for key, other in later if other is not job}
        if self.graph.settled:
            self._announce_settled()
        self._tell_watchers(job)
        for worker in self.workers.values() if job.spec.context is not None else ():
            if job_id in worker.described:
                worker.described.discard(job_id)
                self._say(worker.facts.id, DescribeJob(job_id, None))
        self.ended.append(job)
        self.journal.append(JobChanged(summarise(job)))

    def _move(self, job: Job, state: JobState) -> None:
        if state not in JOB_TRANSITIONS[job.state]:
            raise CielError(f"job {job.spec.id} is {job.state}: cannot become {state}")
        self.job_totals[job.state] -= 1
        self.job_totals[state] += 1
        job.state = state

    def _tell_watchers(self, job: Job) -> None:
        watchers = self._subscriptions.of(job.spec.id)
        if watchers:
            message = JobChanged(summarise(job))
            late = self._catching_up
            self.outbox += [
                (c, message) for c in watchers if not late or (c, job.spec.id) not in late
            ]
        if job.state in ENDED:
            self._subscriptions.dismiss(job.spec.id)

    def _announce_growing(self, refs: Iterable[Reference]) -> None:
        """Announce wanted objects to clients that can be read while they grow."""
        for ref in refs:
            node = self.graph.objects.nodes.get(ref.id)
            known = None if node is None else node.ref
            if node is not None and type(known) is Stream:
                for job in node.wanters:
                    for client in self._subscriptions.of(job.spec.id):
                        self.outbox.append((client, ObjectSettled(job.spec.id, known)))

    def _announce_settled(self) -> None:
        if not self.graph.settled:
            return
        settled, self.graph.settled = self.graph.settled, []
        nodes = self.graph.objects.nodes
        for object_id in settled:
            node = nodes.get(object_id)
            if node is None or not node.is_settled or node.ref is None:
                continue
            for job in node.wanters:
                job_id = job.spec.id
                self._touched[job_id] = job
                for client in self._subscriptions.of(job_id):
                    self.outbox.append((client, ObjectSettled(job_id, node.ref)))
        if self._released_later:
            for object_id in settled:
                owner = self._released_later.pop(object_id, None)
                if owner is not None:
                    self._hand_over(owner, (object_id,))

    def _pass_on_prints(self, worker: WorkerNode, printed: TaskPrinted) -> None:
        """Send the lines that a task has printed to subscribed clients, before any consequence of
        its end.
        """
        task = self.graph.tasks.get(printed.task)
        if task is None:
            return
        spec = task.spec
        number = spec.ordinal + 1 if spec.parent == spec.job else 0
        about = (spec.job, spec.id, spec.name, number, worker.facts.netloc)
        whom = self._subscriptions.of if printed.is_notice else self._subscriptions.listeners
        for client in whom(spec.job):
            self._say(client, JobPrinted(*about, *printed[2:]))

    def forget(self, object_id: ObjectId) -> None:
        """Forget an object that no task or job names, and delete its copies."""
        objects = self.graph.objects
        places = objects.forget(objects.nodes[object_id], object_id)
        self.graph.remove_object(object_id)
        self._delete({place: [object_id] for place in places})

    def _delete(self, by_place: dict[str, list[ObjectId]]) -> None:
        """Have workers delete objects, by location."""
        if not by_place:
            return
        for worker in self.workers.values():
            doomed = by_place.get(worker.facts.netloc)
            if doomed:
                self._say(worker.facts.id, DropObjects(tuple(dict.fromkeys(doomed))))

    # --- telling ----------------------------------------------------------------------------------

    def _say(self, peer: str, message: Message) -> None:
        self.outbox.append((peer, message))

    def _tell_of_retry(self, task: TaskNode) -> None:
        """Record a retry in the history of a task, with the failure before it."""
        refs = [self.graph.objects.reference(object_id) for object_id in task.spec.outputs]
        failure = next((ref for ref in refs if isinstance(ref, Failure)), None)
        if failure is not None and task.spec.id not in self.stories:
            self._tell(task, f"attempt {task.attempt} failed: {failure.reason}: {failure.text}")
        self._tell(task, "its user had it tried again")

    def _tell_of_unlike(self, worker_id: str, report: TaskReported) -> None:
        """Record that a superseded attempt succeeded too, if its outputs differ from the counted
        ones.
        """
        for late in report.published:
            node = self.graph.objects.nodes.get(late.id)
            if node is None or node.producer is None or not is_unlike(node.ref, late):
                continue
            made = f"attempt {report.attempt} on worker {worker_id} made {late.id}, too"
            # Those of Python values tell how long they took, too.
            self._tell(node.producer, f"{made}, not the same to the byte; the first counts")

    def _tell(self, task: TaskNode, text: str) -> None:
        self.stories.setdefault(task.spec.id, Story()).tell(self._now_s, text)
