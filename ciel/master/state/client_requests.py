"""Carries out the messages of clients.

Clients submit, watch and cancel jobs, add tasks, and want and release objects.
"""

from __future__ import annotations

from collections.abc import Sequence

from ciel.core.errors import CielError
from ciel.core.events import (
    COPIES_MAX,
    AddTask,
    CancelJob,
    Change,
    CloseJob,
    JobChanged,
    Message,
    ObjectSettled,
    ReleaseObjects,
    ReplicateObjects,
    RequestRefused,
    ServiceOpened,
    SubmitJob,
    WantObjects,
    WatchJob,
)
from ciel.core.graph.early_outputs import introduce
from ciel.core.graph.removal import unnamed_uploads
from ciel.core.ids import JobId, ObjectId, is_output
from ciel.core.jobs import Job, JobSpec, JobState, summarise
from ciel.core.refs import Reference, Value, locations_of
from ciel.core.tasks import TaskState, check_task
from ciel.master.state.context import Context
from ciel.master.state.jobs import Jobs
from ciel.master.state.operations import JobOperations
from ciel.master.state.placement.replication import Replication


class ClientRequests:
    """Handles the requests of clients. A rejected request changes nothing."""

    def __init__(
        self, context: Context, jobs: Jobs, operations: JobOperations, replication: Replication
    ) -> None:
        self._context = context
        self._graph = context.graph
        self._jobs = jobs
        self._operations = operations
        self._replication = replication

    def carry_out(self, client: str, message: Message) -> None:
        """Carry out one message of a client, or reject it."""
        try:
            self._carry_out(client, message)
        except CielError as error:
            self.refuse(client, message, str(error))

    def replay(self, message: Message) -> None:
        """Replay a message of a client from the journal; raises CielError."""
        self._carry_out("", message)

    def refuse(self, client: str, message: Message, reason: str) -> None:
        """Report to a client that the master rejects a message."""
        match message:
            case AddTask(spec, _):
                job_id = spec.job
                if job_id in self._jobs.by_id:
                    job = self._jobs.by_id[job_id]
                    self._operations.fail(job, f"a task was rejected: {reason}")
            case SubmitJob(job_spec):
                job_id = job_spec.id
            case _:
                job_id = getattr(message, "job", JobId(""))
        self._context.send(client, RequestRefused(job_id, reason))

    def _carry_out(self, client: str, message: Message) -> None:
        context = self._context
        match message:
            case AddTask(spec, known):
                job = self._jobs.find(spec.job)
                for ref in known:
                    if type(ref) is Value:
                        ref.content  # noqa: B018  # raises if it is invalid: a worker would fail
                if job.state is not JobState.COMPLETED:  # a job in another state may be retried
                    if spec.id not in self._graph.tasks:
                        context.require_room(job)
                    check_task(spec)
                    context.add_task(spec, known, job)
            case WantObjects(job_id, objects):
                job = self._jobs.find(job_id)
                context.outbox += [(client, news) for news in self._want(job, objects)]
                if job.state is JobState.ACTIVE:
                    context.journal.append(message)
            case ReleaseObjects(job_id, objects, for_good, uploads):
                job = self._jobs.find(job_id)
                if for_good:
                    context.delete(unnamed_uploads(self._graph, uploads))
                    self._hand_over(job, objects)
                else:
                    for object_id in objects:
                        self._graph.unwant(object_id, job)
                context.touch(job)
                context.journal.append(message)
            case ReplicateObjects(job_id, copies, refs):
                self._replicate(self._jobs.find(job_id), copies, refs)
            case SubmitJob():
                self._submit(client, message)
            case CloseJob(job_id):
                job = self._jobs.find(job_id)
                job.open = False
                if job.spec.detached:
                    self._jobs.subscriptions.disown(job_id)
                context.touch(job)
                context.journal.append(message)
            case WatchJob(job_id, prints):
                self._operations.watch(client, self._jobs.find(job_id), prints=prints)
            case ServiceOpened(task_id, attempt, address):
                context.open_service(task_id, attempt, address)
            case CancelJob(job_id, reason):
                self._operations.cancel(self._jobs.find(job_id), reason)

    def _submit(self, client: str, message: SubmitJob) -> None:
        job = self._jobs.by_id.get(message.spec.id) or self._jobs.create(message.spec)
        self._jobs.subscriptions.own(client, job)
        self._jobs.subscriptions.watch(client, job)
        self._context.send(client, JobChanged(summarise(job)))

    def _replicate(self, job: Job, copies: int, refs: Sequence[Reference]) -> None:
        """Have so many workers hold each of these uploads, until the job ends or releases it."""
        check_copies(copies)
        for ref in refs:
            if is_output(ref.id):
                raise CielError(f"{ref.id} is not an upload: a task can produce it again")
        if job.state is not JobState.ACTIVE:
            return
        for ref in refs:
            introduce(self._graph, ref, job)
            self._replication.claim(ref, copies, job)
        self._context.journal.append(ReplicateObjects(job.spec.id, copies, tuple(refs)))

    def _hand_over(self, job: Job, objects: Sequence[ObjectId]) -> None:
        """Release objects that their client will not name again.

        A task that was not assigned yet does not run for them; the output of an assigned task is
        released when it exists.
        """
        nodes, released = self._graph.objects.nodes, []
        for object_id in objects:
            node = nodes.get(object_id)
            producer = None if node is None or node.is_settled else node.producer
            if (
                node is not None
                and producer is not None
                and producer.state is TaskState.ASSIGNED
                and job in node.wanters
            ):
                self._jobs.release_later(job, object_id)
            else:
                released.append(object_id)
        self._operations.hand_over(job, released)

    def submit_job(
        self,
        spec: JobSpec,
        tasks: Sequence[AddTask],
        wanted: tuple[ObjectId, ...],
        copies: int = 1,
    ) -> Job:
        """Create a complete job, with its tasks and wants, for a client without a connection.

        As many workers as there are `copies` hold each uploaded object that the tasks read. Raises
        CielError, and then creates nothing.
        """
        check_copies(copies)
        if spec.id in self._jobs.by_id:
            raise CielError(f"a job {spec.id} exists already")
        for task, _ in tasks:
            check_task(task)
        job = self._jobs.create(spec)
        try:
            self._context.require_room(job, len(tasks))
            for task, known in tasks:
                self._context.add_task(task, known, job)
        except CielError:
            self._operations.undo(job, "one of its tasks was rejected")
            self._context.journal.append(Change(0, "remove", {"job": spec.id}))
            raise
        if copies > 1 and (uploads := _uploads(tasks)):
            self._replicate(job, copies, uploads)
        self._want(job, wanted)
        self._context.journal.append(WantObjects(spec.id, wanted))
        return job

    def _want(self, job: Job, objects: tuple[ObjectId, ...]) -> list[ObjectSettled]:
        """Make a job want objects.

        Return the settled objects that must be announced again, since another client may have sent
        the request, or it may repeat an earlier one. An ended job wants no further objects.
        """
        nodes = self._graph.objects.nodes
        is_active = job.state is JobState.ACTIVE
        settled = []
        for object_id in objects:
            node = nodes.get(object_id)
            if is_active and (node is None or job not in node.wanters):
                self._graph.want(object_id, job)
                continue
            if node is not None and node.ref is not None and node.is_settled:
                settled.append(ObjectSettled(job.spec.id, node.ref))
        if is_active:
            self._context.touch(job)
        return settled


def check_copies(copies: int) -> None:
    """Raise CielError unless so many copies of an object can be maintained."""
    if not 1 <= copies <= COPIES_MAX:
        raise CielError(f"an object has 1 to {COPIES_MAX} copies, not {copies}")


def _uploads(tasks: Sequence[AddTask]) -> list[Reference]:
    """Return the uploads in the stores of workers that tasks name."""
    refs = {ref.id: ref for task in tasks for ref in task.known}
    return [ref for ref in refs.values() if not is_output(ref.id) and locations_of(ref)]
