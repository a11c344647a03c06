"""Restores the state of a master from the records of its journal.

Records say what clients requested and what attempts reported, in order. The restored
machine has no workers, no clients and no running attempts: unfinished tasks wait to be assigned.
Objects keep the locations that reports named, until workers join and report what they store.
"""

from __future__ import annotations

from typing import Any

from ciel.core.errors import CielError
from ciel.core.events import (
    CLIENT_GRACE_S,
    AddTask,
    AttemptFailed,
    CancelJob,
    Change,
    CloseJob,
    ExtentsPlaced,
    JobChanged,
    JobNoted,
    JournalCompacted,
    MasterStarted,
    MemoryServerLeft,
    MemoryServerSeen,
    Message,
    ObjectsStored,
    ReleaseObjects,
    ReplicateObjects,
    SubmitJob,
    SuccessionChanged,
    TaskReported,
    VolumeCreated,
    VolumeRemoved,
    WantObjects,
    WorkerLeft,
    WorkerSeen,
)
from ciel.core.graph.early_outputs import publish_early
from ciel.core.graph.job_retry import fail_missing
from ciel.core.graph.task_graph import UNBOUNDED
from ciel.core.ids import TaskId
from ciel.core.jobs import ENDED, Job, JobState, JobSummary
from ciel.core.masters import Succession
from ciel.core.tasks import ACTIVE, CANCELLED, DONE, DORMANT, RUNNABLE, WAITING
from ciel.core.volume_table import VolumeTable
from ciel.master.state.attempts import FIRST_STARTED
from ciel.master.state.machine import MasterMachine
from ciel.master.state.queries import object_locations, topics

RETURN_S = 10.0
"""How long a master that has restarted waits for its workers before it assigns tasks: they try to
reconnect each second at least."""
TAKEOVER_GRACE_S = 15.0
"""How long a master that has had standbys waits for clients: they notice after some seconds that a
frozen or separated master is silent, and an election may take longer."""
NOBODY = ""
"""The name of a client that has no connection."""


class Restoration:
    """Applies records to a new machine. `epoch`: the number of starts that the journal has seen.
    `workers`: the addresses of the workers that had joined and were not lost, by id.
    """

    def __init__(self, machine: MasterMachine) -> None:
        self.epoch = 0
        self.latest: tuple[Succession, ...] = ()
        """The last agreed succession, and the later ones that were proposed."""
        self.workers: dict[str, str] = {}
        self.volumes = VolumeTable()
        self.skipped: list[str] = []
        """Why records had no effect, for the log: there are none unless ciel has a bug."""
        self.machine = machine
        self._context = machine.context

    def apply(self, record: Message, time_s: float) -> None:
        """Apply one record, which was written at a time since the epoch."""
        context = self._context
        context.now_s = time_s - self.machine.epoch_s
        context.graph.steps_left = UNBOUNDED
        try:
            self._apply(record)
        except CielError as error:
            if not isinstance(record, Change):  # one may have been refused in a later slice
                self.skipped.append(f"{type(record).__name__}: {error}")
        context.outbox.clear()
        context.journal.clear()

    def _apply(self, record: Message) -> None:
        machine = self.machine
        match record:
            case SubmitJob(spec):
                if spec.id not in machine.jobs:
                    machine.job_table.create(spec)
            case AddTask(spec, known):
                machine.attempts.replay_spawn(spec)
                parent = self._context.graph.tasks.get(spec.parent)
                if parent is not None and known:
                    publish_early(self._context.graph, parent, known)
                self._context.add_task(spec, known, machine.find_job(spec.job))
            case WantObjects() | ReleaseObjects() | CloseJob() | CancelJob() | ReplicateObjects():
                machine.clients.replay(record)
            case TaskReported(task_id):
                machine.attempts.replay(record)
                self._hand_over_released(task_id)
            case AttemptFailed():
                machine.attempts.replay_failure(record)
            case ObjectsStored():
                machine.attempts.replay_stored(record)
            case JobChanged(summary):
                self._job_changed(summary)
            case Change(_, "keep", argument):  # no worker that has the object is connected
                name, ref = argument["name"], argument["reference"]
                copies = argument.get("copies", 1)
                object_locations.add_kept(machine, name, ref, self._context.now_s, copies)
            case Change(_, "retry" | "retry_task", argument):
                self._retry(record.topic, argument)
            case Change(_, topic, argument):
                topics.change(machine, topic, argument, self._context.now_s)
            case MasterStarted(epoch):
                self.epoch = epoch
                self._note_restart()
            case SuccessionChanged(succession, is_agreed):
                self.latest = (succession,) if is_agreed else (*self.latest, succession)
            case JobNoted(job, at_s, text):
                self._note(machine.find_job(job), at_s, text)
            case WorkerSeen(worker, netloc):
                self.workers[worker] = netloc
            case WorkerLeft(worker):
                self.workers.pop(worker, None)
            case (
                VolumeCreated() | VolumeRemoved() | MemoryServerSeen() | MemoryServerLeft()
                | ExtentsPlaced()
            ):  # fmt: skip
                self.volumes.apply(record)
            case JournalCompacted(jobs):
                machine.job_table.count = max(machine.job_table.count, jobs)

    def _hand_over_released(self, task_id: TaskId) -> None:
        """Hand over the outputs of a finished task that its client had released before."""
        task = self._context.graph.tasks.get(task_id)
        if task is not None and task.job.released:
            released = [o for o in task.outputs if o in task.job.released]
            if released:
                self.machine.operations.hand_over(task.job, released)

    def _note(self, job: Job, at_s: float, text: str) -> None:
        job.history.record(at_s - self.machine.epoch_s, text)
        job.is_started = job.is_started or text.startswith(FIRST_STARTED)

    def _note_restart(self) -> None:
        for job in self.machine.jobs.values():
            if job.state not in ENDED:
                job.history.record(self._context.now_s, "the master was restarted")

    def _job_changed(self, summary: JobSummary) -> None:
        """End a job as it ended before; count the tasks that have no records any more."""
        machine = self.machine
        job = machine.find_job(summary.id)
        job.number = summary.number
        machine.job_table.count = max(machine.job_table.count, summary.number)
        forgotten = summary.handed_over - job.handed_over
        if forgotten > 0:  # since the journal was compacted
            job.handed_over += forgotten
            job.counts[DONE] += forgotten
            job.totals[DONE] += forgotten
        state = JobState(summary.state)
        if state not in ENDED or state is job.state:
            return
        if job.state in ENDED:
            self._revive(job)  # it was retried, and the tasks that ran again are forgotten
        if state is JobState.FAILED and not _was_stopped(summary):
            fail_missing(self._context.graph, job, summary.reason)
        if state is JobState.COMPLETED or (state is JobState.FAILED and not job.unsettled):
            machine.job_table.end(job, state, summary.reason)
        else:
            machine.operations.end_now(job, state, summary.reason)

    def _retry(self, topic: str, argument: dict[str, Any]) -> None:
        """Retry a job or a task, even if the tasks that ran again are forgotten."""
        job = topics.find(self.machine, argument["job"])
        try:
            topics.change(self.machine, topic, argument, self._context.now_s)
        except CielError:  # or it was refused in a later slice; its next record ends it
            if job.state in ENDED:
                self._revive(job)

    def _revive(self, job: Job) -> None:
        self.machine.job_table.move(job, JobState.ACTIVE)
        job.is_cancelled = False

    def finish(self, now_s: float, return_s: float = RETURN_S) -> None:
        """End the restoration: tasks wait for workers at most so long.

        Jobs wait for clients. These may still hear an earlier master if there were several.
        """
        grace_s = TAKEOVER_GRACE_S if self.latest else CLIENT_GRACE_S
        machine, context = self.machine, self._context
        context.now_s = now_s
        machine.job_table.ended.clear()
        context.graph.settled.clear()
        self._note_restart()
        context.graph.steps_left = machine.bulk.steps_per_tick
        for task in context.graph.tasks.values():
            if task.children and task.state in (WAITING, RUNNABLE):
                if not context.graph.is_needed(task):
                    context.graph.deactivate(task)  # it has delegated its outputs
        for job in machine.jobs.values():
            if job.state is JobState.ACTIVE:
                if job.wanted or job.spec.open:  # else its client has still to want something
                    context.touch(job)
                if not (job.spec.detached and not job.open):
                    machine.job_table.subscriptions.own(NOBODY, job)
        machine.membership.await_workers(self.workers, now_s + return_s)
        machine.job_table.subscriptions.gone(NOBODY, machine.jobs, now_s + grace_s)


def _was_stopped(summary: JobSummary) -> bool:
    """Whether the tasks of a failed job were cancelled, so that lost results are not recomputed.

    Other failed jobs ended by themselves, when each result was there or an error.
    """
    can_run = any(str(state) in summary.counts for state in (*ACTIVE, DORMANT))
    return str(CANCELLED) in summary.counts and not can_run
