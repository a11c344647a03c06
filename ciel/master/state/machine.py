"""The master's machine: what clients and workers say goes in, what is to be said to them comes out.

Every entry point takes the time; none of them talks. Messages pile up in `outbox` as (peer,
message) pairs, and `end_turn` is called once after a batch of events: it places tasks, announces
results and ends jobs, so that ten events cost one pass. Peers are names: a worker's id, a client's
connection name.
"""

from __future__ import annotations

from collections.abc import Iterable

from ciel.core.endings import failed_results, saw_error, stuck
from ciel.core.errors import CannotRetryError, CielError, JobNotEndedError, UnknownJobError
from ciel.core.events import (
    LOST_AFTER_S,
    RECALLED,
    AddTask,
    AssignTask,
    CancelJob,
    CancelTask,
    CloseJob,
    DropObjects,
    Heartbeat,
    InputsLost,
    JobChanged,
    Message,
    ObjectSettled,
    ObjectsStored,
    ReleaseObjects,
    RequestRefused,
    SpawnTask,
    SubmitJob,
    TaskReported,
    WantObjects,
    WatchJob,
)
from ciel.core.graph import ACTIVE, TaskGraph, TaskNode
from ciel.core.ids import JobId, ObjectId
from ciel.core.jobs import ENDED, JOB_TRANSITIONS, Job, JobState, summarise
from ciel.core.refs import Failure, Reference, locations_of
from ciel.core.removal import hand_over, remove
from ciel.core.retries import (
    BACK_OFF_FIRST_S,
    Again,
    Blame,
    GiveUp,
    after_failure,
    after_worker_loss,
)
from ciel.core.story import Story
from ciel.core.tasks import ASSIGNED, TaskSpec, check_task
from ciel.master.state.audience import Audience
from ciel.master.state.dispatch import Dispatcher
from ciel.master.state.keeping import drop_unneeded, unlisted
from ciel.master.state.workers import WorkerFacts, WorkerNode

PROGRESS_INTERVAL_S = 0.2
JOBS_MAX = 100_000


class MasterMachine:
    """All that the master knows and decides."""

    def __init__(self) -> None:
        self.graph = TaskGraph()
        self.jobs: dict[str, Job] = {}
        self.outbox: list[tuple[str, Message]] = []
        self.journal: list[Message] = []  # what a journal has to keep, in order
        self.dispatcher = Dispatcher(self.graph, self._assign, self._refuse_task, self._say)
        self.stories: dict[str, Story] = {}
        self.blame: dict[str, Blame] = {}
        self._audience = Audience()
        self._job_count = 0  # of all jobs there ever were
        self._called_off: dict[str, set[tuple[str, str, int]]] = {}  # job: attempts that still run
        self._touched: dict[str, Job] = {}
        self._progress_due: dict[str, Job] = {}
        self._progress_at_s = 0.0
        self._now_s = 0.0

    @property
    def workers(self) -> dict[str, WorkerNode]:
        return self.dispatcher.workers

    def find_job(self, job_id: str) -> Job:
        job = self.jobs.get(job_id)
        if job is None:
            raise UnknownJobError(job_id)
        return job

    # --- clients ----------------------------------------------------------------------------------

    def client_said(self, client: str, message: Message, now_s: float) -> None:
        """Take one message of a client; one that cannot be carried out is refused and changes
        nothing.
        """
        self._now_s = now_s
        try:
            self._client_said(client, message)
        except CielError as error:
            self._refuse(client, message, str(error))

    def _refuse(self, client: str, message: Message, reason: str) -> None:
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
                self._add_task(spec, known, job)
            case WantObjects(job_id, objects):
                job = self.find_job(job_id)
                if job.state is JobState.ACTIVE:
                    for object_id in objects:
                        self.graph.want(object_id, job)
                    self._touched[job_id] = job
                    self.journal.append(message)
            case ReleaseObjects(job_id, objects, for_good):
                job = self.find_job(job_id)
                if for_good:
                    self._delete(hand_over(self.graph, job, objects, self.stories))
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
                    self._audience.disown(job_id)
                self._touched[job_id] = job
                self.journal.append(message)
            case WatchJob(job_id):
                self._watch(client, self.find_job(job_id))
            case CancelJob(job_id, reason):
                self._cancel(self.find_job(job_id), reason)

    def _submit(self, client: str, message: SubmitJob) -> None:
        spec = message.spec
        job = self.jobs.get(spec.id)
        if job is None:
            if len(self.jobs) >= JOBS_MAX:
                raise CielError(f"there are {JOBS_MAX} jobs already; remove some")
            self._job_count += 1
            job = self.jobs[spec.id] = Job(spec, self._job_count, self._now_s)
            self.journal.append(message)
        self._audience.own(client, job)
        self._audience.watch(client, job)
        self._say(client, JobChanged(summarise(job)))

    def _watch(self, client: str, job: Job) -> None:
        self._audience.watch(client, job)
        for object_id in job.wanted:
            node = self.graph.objects.nodes[object_id]
            if node.is_settled:
                self._say(
                    client, ObjectSettled(job.spec.id, self.graph.objects.reference(object_id))
                )
        self._say(client, JobChanged(summarise(job)))

    def client_gone(self, client: str, now_s: float) -> None:
        """A client's connection ended: the jobs it answers for get a grace period."""
        self._audience.gone(client, self.jobs, now_s)

    # --- changes that anybody may ask for ---------------------------------------------------------

    def remove_job(self, job: Job) -> None:
        """Forget an ended job with its results; raises JobNotEndedError."""
        if job.state not in ENDED:
            raise JobNotEndedError(job.number)
        for task_id in job.tasks:
            self.stories.pop(task_id, None)
            self.blame.pop(task_id, None)
        if any(job.counts[state] for state in ACTIVE):
            self._call_off(job, "its job was removed")  # what was lost is being made again
        self._delete(remove(self.graph, job, self.jobs.values()))
        del self.jobs[job.spec.id]
        self._audience.disown(job.spec.id)
        self._audience.dismiss(job.spec.id)
        self._touched.pop(job.spec.id, None)

    def retry_job(self, job: Job, now_s: float) -> None:
        """Have the failed tasks of an ended job run again; raises CielError if that cannot be."""
        self._now_s = now_s
        if job.state is not JobState.FAILED or job.called_off:
            raise CannotRetryError(job.number, f"it is {job.state}, nothing failed")
        if seer := saw_error(self.graph, job):
            raise CannotRetryError(job.number, f"its task {seer} made its result from an error")
        for task_id in job.tasks:
            if self.blame.pop(task_id, None) is not None:
                self._tell(self.graph.tasks[task_id], "its user had it tried again")
        if not self.graph.revive(job):
            raise CannotRetryError(job.number, "nothing of it failed")
        self._move(job, JobState.ACTIVE)
        job.reason = ""
        job.ended_at_s = None
        self._touched[job.spec.id] = job

    def _add_task(self, spec: TaskSpec, known: tuple[Reference, ...], job: Job) -> None:
        if job.state is not JobState.ACTIVE:
            return  # it was cancelled while its tasks were still coming in
        check_task(spec)
        for ref in known:
            self.graph.introduce(ref, job)
        self.graph.add(spec, job)
        self.journal.append(AddTask(spec, known))

    # --- workers ----------------------------------------------------------------------------------

    def worker_joined(self, facts: WorkerFacts, now_s: float) -> None:
        """A worker is there; an earlier one of the same id or address is taken for lost."""
        self._now_s = now_s
        for other in list(self.workers.values()):
            if other.facts.id == facts.id or other.facts.netloc == facts.netloc:
                self.worker_lost(other.facts.id, "another worker took its place", now_s)
        self.dispatcher.add_worker(WorkerNode(facts, now_s))

    def worker_lost(self, worker_id: str, reason: str, now_s: float) -> None:
        """A worker is gone, with what it ran and what it held."""
        self._now_s = now_s
        worker = self.workers.get(worker_id)
        if worker is None:
            return
        self.dispatcher.remove_worker(worker)
        slots_left = worker.facts.slots
        for (_, attempt), task in worker.assigned.items():
            # Only those at the head can have run, and have had to do with the loss.
            may_have_run = slots_left > 0
            slots_left -= task.spec.needs.slots
            if task.worker != worker_id or task.attempt != attempt:
                continue  # it was called off
            verdict: Again | GiveUp = Again(0.0)
            if may_have_run:
                blame = self.blame.setdefault(task.spec.id, Blame())
                verdict = after_worker_loss(blame, worker_id)
            self._tell(
                task, f"worker {worker_id} was lost ({reason}) during attempt {task.attempt}"
            )
            self._touched[task.spec.job] = task.job
            if isinstance(verdict, Again):
                self.graph.requeue(task)
            else:
                self.graph.fail(task, verdict.reason, verdict.details)
        self.graph.lose_location(worker.facts.netloc)
        for job_id, attempts in list(self._called_off.items()):
            self._forget_calls(job_id, {call for call in attempts if call[0] == worker_id})

    def worker_said(self, worker_id: str, message: Message, now_s: float) -> None:
        """Take one message of a worker that has joined."""
        self._now_s = now_s
        worker = self.workers.get(worker_id)
        if worker is None:
            return
        worker.heard_at_s = now_s
        match message:
            case TaskReported():
                self._reported(worker, message)
            case SpawnTask(spec, known, attempt):
                parent = self._current(worker, spec.parent, attempt)
                if parent is not None:
                    self._spawned(parent, spec, known)
            case InputsLost():
                self._inputs_lost(worker, message)
            case ObjectsStored(refs):
                for ref in refs:
                    if self.graph.objects.get(ref.id) is not None:
                        self.graph.publish(ref)
                self._drop_unlisted(worker, refs)
            case Heartbeat():
                pass

    def _current(self, worker: WorkerNode, task_id: str, attempt: int) -> TaskNode | None:
        """Find the task of a running attempt; None if that attempt does not count any more."""
        task = self.graph.tasks.get(task_id)
        if task is None or task.state is not ASSIGNED or task.attempt != attempt:
            return None
        return task if task.worker == worker.facts.id else None

    def _spawned(self, parent: TaskNode, spec: TaskSpec, known: tuple[Reference, ...]) -> None:
        try:
            if spec.job != parent.spec.job:
                raise CielError(f"task {spec.id}: it is spawned into another job")
            self._add_task(spec, known, parent.job)
        except CielError as error:
            if parent.worker is not None:
                self._say(parent.worker, CancelTask(parent.spec.id, parent.attempt))
            self.graph.fail(parent, "BAD_SPAWN", str(error))

    def _reported(self, worker: WorkerNode, report: TaskReported) -> None:
        task = self._current(worker, report.task, report.attempt)
        if task is None:
            self._superseded(worker, report.task, report.attempt)
            self._drop_unlisted(worker, report.published)
            return
        worker.give_back(task, task.attempt)
        self._touched[task.spec.job] = task.job
        if report.fault is not None and report.fault.reason == RECALLED:
            self.graph.requeue(task)
            return
        worker.reported_at_s = self._now_s
        worker.credit.learn(report.run_s)
        if report.fault is None:
            self.graph.finish(task, report.published)
            self.journal.append(report)
            if self.blame:
                self.blame.pop(task.spec.id, None)
            return
        reason, details = report.fault
        self._tell(task, f"attempt {task.attempt} failed on {worker.facts.id}: {reason}: {details}")
        blame = self.blame.setdefault(task.spec.id, Blame())
        verdict = after_failure(blame, task.spec.needs.retries, reason, details)
        if isinstance(verdict, Again):
            blame.not_before_s = self._now_s + verdict.delay_s
            self.graph.requeue(task)
        else:
            self.graph.fail(task, verdict.reason, verdict.details)
            self.journal.append(report)

    def _superseded(self, worker: WorkerNode, task_id: str, attempt: int) -> None:
        """Note the end of an attempt that counts no more: called off, or thought lost."""
        task = worker.assigned.get((task_id, attempt))
        if task is None:
            return
        worker.give_back(task, attempt)  # also if the task was forgotten since
        self._forget_calls(task.spec.job, {(worker.facts.id, task_id, attempt)})

    def _drop_unlisted(self, worker: WorkerNode, refs: Iterable[Reference]) -> None:
        doomed = unlisted(self.graph, worker.facts, refs)
        if doomed:
            self._say(worker.facts.id, DropObjects(doomed))

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
        if blame.missing_inputs > max(3, task.spec.needs.retries):
            self.graph.fail(task, "MISSING_INPUT", message.details)
        else:
            self.graph.requeue(task)

    def _lose_copy(self, reader: WorkerNode, object_id: ObjectId, place: str) -> bool:
        """Note that a reader could not get an object from a place; return whether anything is
        changed by that, or was since.

        A copy that is there all the same is deleted, since nobody would ever delete what the table
        does not list; unless it cannot be made again.
        """
        node = self.graph.objects.get(object_id)
        if node is None or node.ref is None:
            return True
        if place not in locations_of(node.ref):
            return False
        holder = next((w for w in self.workers.values() if w.facts.netloc == place), None)
        if holder is not None and holder is not reader and node.producer is None:
            return False
        if holder is not None and (
            node.producer is None or node.producer.worker != holder.facts.id
        ):
            self._say(holder.facts.id, DropObjects((object_id,)))
        self.graph.lose(object_id, place)
        return True

    # --- the end of a turn ------------------------------------------------------------------------

    def end_turn(self, now_s: float) -> None:
        """Place tasks, announce results, end jobs; called once after a batch of events."""
        self._now_s = now_s
        self._call_off_unneeded()
        self._collect_runnable()
        self.dispatcher.dispatch()
        while self.graph.runnable:  # an input was found to be lost: its producer runs again
            self._collect_runnable()
            self.dispatcher.dispatch()
        self.dispatcher.recall(now_s)
        self._announce_settled()
        self._drop()
        self._settle_jobs()

    def _collect_runnable(self) -> None:
        graph = self.graph
        if graph.runnable:
            runnable, graph.runnable = graph.runnable, []
            push = self.dispatcher.ready.push
            for task in runnable:
                blame = self.blame.get(task.spec.id) if self.blame else None
                if blame is not None and blame.not_before_s > self._now_s:
                    self.dispatcher.ready.push_later(task, blame.not_before_s)
                else:
                    push(task)
        self.dispatcher.ready.wake(self._now_s)

    def _assign(self, task: TaskNode, worker: WorkerNode) -> None:
        spec = task.spec
        attempt = self.graph.assign(task, worker.facts.id)
        worker.take(task, self._now_s)
        reference = self.graph.objects.reference
        inputs = tuple([reference(object_id) for object_id in spec.inputs]) if spec.inputs else ()
        self.outbox.append((worker.facts.id, AssignTask(spec, attempt, inputs)))

    def _refuse_task(self, task: TaskNode, reason: str, details: str) -> None:
        self._touched[task.spec.job] = task.job
        self.graph.fail(task, reason, details)

    def _call_off_unneeded(self) -> None:
        if not self.graph.unneeded:
            return
        unneeded, self.graph.unneeded = self.graph.unneeded, []
        for task in unneeded:
            if task.worker is not None and not self.graph.is_needed(task):
                self._say(task.worker, CancelTask(task.spec.id, task.attempt))
                self.graph.sleep(task)

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
                for client in self._audience.of(job_id):
                    self.outbox.append((client, ObjectSettled(job_id, node.ref)))

    def _drop(self) -> None:
        if not self.graph.droppable:
            return
        self._delete(drop_unneeded(self.graph))

    def _delete(self, by_place: dict[str, list[ObjectId]]) -> None:
        """Have what lies at these locations deleted."""
        if not by_place:
            return
        for worker in self.workers.values():
            doomed = by_place.get(worker.facts.netloc)
            if doomed:
                self._say(worker.facts.id, DropObjects(tuple(dict.fromkeys(doomed))))

    # --- jobs -------------------------------------------------------------------------------------

    def _settle_jobs(self) -> None:
        touched, self._touched = self._touched, {}
        for job_id, job in touched.items():
            if job.state is not JobState.ACTIVE:
                if job.state in ENDED and not job.unsettled:
                    self._tell_watchers(job)  # what was lost since its end is there again
                continue
            if not job.open and job.unsettled == 0:
                self._finish_job(job)
            elif not job.open and not job.is_busy:
                self._fail_stuck(job)
            elif self._audience.of(job_id):
                self._progress_due[job_id] = job
        if self._progress_due and self._now_s >= self._progress_at_s + PROGRESS_INTERVAL_S:
            self._progress_at_s = self._now_s
            for job in self._progress_due.values():
                self._tell_watchers(job)
            self._progress_due.clear()

    def _finish_job(self, job: Job) -> None:
        failed = failed_results(self.graph, job)
        if failed:
            ref = self.graph.objects.reference(failed[0])
            assert isinstance(ref, Failure)
            more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
            self._end_job(job, JobState.FAILED, f"{ref.reason}: {ref.details}{more}")
        else:
            self._end_job(job, JobState.COMPLETED, "")

    def _fail_stuck(self, job: Job) -> None:
        """Nothing of a job runs or can run, yet something is missing: say what, and end it."""
        missing = stuck(self.graph, job)
        text = f"nothing is going to make {', '.join(missing[:3])}"
        for object_id in missing:
            details = f"no task of the job makes {object_id}"
            self.graph.publish(Failure(object_id, "NEVER_MADE", details))
        if job.unsettled:
            self._fail_job(job, text)
        else:
            self._touched[job.spec.id] = job
            self._announce_settled()
            self._finish_job(job)

    def _fail_job(self, job: Job, reason: str) -> None:
        if job.state is JobState.ACTIVE:
            self._call_off(job, reason)
            self._end_job(job, JobState.FAILED, reason)

    def _cancel(self, job: Job, reason: str) -> None:
        if job.state is not JobState.ACTIVE:
            return
        self._move(job, JobState.CANCELLING)
        job.reason = reason
        job.open = False
        self._call_off(job, reason)
        if not self._called_off.get(job.spec.id):
            self._end_job(job, JobState.CANCELLED, reason)

    def _call_off(self, job: Job, reason: str) -> None:
        """End all tasks of a job; those that run are called off, and remembered until they are
        gone.
        """
        running = [(task, task.worker) for task in self.graph.running(job)]
        calls: set[tuple[str, str, int]] = set()
        for task, worker_id in running:
            if worker_id is not None:
                self._say(worker_id, CancelTask(task.spec.id, task.attempt))
                calls.add((worker_id, task.spec.id, task.attempt))
        if calls:
            self._called_off[job.spec.id] = calls
        self.graph.cancel(job, reason)

    def _forget_calls(self, job_id: str, calls: set[tuple[str, str, int]]) -> None:
        left = self._called_off.get(job_id)
        if left is None:
            return
        left -= calls
        if not left:
            del self._called_off[job_id]
            job = self.jobs.get(job_id)
            if job is not None and job.state is JobState.CANCELLING:
                self._end_job(job, JobState.CANCELLED, job.reason)

    def _end_job(self, job: Job, state: JobState, reason: str) -> None:
        self._move(job, state)
        job.reason = reason
        job.ended_at_s = self._now_s
        job_id = job.spec.id
        self._audience.disown(job_id)
        self._progress_due.pop(job_id, None)
        if self.graph.settled:
            self._announce_settled()
        self._tell_watchers(job)
        self.journal.append(JobChanged(summarise(job)))

    def _move(self, job: Job, state: JobState) -> None:
        if state not in JOB_TRANSITIONS[job.state]:
            raise CielError(f"job {job.spec.id} is {job.state}: cannot become {state}")
        job.state = state

    def _tell_watchers(self, job: Job) -> None:
        watchers = self._audience.of(job.spec.id)
        if watchers:
            message = JobChanged(summarise(job))
            self.outbox += [(client, message) for client in watchers]
        if job.state in ENDED:
            self._audience.dismiss(job.spec.id)

    # --- time -------------------------------------------------------------------------------------

    def tick(self, now_s: float) -> None:
        """Act on the time: silent workers, jobs without clients; called about once a second."""
        for worker in list(self.workers.values()):
            silent_s = now_s - worker.heard_at_s
            if silent_s > LOST_AFTER_S:
                self.worker_lost(worker.facts.id, f"silent for {silent_s:.1f} s", now_s)
        self._now_s = now_s
        for job_id in self._audience.forsaken(now_s):
            self._cancel(self.jobs[job_id], "its client is gone")

    def due_s(self) -> float | None:
        """When `end_turn` has to be called next though nothing happened; None if there is no such
        time.
        """
        due = [self._progress_at_s + PROGRESS_INTERVAL_S] if self._progress_due else []
        if (due_s := self.dispatcher.ready.due_s) is not None:
            due.append(due_s)
        return min(due, default=None)

    # --- telling ----------------------------------------------------------------------------------

    def _say(self, peer: str, message: Message) -> None:
        self.outbox.append((peer, message))

    def _tell(self, task: TaskNode, text: str) -> None:
        self.stories.setdefault(task.spec.id, Story()).tell(self._now_s, text)
